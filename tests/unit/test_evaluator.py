"""The evaluator with real networks and policies: one version of the weights plays a round, whatever is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from learner.agent import NETWORK, Agent, build_agent
from learner.assembler import Assembler
from learner.devices import choose_devices
from learner.evaluator import Evaluator
from learner.inference import InferenceLoop
from learner.networks.network import named_variables
from learner.roster import Roster
from learner.slots import SlotTable
from pipeline.config.tree import Config
from pipeline.ledger import Ledger
from pipeline.protocol import Hello
from pipeline.requests import Joined
from pipeline.rows import FIRST, ROW, TERMINATED
from pipeline.spaces import Leaf, Spaces
from pipeline.stopping import OwnedThread, StopToken
from pipeline.streams import Role, Stream
from tests.unit.test_inference import Script

pytestmark = pytest.mark.unit

SPACES = Spaces((Leaf("observation", "box", "float32", (3,)),), Leaf("action", "discrete", "int64", (), n=4))
ENVIRONMENTS, TARGET, LIMIT = 2, 5.0, 60.0
OBSERVATION = np.random.default_rng(0).normal(size=(ENVIRONMENTS, 3)).astype(np.float32)


class Idle(Script):
    """No worker ever asks."""

    def poll(self, credit: int, timeout_seconds: float) -> Any:
        return [], []

    def workers(self) -> int:
        return 0

    def dismiss(self, reason: str) -> None: ...

    def close(self) -> None: ...


class Stand:
    """An evaluator beside a network that a test changes; two evaluation environments have joined."""

    def __init__(self) -> None:
        evaluation = {"workers": 1, "envs": ENVIRONMENTS, "episodes": ENVIRONMENTS, "solved_return": TARGET}
        config = Config.model_validate(
            {
                "environment": {"id": "x"},
                "network": {"hidden": [4]},
                "workers": {"envs": 2, "groups": 1},
                "learner": {"slots": 32, "inference_batch": 4},
                "evaluation": evaluation,
            }
        )
        self.agent: Agent = build_agent(config, SPACES, choose_devices(["cpu:0"], ["cpu:0"]))
        self.stop = StopToken()
        self.loop = InferenceLoop(
            Idle,  # type: ignore[arg-type]
            batch=4, version=lambda: 0, status=dict, on_spaces=lambda _: None, stop=self.stop,
        )  # fmt: skip
        self.thread = OwnedThread("inference", self.loop.run, self.stop)
        self.evaluator = Evaluator(config, self.agent, self.loop, Stream(0, Role.EVALUATION))
        table, assembler = SlotTable(32), Assembler(self.agent.layout, 32)
        self.roster = Roster(
            spaces=SPACES, config_hash="", largest_group=4, table=table, assembler=assembler, ledger=Ledger(), known={},
            settled={}, seeds=lambda _lane, _count: 1,
        )  # fmt: skip
        hello = Hello("e", 1, "eval", SPACES.to_wire(), [ENVIRONMENTS], "", -1, {}, {})
        assert self.roster.join(Joined(0, 1, hello)) is None
        self.slots = table.evaluating()

    def train(self, seed: int) -> dict[str, np.ndarray[Any, Any]]:
        """Other weights and statistics; what they are."""
        rng = np.random.default_rng(seed)
        for _, variable in named_variables(self.agent.network):
            values = rng.normal(size=variable.shape)
            values = values if variable.trainable else abs(values) + 0.1
            variable.assign(values.astype(variable.dtype.as_numpy_dtype))
        return {NETWORK + name: np.array(variable.numpy()) for name, variable in named_variables(self.agent.network)}

    def logits(self, policy: Any, slots: Any) -> np.ndarray[Any, Any]:
        n = len(slots)
        acted = policy.submit(slots, np.ones(n, bool), np.zeros(n, np.float32), [OBSERVATION], np.zeros(n, np.float32))
        return np.array(acted.result().behaviour)

    def trained_logits(self) -> np.ndarray[Any, Any]:
        return self.logits(self.agent.policy(4, Stream(0, Role.ACTION)), np.arange(ENVIRONMENTS, dtype=np.int32))

    def evaluated_logits(self) -> np.ndarray[Any, Any]:
        return self.logits(self.evaluator.evaluation.policy, self.slots)

    def play(self, value: float) -> None:
        """An episode of each environment, of this return."""
        for flags in (FIRST, TERMINATED):
            rows = np.zeros(ENVIRONMENTS, ROW)
            rows["flags"], rows["episode_return"] = flags, value
            self.evaluator.evaluation.observe(self.slots, rows)


@pytest.fixture
def stand() -> Iterator[Stand]:
    made = Stand()
    made.thread.start()
    yield made
    made.loop.dismiss("end", 0.0)
    made.thread.join(LIMIT)
    made.stop.raise_error()


def test_a_round_is_played_by_the_weights_that_it_began_with(stand: Stand) -> None:
    stand.train(seed=1)
    first = stand.trained_logits()
    assert not stand.evaluator.look(stand.roster, 10)
    stand.train(seed=2)
    second = stand.trained_logits()
    assert abs(first - second).max() > 0.1, "the test sees nothing where all weights act alike"
    for version in (11, 12):  # updates go on
        np.testing.assert_allclose(stand.evaluated_logits(), first, atol=1e-5)
        assert not stand.evaluator.look(stand.roster, version)
    stand.play(TARGET - 1)
    np.testing.assert_allclose(stand.evaluated_logits(), first, atol=1e-5)
    assert not stand.evaluator.look(stand.roster, 13), "what it played does not solve the task; the next round begins"
    assert stand.evaluator.evaluation.status() == {
        "rounds": 1, "voided_rounds": 0, "last_return_mean": TARGET - 1, "last_version": 10,
    }  # fmt: skip
    np.testing.assert_allclose(stand.evaluated_logits(), second, atol=1e-5)


def test_no_round_begins_for_weights_that_one_has_played(stand: Stand) -> None:
    assert not stand.evaluator.look(stand.roster, 10)
    stand.play(0.0)
    for _ in range(2):
        assert not stand.evaluator.look(stand.roster, 10)
        assert stand.evaluator.evaluation.idle
    assert not stand.evaluator.look(stand.roster, 11) and not stand.evaluator.evaluation.idle


def test_the_weights_that_solved_the_task_are_kept(stand: Stand) -> None:
    weights = stand.train(seed=1)
    assert not stand.evaluator.look(stand.roster, 10)
    stand.train(seed=2)
    assert stand.evaluator.solved_weights == {}
    stand.play(TARGET)
    assert not stand.evaluator.look(stand.roster, 20), "the same weights play another round"
    stand.play(TARGET)
    assert stand.evaluator.look(stand.roster, 30)
    assert stand.evaluator.solved_weights.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(stand.evaluator.solved_weights[name], array, err_msg=name)


def test_a_round_that_a_second_one_does_not_confirm_solves_nothing(stand: Stand) -> None:
    stand.train(seed=1)
    first = stand.trained_logits()
    assert not stand.evaluator.look(stand.roster, 10)
    stand.train(seed=2)
    stand.play(TARGET)
    assert not stand.evaluator.look(stand.roster, 11)
    np.testing.assert_allclose(stand.evaluated_logits(), first, atol=1e-5)
    stand.play(TARGET - 0.5)
    assert not stand.evaluator.look(stand.roster, 12) and stand.evaluator.solved_weights == {}
    np.testing.assert_allclose(stand.evaluated_logits(), stand.trained_logits(), atol=1e-5)
    stand.play(TARGET)
    assert not stand.evaluator.look(stand.roster, 13), "it begins anew"
    stand.play(TARGET)
    assert stand.evaluator.look(stand.roster, 14)


def test_weights_that_were_never_trained_solve_nothing(stand: Stand) -> None:
    for version in (10, 11, 12):
        assert not stand.evaluator.look(stand.roster, version, trained=False)
        stand.play(TARGET)
    assert not stand.evaluator.look(stand.roster, 13, trained=True), "the round was begun before the first update"
    for version in (14, 15):
        stand.play(TARGET)
        solved = stand.evaluator.look(stand.roster, version)
    assert solved
