"""The learner killed at random moments, and its books compared with the store's after each."""

from __future__ import annotations

import json
import math
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import redis

from pipeline.launch.processes import LEARNER
from tests.chaos.commands import CHECKPOINT_SECONDS
from tests.chaos.faults import KILLED, LEARNER_START_SECONDS, WORKER_START_SECONDS
from tests.chaos.pipeline import Pipeline
from tests.chaos.report import Report
from tests.chaos.run import GivenUp, started, surprised

STREAM, BOOKS, GROUP = "seedmq:unrolls", "seedmq:books", "learners"
EARLY = 0.3
"""Share of kills that do not wait for the learner to train."""
SAVING_SECONDS = 1.0
"""Between two checkpoints where kills are to hit them."""
SAVE_SECONDS = 20.0
PARTIAL = ".partial-*"
LATE_SECONDS = 3.0
"""A checkpoint that is due may take so long: the update before it, the cut, writing, a busy machine."""


def learner_kills(number: int, seed: int, redis_server: Path | None, while_saving: bool = False) -> int:
    """The exit code: 0 when all bounds held.

    Args:
        number: How often it has to be resumed.
        seed: Of the moments.
        redis_server: Another server than the bundled one.
        while_saving: There is a checkpoint a second, and only kills count that leave half of one; each is resumed.
    """
    print(f"seed {seed}", flush=True)
    rng, report = random.Random(seed), Report(explained={"learner_restart": math.inf})
    left: list[Left] = []
    seconds = SAVING_SECONDS if while_saving else CHECKPOINT_SECONDS
    stack = started(report, redis_server=redis_server, checkpoint_seconds=seconds)
    try:
        with stack as (pipeline, watch), pipeline.admin() as admin:
            while (sum(one.half_saved for one in left) if while_saving else len(report.recoveries)) < number:
                (_wait_for_a_save if while_saving else _wait_for_any_moment)(pipeline, rng)
                left.append(one := _kill(pipeline, admin, report))
                then = "killed again"
                if while_saving or rng.random() >= EARLY:
                    report.recoveries.append(("learner.kill", took := _resumed(pipeline, admin, one, report)))
                    then = f"resumed after {took:.1f} s"
                surprised(pipeline, f"kill {len(left)}", report)
                print(f"kill {len(left)}: {one}; {then}", flush=True)
            report.solved = watch.solved
    except GivenUp as error:
        report.fail(str(error))
    _print_figures(left, report)
    return report.close()


def _print_figures(left: list[Left], report: Report) -> None:
    resumed, rolled_back = len(report.recoveries), report.ledger.get("rolled_back")
    oldest = max((one.age_seconds for one in left if one.trained), default=0.0)
    most = max((one.rolled_back for one in left), default=0)
    print(f"{len(left)} kills, {resumed} resumed and {len(left) - resumed} killed again before they trained")
    print(f"{sum(one.half_saved for one in left)} of them were in the midst of a checkpoint")
    print(f"rolled back at once at most {most} transitions, in all {rolled_back}")
    print(f"the checkpoint at most {oldest:.1f} s old when a learner that trained was killed")
    print(f"unrolls taken and not applied when it was killed: {sum(len(one.taken) for one in left)}")


class Left(NamedTuple):
    """What a killed learner leaves.

    Attributes:
        checkpoint: The newest.
        age_seconds: How old that is.
        trained: The learner trained; else it was still about to start.
        half_saved: Part of a checkpoint stands there.
        rolled_back: Transitions that the store has acknowledged since then.
        rolled_back_before: What the ledger in the checkpoint says already.
        taken: Unrolls (ids of the stream) that it had taken, and not acknowledged.
    """

    checkpoint: str
    age_seconds: float
    trained: bool
    half_saved: bool
    rolled_back: int
    rolled_back_before: int
    taken: tuple[str, ...]

    def __str__(self) -> str:
        doing = "saving" if self.half_saved else "training" if self.trained else "starting"
        return (
            f"{doing}, checkpoint {self.checkpoint} of {self.age_seconds:.1f} s before, "
            f"{self.rolled_back} transitions to roll back, {len(self.taken)} unrolls taken"
        )


