"""Whether buffers that grow with the observation fit the memory there is."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from learner.memory import Needs, fitted
from pipeline import host
from pipeline.config.tree import Config
from pipeline.errors import CapacityError
from pipeline.host import Memory
from pipeline.spaces import Leaf
from pipeline.unrolls import UnrollLayout

pytestmark = pytest.mark.unit

GIB = 2**30
HERE = Memory(32 * GIB, "this host's")


def config_of(**sections: object) -> Config:
    tree = {"environment": {"id": "e", "frame_stack": 1}, "workers": {"count": 1, "envs": 4, "groups": 1}}
    return Config.model_validate({**tree, **sections})


def layout_of(nbytes: int, config: Config) -> UnrollLayout:
    leaf = Leaf("observation", "box", "uint8", (nbytes,))
    return UnrollLayout(
        unroll_length=config.training.unroll_length,
        frame_stack=config.environment.frame_stack,
        observation=(leaf,),
        action_shape=(),
        action_dtype="int32",
        behaviour_size=2,
        state_shapes=((256,),),
    )


def test_small_observations_change_nothing() -> None:
    config = config_of()
    assert fitted(config, layout_of(84 * 84, config), True, HERE) is config


def test_slots_that_nobody_set_follow_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(training={"unroll_length": 20, "batch_size": 2})
    layout = layout_of(2**22, config)
    with caplog.at_level(logging.INFO, logger="learner"):
        slots = fitted(config, layout, True, HERE).slots
    assert slots == 2 * config.environments and Needs(config, layout, True).total(slots) <= 0.8 * HERE.nbytes
    assert "learner.slots = 8, as the default of 1024 does not fit: an observation has 4,194,304 bytes" in caplog.text
    larger = layout_of(2**27, config)
    scarce = fitted(config, larger, True, Memory(64 * GIB, "this host's")).slots
    needs = Needs(config, larger, True)
    assert config.environments <= scarce < 8 and needs.total(scarce) <= 0.8 * 64 * GIB < needs.total(scarce + 1)


def test_slots_that_were_set_and_do_not_fit_are_refused_with_the_arithmetic_and_what_would() -> None:
    config = config_of(training={"unroll_length": 20, "batch_size": 2}, learner={"slots": 1024})
    layout = layout_of(2**22, config)
    with pytest.raises(CapacityError) as refused:
        fitted(config, layout, True, HERE)
    text = str(refused.value)
    assert "an observation has 4,194,304 bytes" in text and "learner.slots = 1024 x 88," in text
    assert "at most 80% of this host's 32.00 GiB are taken" in text
    most = int(text.split("set learner.slots to ")[1].split(maxsplit=1)[0])
    smaller = config_of(training={"unroll_length": 20, "batch_size": 2}, learner={"slots": most})
    assert fitted(smaller, layout, True, HERE) is smaller, "what it says to set is taken"


@pytest.mark.parametrize(("slots", "size"), [(None, 64), (8, 64), (None, 1024)])
def test_environments_that_do_not_fit_are_refused(slots: int | None, size: int) -> None:
    config = config_of(learner={"slots": slots})
    with pytest.raises(CapacityError, match=r"in all .* GiB; at most 80% .* not do for 4 environments: smaller"):
        fitted(config, layout_of(size * 2**20, config), True, HERE)


@pytest.mark.parametrize(
    "changed",
    [
        {"environment": {"id": "e", "frame_stack": 4}},
        {"training": {"batch_size": 64}},
        {"training": {"prefetch_batches": 8}},
        {"evaluation": {"workers": 1}},
        {"store": {"backend": "memory"}},
        {"learner": {"inference_batch": 1024}},
    ],
)
def test_every_buffer_is_counted(changed: dict[str, object]) -> None:
    config, other = config_of(), config_of(**changed)
    before, after = (Needs(one, layout_of(10_000, one), True) for one in (config, other))
    assert after.total(1024) > before.total(1024)
    assert Needs(other, layout_of(10_000, other), False).total(1024) < after.total(1024), "a GPU has memory of its own"


def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = host.memory()
    (tmp_path / "memory.max").write_text(f"{whole.nbytes // 2}\n")
    monkeypatch.setattr(host, "_CGROUPS", tmp_path)
    monkeypatch.setattr(host, "_limits", lambda: [tmp_path / "memory.max", tmp_path / "none"])
    assert host.memory() == (whole.nbytes // 2, "this container's")
    (tmp_path / "memory.max").write_text("max\n")
    assert host.memory().whose == "this host's"
