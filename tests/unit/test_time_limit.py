"""A time limit is not the end: constant observation, reward 1, limit 10, gamma 0.9: the value goes to 10, not 6.5."""

import numpy as np
import pytest

from learner.agent import build_agent
from learner.devices import choose_devices
from pipeline.config.tree import Config
from pipeline.spaces import Leaf, Spaces

pytestmark = pytest.mark.unit

LIMIT, LENGTH, BATCH = 10, 20, 11
SPACES = Spaces((Leaf("observation", "box", "float32", (1,)),), Leaf("action", "discrete", "int64", (), n=1))


def unrolls(layout, ends: str):
    """Unrolls of one action that begin at every place of an episode: rows 0..10, the last one final."""
    records = np.zeros((BATCH, layout.nbytes), np.uint8)
    fields = layout.view(records)
    step = (np.arange(LENGTH + 1) + np.arange(BATCH)[:, None]) % (LIMIT + 1)
    fields["first"][:] = step == 0
    fields["reward"][:] = step > 0
    fields[ends][:] = step == LIMIT
    fields["valid"][:] = step[:, :-1] != LIMIT
    fields["observation/observation"][:] = 1
    return layout.batch(records)


@pytest.mark.parametrize(("ends", "value"), [("truncated", 10.0), ("terminated", None)])
def test_the_value_of_a_truncated_task_is_that_of_the_endless_one(ends: str, value: float | None) -> None:
    config = Config.model_validate(
        {
            "environment": {"id": "Constant-v0"},
            "network": {"hidden": [16]},
            "training": {"unroll_length": LENGTH, "batch_size": BATCH, "optimizer": {"learning_rate": 0.01}},
            "vtrace": {"discount": 0.9, "lambda": 0.95, "entropy_cost": 0.0},
        }
    )
    agent = build_agent(config, SPACES, choose_devices(["auto"], ["auto"]))
    trainer = agent.trainer()
    prepared = trainer.prepare(unrolls(agent.layout, ends))
    for _ in range(1500):
        metrics = trainer.update(prepared, 0)
    got = metrics.fetch()["vs"] - metrics.fetch()["value_error"]
    if value is not None:
        assert got == pytest.approx(value, rel=0.05)
    else:
        assert got < 7.5, "a terminal state has no future"