def _wait_for_any_moment(pipeline: Pipeline, rng: random.Random) -> None:
    pipeline.pid(LEARNER)
    training = bool(pipeline.summary(_born(pipeline)))
    pipeline.hold(rng.uniform(0.0, 2 * CHECKPOINT_SECONDS if training else 10.0))


def _wait_for_a_save(pipeline: Pipeline, rng: random.Random) -> None:
    """Until a random moment, and then until something stands in the folder that becomes a checkpoint.

    Raises:
        GivenUp: none is saved.
    """
    pipeline.hold(rng.uniform(0.0, 2 * SAVING_SECONDS))
    checkpoints = pipeline.directory / "checkpoints"
    before = set(checkpoints.glob(PARTIAL))  # half of one that was killed before stays until the next is saved
    holds = rng.choice(("", "/*"))  # the folder is new, or something stands in it

    def saving() -> bool:
        return any(path.parent not in before and path not in before for path in checkpoints.glob(f"{PARTIAL}{holds}"))

    if not pipeline.wait(saving, SAVE_SECONDS, tick=0.0002):
        raise GivenUp(f"the learner saves no checkpoint within {SAVE_SECONDS:g} s")


def _kill(pipeline: Pipeline, admin: redis.Redis, report: Report) -> Left:
    trained = pipeline.summary(_born(pipeline)).get("rates", {}).get("agent_steps_per_second", 0) > 0
    pipeline.signal(LEARNER, signal.SIGKILL, *KILLED)
    killed = time.time()
    report.by_kind["learner.kill"] += 1
    pipeline.ends(LEARNER)
    checkpoint = pipeline.newest_checkpoint()
    assert checkpoint is not None
    meta = json.loads((checkpoint / "meta.json").read_text())
    acknowledged = int(admin.hget(BOOKS, "acknowledged_total") or 0)
    taken = tuple(entry["message_id"].decode() for entry in admin.xpending_range(STREAM, GROUP, "-", "+", 1000))
    age = killed - checkpoint.stat().st_mtime
    if trained and age > pipeline.checkpoint_seconds + LATE_SECONDS:
        every = pipeline.checkpoint_seconds
        report.fail(f"the newest checkpoint is {age:.1f} s old, and one is written every {every:g} s")
    since = acknowledged - meta["store"]["acknowledged_total"]
    half_saved = any(checkpoint.parent.glob(PARTIAL))
    return Left(checkpoint.name, age, trained, half_saved, since, meta["ledger"]["rolled_back"], taken)


def _born(pipeline: Pipeline) -> float:
    """Unix time since when the learner runs, or will run."""
    return pipeline.started_at(LEARNER)


def _resumed(pipeline: Pipeline, admin: redis.Redis, one: Left, report: Report) -> float:
    """Waits for its successor to train, and compares; how long that took.

    Raises:
        GivenUp: it does not.
    """
    began = time.monotonic()
    pipeline.pid(LEARNER)
    born = _born(pipeline)
    if not pipeline.trains(LEARNER_START_SECONDS, born):
        raise GivenUp(f"the learner is not resumed within {LEARNER_START_SECONDS:g} s")
    took = time.monotonic() - began
    found = pipeline.summary(born)["ledger"]["rolled_back"] - one.rolled_back_before
    if found != one.rolled_back:
        report.fail(f"{one.rolled_back} transitions were trained after the checkpoint; {found} are rolled back")

    def applied() -> bool:
        return not any(admin.xrange(STREAM, entry, entry) for entry in one.taken)

    if not pipeline.wait(applied, WORKER_START_SECONDS):
        report.fail(f"of what was taken and not applied something is not trained: {one.taken}")
    return took
