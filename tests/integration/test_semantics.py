"""SEMANTICS row by row through real environments, policy, slots and assembler, without sockets.

CounterEnv tells in every observation leaf which (environment, episode, step) it is; weights are frozen, so what the
training side recomputes from an unroll must be what acted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from learner.agent import Agent, build_agent
from learner.assembler import Assembler, Unroll
from learner.collector import Collector
from learner.devices import choose_devices
from learner.episodes import Episodes
from learner.inputs import unroll_inputs, unroll_state
from learner.paths import is_replay
from learner.requests import join, open_request
from learner.roster import Roster
from learner.slots import SlotTable, Verdict
from pipeline.config.tree import Config
from pipeline.ledger import Ledger
from pipeline.protocol import GroupReport, Hello, Report
from pipeline.requests import Joined, Left, StepRequest
from pipeline.streams import Role, Stream, environment_seeds
from workers.environments import make_group

pytestmark = pytest.mark.integration

MODES = ["next_step", "same_step", "disabled"]


class Collected:
    """Stands where the writer does: keeps what is finished."""

    def __init__(self) -> None:
        self.unrolls: list[Unroll] = []

    def submit(self, unrolls: list[Unroll]) -> None:
        self.unrolls += unrolls


class Pipeline:
    """One worker with one group, driven by hand."""

    def __init__(self, environments: int = 3, mode: str = "next_step", **sections: Any) -> None:
        environment = sections.pop("environment", {})
        kwargs = {"length": 7, **environment.pop("kwargs", {})}
        vector = environment.pop("vector", False)
        if mode != "next_step" or vector:
            kwargs["autoreset_mode"] = {"next_step": "NextStep", "same_step": "SameStep", "disabled": "Disabled"}[mode]
        name = "CounterVector-v0" if vector else environment.pop("name", "Counter-v0")
        self.config = Config.model_validate(
            {"environment": {"id": f"tests.counter_env:{name}", "kwargs": kwargs, **environment}, **sections}
        )
        self.group = make_group(self.config.environment, environments)
        self.agent: Agent = build_agent(self.config, self.group.spaces, choose_devices(["auto"], ["auto"]))
        self.policy = self.agent.policy(2 * environments, Stream(3, Role.ACTION))
        self.ledger, self.collected = Ledger(is_replay(self.config)), Collected()
        self.episodes, self.evaluations = Episodes(1000, 2 * environments), Episodes(1000, 2 * environments)
        self.episodes.trained = self.evaluations.trained = True
        self.assembler = Assembler(self.agent.layout, 2 * environments, self.agent.method.rows_before)
        self.table = SlotTable(2 * environments, self.agent.exploration)
        self.roster = Roster(
            spaces=self.agent.spaces,
            config_hash="",
            largest_group=environments,
            table=self.table,
            assembler=self.assembler,
            ledger=self.ledger,
            known={},
            settled={},
            seeds=lambda _lane, _count: 1,
            episodes=self.episodes,
            evaluations=self.evaluations,
        )
        self.collector = Collector(
            assembler=self.assembler,
            writer=self.collected,  # type: ignore[arg-type]
            ledger=self.ledger,
            episodes=self.episodes,
            evaluations=self.evaluations,
            inherited=self.table.inherited,
        )
        self.version = 0
        self.acted_states: dict[tuple[int, int], Any] = {}

    def join(self, run: int = 7, mode: str = "train", reports: dict[str, Any] | None = None) -> None:
        spaces = self.group.spaces.to_wire()
        hello = Hello("w", run, mode, spaces, [self.group.n], "", -1, reports or {}, {})
        assert self.roster.join(Joined(0, run, hello)) is None
        self.run, self.sequence = run, 0
        self.rows = self.group.reset(environment_seeds(1, self.group.n))

    def step(self) -> None:
        records, leaves = self.rows
        buffers = [records.tobytes(), *(leaf.tobytes() for leaf in leaves)]
        request = StepRequest(0, self.run, 0, self.sequence, len(records), self.group.n, buffers)
        verdict, group = self.table.judge(0, self.run, 0, self.sequence)
        assert verdict is Verdict.SERVE and group is not None
        batch = join([open_request(request, group, self.agent.spaces.observation)])
        explored = self.table.explores[batch.slots]
        acted = self.policy.submit(batch.slots, batch.first, batch.rows["reward"], batch.observation, explored)
        result = acted.result()
        self.table.answered(group, b"")
        self.collector.collect(batch, result, self.version)
        self.version += 1
        self.sequence += 1
        self.rows = self.group.step(np.ascontiguousarray(result.env_action).tobytes())

    def leave(self, taken: int | None = None, last: int = 0) -> None:
        left = Left(0, self.run, "lease", None) if taken is None else Left(0, self.run, "bye", self.report(taken, last))
        self.collected.submit(self.roster.leave(left))

    def report(self, taken: int, last: int = 0, **more: Any) -> Report:
        """What a worker says that has sent all it took, ``last`` of them in its last STEP."""
        sent = taken - sum(more.get("dropped", {}).values())
        return Report(taken=taken, groups=(GroupReport(self.group.n, sent, last),), **more)

    def fields(self) -> list[dict[str, Any]]:
        return [self.agent.layout.view(unroll.record) for unroll in self.collected.unrolls]

    def batch(self) -> dict[str, Any]:
        return self.agent.layout.batch(np.stack([unroll.record for unroll in self.collected.unrolls]))


def transitions(pipeline: Pipeline, path: str = "observation") -> list[tuple[int, int, int]]:
    """(environment, episode, step) of every valid transition, each checked for its pairing."""
    seen = []
    for got in pipeline.fields():
        frames = got[f"observation/{path}"][pipeline.agent.layout.frame_stack - 1 :]
        for i in np.flatnonzero(got["valid"]):
            before, after = frames[i], frames[i + 1]
            assert before[0] == after[0] and before[1] == after[1], "across a seam"
            assert before[2] + 1 == after[2] == got["reward"][i + 1]
            seen.append(tuple(int(x) for x in before))
    return seen


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_episodes_of_seven_give_each_transition_once(mode: str, vector: bool) -> None:
    pipeline = Pipeline(4, mode, environment={"vector": vector}, training={"unroll_length": 5})
    pipeline.join()
    for _ in range(200):
        pipeline.step()
    returns = pipeline.episodes.snapshot()
    pipeline.leave()
    seen = transitions(pipeline)
    ledger = pipeline.ledger.snapshot()
    assert len(seen) == len(set(seen)) == ledger["accepted"] == ledger["taken"]
    assert ledger["error"] == 0 and len({environment for environment, _, _ in seen}) == 4
    assert (returns["episode_return_mean"], returns["episode_length_mean"]) == (sum(range(1, 8)), 7)


def test_nested_observations_stay_together() -> None:
    pipeline = Pipeline(3, environment={"name": "CounterDict-v0"}, training={"unroll_length": 4})
    pipeline.join()
    for _ in range(60):
        pipeline.step()
    for got in pipeline.fields():
        assert np.array_equal(got["observation/z"][:, 2].astype(np.int64), got["observation/a/step"])
    assert transitions(pipeline, "z")


NETWORKS = {
    "mlp": {"hidden": [16]},
    "lstm": {"hidden": [16], "lstm": 8, "previous_action": True, "previous_reward": True},
}


@pytest.mark.parametrize("network", list(NETWORKS))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 2, 3, 7])
@pytest.mark.parametrize("stack", [(1, "zero"), (4, "zero"), (4, "repeat")])
def test_recomputed_log_probabilities_are_the_behaviours(network: str, mode: str, length: int, stack: Any) -> None:
    """Frozen weights, episode ends in the first rows of unrolls and inside, a seam in the middle."""
    pipeline = Pipeline(
        3,
        mode,
        environment={"kwargs": {"length": length}, "frame_stack": stack[0], "stack_padding": stack[1]},
        network=NETWORKS[network],
        training={"unroll_length": 4},
    )
    randomize(pipeline.agent)
    pipeline.join(run=7)
    for _ in range(23):
        pipeline.step()
    pipeline.leave()
    pipeline.join(run=8)
    for _ in range(19):
        pipeline.step()
    agent, batch = pipeline.agent, {name: tf.constant(value) for name, value in pipeline.batch().items()}
    inputs = unroll_inputs(batch, stack[0], stack[1], agent.rewards)
    outputs, _ = agent.network.unroll(inputs, unroll_state(batch))
    recomputed = agent.distribution.log_prob(outputs.policy, batch["action"])[:-1].numpy()
    behaved = agent.distribution.log_prob(batch["behaviour"], batch["action"])[:-1].numpy()
    valid = batch["valid"].numpy().astype(bool)
    assert valid.sum() > 50 and np.abs(behaved[valid]).std() > 1e-3
    np.testing.assert_allclose(recomputed[valid], behaved[valid], atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_a_lost_life_ends_what_is_learnt_and_nothing_else(mode: str) -> None:
    """Lives are lost at steps 2, 4 and 6 of 7: state, frame stack, episode and return go on through them."""
    pipeline = Pipeline(
        2,
        mode,
        environment={"kwargs": {"lives": 3, "ends": "truncated"}, "frame_stack": 3, "life_loss": "terminal"},
        network=NETWORKS["lstm"],
        training={"unroll_length": 5},
    )
    randomize(pipeline.agent)
    pipeline.join()
    for _ in range(60):
        pipeline.step()
    returns = pipeline.episodes.snapshot()
    pipeline.leave()
    seen = transitions(pipeline)
    assert len(seen) == len(set(seen)) == pipeline.ledger.snapshot()["accepted"]
    assert {step for _, _, step in seen} == set(range(7)), "every transition is valid, those that lose a life too"
    for got in pipeline.fields():
        rows = got["observation/observation"][pipeline.agent.layout.frame_stack - 1 :, 2]
        reached = rows[: 1 + np.flatnonzero(got["valid"]).max(initial=0)]
        lost = got["life_lost"][: len(reached)]
        assert np.array_equal(lost != 0, np.isin(reached, (2, 4, 6))) and not got["terminated"].any()
    assert (returns["episode_return_mean"], returns["episode_length_mean"]) == (sum(range(1, 8)), 7)
    agent, batch = pipeline.agent, {name: tf.constant(value) for name, value in pipeline.batch().items()}
    outputs, _ = agent.network.unroll(unroll_inputs(batch, 3, "zero", agent.rewards), unroll_state(batch))
    recomputed = agent.distribution.log_prob(outputs.policy, batch["action"])[:-1].numpy()
    behaved = agent.distribution.log_prob(batch["behaviour"], batch["action"])[:-1].numpy()
    valid = batch["valid"].numpy().astype(bool)
    np.testing.assert_allclose(recomputed[valid], behaved[valid], atol=1e-4)


def randomize(agent: Agent) -> None:
    """Weights that make actions depend on everything that is fed."""
    rng = np.random.default_rng(0)
    for variable in agent.network.trainable_variables:
        variable.assign(rng.normal(0, 0.3, variable.shape).astype(np.float32))


def test_a_run_that_took_more_than_it_delivered() -> None:
    pipeline = Pipeline(2, training={"unroll_length": 4})
    pipeline.join()
    for _ in range(10):
        pipeline.step()
    delivered = pipeline.ledger.snapshot()["accepted"]
    pipeline.leave(taken=delivered + 2, last=2)
    ledger = pipeline.ledger.snapshot()
    assert (ledger["undelivered"], ledger["taken"], ledger["error"]) == (2, delivered + 2, 0)


def test_the_report_of_a_dead_run_is_booked_once() -> None:
    pipeline = Pipeline(2, training={"unroll_length": 4})
    pipeline.join(run=7)
    for _ in range(10):
        pipeline.step()
    delivered = pipeline.ledger.snapshot()["accepted"]
    pipeline.leave()
    report = pipeline.report(delivered + 3, 2, dropped={"non_finite": 1}).to_wire()
    hello = Hello("w", 8, "train", pipeline.group.spaces.to_wire(), [2], "", -1, {"7": report}, {})
    for _ in range(3):
        assert pipeline.roster.join(Joined(0, 8, hello)) is None
    ledger = pipeline.ledger.snapshot()
    assert (ledger["undelivered"], ledger["dropped"], ledger["error"]) == (2, {"worker_non_finite": 1}, 0)


def test_evaluation_environments_feed_nothing_and_are_in_no_book() -> None:
    """Nor where their run ends, with its last word or without one that its successor then brings."""
    pipeline = Pipeline(3, training={"unroll_length": 4})

    def play(run: int, mode: str, reports: dict[str, Any], taken: int | None) -> None:
        pipeline.join(run, mode, reports)
        for _ in range(40):
            pipeline.step()
        pipeline.leave(taken)

    play(7, "train", {}, 3 * 35)
    books, unrolls = pipeline.ledger.snapshot(), len(pipeline.collected.unrolls)
    frontier, episodes = pipeline.roster.frontier({}), pipeline.episodes.count
    assert (books["taken"], books["accepted"], episodes) == (3 * 35, 3 * 35, 3 * 5)
    last_word = pipeline.report(3 * 40, dropped={"non_finite": 2}).to_wire()
    pipeline.evaluations.stay()
    play(8, "eval", {}, 3 * 40)
    play(9, "eval", {"8": last_word}, None)
    assert pipeline.ledger.snapshot() == books
    assert len(pipeline.collected.unrolls) == unrolls
    assert pipeline.roster.frontier({}) == frontier, "a checkpoint does not know them"
    assert pipeline.episodes.count == episodes and pipeline.evaluations.count == 2 * 3 * 5
    assert pipeline.evaluations.snapshot()["episode_return_mean"] == sum(range(1, 8))
