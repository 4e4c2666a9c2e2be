"""What the benchmarks of transport, inference and limits send, count and compare."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import inference, limits, transport
from benchmarks.clients import Paced, Stepping, Still, next_due
from benchmarks.harness import NAMES, Peer
from benchmarks.serving import Zeros
from learner.requests import join, open_request
from learner.slots import Group
from pipeline.errors import ProtocolError
from pipeline.protocol import Kind, encode
from pipeline.requests import StepRequest
from pipeline.rows import FIRST
from pipeline.spaces import Spaces

pytestmark = pytest.mark.unit


def opened(group: Still, rows: Any) -> Any:
    n = group.n
    request = StepRequest(0, 1, 0, 0, n, n, [rows.records.tobytes(), *(leaf.tobytes() for leaf in rows.leaves)])
    served = Group(np.arange(n, dtype=np.int32), np.arange(n), 1, False)
    return request, join([open_request(request, served, group.spaces.observation)])


@pytest.mark.parametrize("messages", [transport.LARGE, transport.SMALL, transport.SINGLE])
def test_a_still_groups_rows_are_what_the_learner_takes(messages: transport.Messages) -> None:
    group = Still(Spaces((messages.leaf,), transport.ACTION), messages.n)
    request, found = opened(group, group.step(b""))
    assert found.observation[0].shape == (messages.n, *messages.leaf.shape)
    sizes = [len(buffer) for buffer in request.buffers]
    assert sum(sizes) == messages.request_bytes and messages.frames[0][1:] == sizes
    assert messages.frames[0][0] == len(encode(Kind.STEP, transport.RUN, 0, 10_000, messages.n, messages.n))
    with pytest.raises(ProtocolError):
        opened(group, group.step(b"")._replace(leaves=[leaf[:0] for leaf in group.step(b"").leaves]))


def test_baselines_carry_as_many_bytes_and_stacks_where_those_travel() -> None:
    large = 16 * (32 + 84 * 84 * 4)
    assert [case.theirs.request_bytes for case in transport.CASES] == [large, 32 + 16, large]
    assert [case.ours.request_bytes for case in transport.CASES] == [large, 32 + 16, 16 * (32 + 84 * 84)]
    assert [case.theirs.reply_bytes for case in transport.CASES] == [128, 8, 128]
    assert [case.each for case in transport.CASES] == [1, 1, 16]


def test_metrics_have_their_documented_names_and_baselines() -> None:
    with transport.metrics() as found:
        baselines = {one.name: list(one.baselines) for one in found}
        assert all(isinstance(one.baselines["grpcio"], Peer) for one in found)
    figures = ("large.requests_per_second", "small.requests_per_second", "atari.environment_steps_per_second")
    assert baselines == {
        **{f"transport.{figure}": ["grpcio", "grpcio_async", "pyzmq"] for figure in figures},
        **{f"transport.process.{figure}": ["grpcio", "grpcio_async", "relay"] for figure in figures},
    }
    with inference.metrics() as found:
        names = [one.name for one in found]
    assert names[:3] == [
        "inference.added_latency_p50_ms",
        "inference.added_latency_p99_ms",
        "inference.rows_per_second",
    ]
    with limits.metrics() as found:
        assert not any(one.baselines for one in found)
        assert "limits.pong.agent_steps_per_second" in [one.name for one in found]
    documented = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text("utf-8")
    assert all(f"seedmq -q bench {name}" in documented or f"seedmq bench {name}" in documented for name in NAMES)


def test_zeros_answer_every_row() -> None:
    acted = Zeros(transport.ACTION).submit(np.arange(3), None, None, None, None).result()
    assert acted.env_action.tolist() == [0, 0, 0] and acted.env_action.nbytes == 3 * transport.ACTION.nbytes


def test_a_stepping_groups_transitions_count() -> None:
    group = Stepping(Spaces((transport.SMALL.leaf,), transport.ACTION), 2)
    assert (group.reset([0, 1]).records["flags"] == FIRST).all()
    assert group.step(b"").records["index"].tolist() == [1, 1]
    assert group.step(b"").records["index"].tolist() == [2, 2] and group.counters().taken == 4


@pytest.mark.parametrize(("now", "due"), [(9.0, 12.0), (10.0, 12.0), (11.9, 12.0), (12.5, 14.0), (17.0, 18.0)])
def test_a_step_whose_time_has_passed_is_taken_at_the_next(now: float, due: float) -> None:
    assert next_due(10.0, 2.0, now) == due


def test_a_paced_group_steps_at_its_times_and_notes_each_request(tmp_path: Path) -> None:
    begun = time.monotonic()
    group = Paced(Spaces((transport.SMALL.leaf,), transport.ACTION), 1, begun, 0.002, tmp_path / "found.npy")
    group.reset([0])
    for _ in range(3):
        group.step(b"")
    group.close()
    sent, took = np.load(tmp_path / "found.npy").T
    assert len(sent) == 2 and (took >= 0).all()  # of the first, nothing came back before; of the last, not yet
    assert ((sent - begun) % 0.002 >= 0).all() and sent[1] - sent[0] > 0.0 and sent[0] >= begun + 0.002


class Counting:
    """A policy that keeps the sizes it is asked for."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def submit(self, slots: Any, *others: Any) -> Any:
        self.sizes.append(len(slots))
        return Zeros(transport.ACTION, len(slots))


def test_the_limit_of_inference_has_the_batches_that_came_about(monkeypatch: pytest.MonkeyPatch) -> None:
    way, policy = inference.Way("cartpole"), Counting()
    noting = inference.Noting(policy)  # type: ignore[arg-type]
    for size in (2, 3, 3):
        noting.submit(np.arange(size), None, None, None, None)
    way.__dict__.update(_sizes=noting.sizes, _policy=policy)
    way.__dict__["_part"] = inference.Part(None, None, 2, np.zeros((1, 4, 4), np.float32))  # type: ignore[arg-type]
    policy.sizes = []
    assert way.limit(0.01) > 0
    assert policy.sizes[2:8] == [2, 3, 3, 2, 3, 3]  # behind one of each to warm up


def test_a_runs_limit_shares_the_time_among_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rate in (("environment", 1000.0), ("policy", 500.0), ("training", 250.0)):
        monkeypatch.setattr(limits, name, lambda preset, seconds, rate=rate: rate)
    assert limits.run("pong", 1.0) == pytest.approx(1 / (0.001 + 0.002 + 0.004))
