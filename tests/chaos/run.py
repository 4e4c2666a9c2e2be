"""Random faults for so many seconds, then the drain and the books."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pipeline.folders import sweep
from tests.chaos import faults, link
from tests.chaos.commands import CHECKPOINT_SECONDS, R2D2, VTRACE
from tests.chaos.faults import Fault
from tests.chaos.pipeline import Pipeline
from tests.chaos.report import Report
from tests.chaos.watch import Watch
from tests.runs import Stopwatch

SOLVE_SECONDS = 600.0
START_SECONDS = 120.0
GAP_SECONDS = 3.0
"""Mean time between a recovery and the next fault."""
SHORT_SECONDS = 0.5
"""The same where each fault is dealt once."""
TWICE = 0.2
"""Probability of a second fault right after the first."""
BUSY = 2.0
"""A bound is as much longer as the machine was busy with other work, at most so many times itself."""
PATIENCE_SECONDS = 120.0
"""A pipeline that has not recovered so long after the bound is given up."""
CALM_SECONDS = 180.0
"""What has not solved its task under fire may do so after it."""
END_SECONDS = 30.0


def random_faults(
    seconds: float | None,
    seed: int,
    names: list[str],
    redis_server: Path | None,
    preset: str = VTRACE,
    least: int = 0,
) -> int:
    """The exit code: 0 when all bounds held.

    Args:
        seconds: How long faults are injected; None: each once.
        seed: Of their order, their gaps and their lengths.
        names: Of faults; none means all.
        redis_server: Another server than the bundled one.
        preset: What is trained. CartPole with V-trace has to be solved as well, where there is time for it.
        least: So many faults are injected, also where they take longer than ``seconds``.
    """
    print(f"seed {seed}, {preset}", flush=True)
    # In less time nobody can tell whether it would have been solved; nor ever of a replay as small as this.
    solve = seconds is not None and seconds >= SOLVE_SECONDS and preset == VTRACE
    if not solve:
        print("whether the task is solved is not asked, only recoveries and books", flush=True)
    rng, report = random.Random(seed), Report()
    with ExitStack() as stack:
        catalogue = _catalogue(names, stack)
        try:
            with started(report, catalogue.link, redis_server, preset=preset) as (pipeline, watch):
                storm(pipeline, rng, list(catalogue.faults.values()), seconds, report, least)
                if solve:
                    pipeline.wait(lambda: watch.solved, CALM_SECONDS)
                report.solved = watch.solved
                print(
                    f"best mean return of 100 episodes: {watch.best_return:.1f}; growth: {watch.growth()}", flush=True
                )
                if solve and not watch.solved:
                    report.fail("CartPole is not solved")
        except GivenUp as error:
            report.fail(str(error))
    return report.close()


class GivenUp(Exception):
    """The pipeline does not recover."""


class Catalogue:
    def __init__(self, chosen: Mapping[str, Fault], to: link.Link | None) -> None:
        self.faults, self.link = chosen, to


def _catalogue(names: list[str], stack: ExitStack) -> Catalogue:
    """The faults that are asked for, and the link where they need one."""
    wanted = {name: faults.FAULTS[name] for name in names or faults.FAULTS if name in faults.FAULTS}
    if names and all(name in faults.FAULTS for name in names):
        return Catalogue(wanted, None)
    if reason := link.missing():
        print(f"no second host, so no network.*: {reason}", flush=True)
        return Catalogue(wanted, None)
    to = stack.enter_context(link.Link())
    made = {fault.name: fault for fault in faults.network(to)}
    return Catalogue(wanted | {name: made[name] for name in names or made if name in made}, to)


@contextmanager
def started(
    report: Report,
    to: link.Link | None = None,
    redis_server: Path | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    preset: str = VTRACE,
) -> Iterator[tuple[Pipeline, Watch]]:
    """A pipeline that trains; at the end it is drained and its books are checked."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    with Pipeline(folder, to, redis_server, checkpoint_seconds, preset) as pipeline:
        watch = Watch(pipeline)
        pipeline.look = watch.look
        if recovery(pipeline, time.monotonic(), START_SECONDS) is None:
            report.fail(f"nothing is trained within {START_SECONDS:g} s")
        with pipeline.admin() as admin:
            epoch = admin.get(_prefix(pipeline) + "epoch")
        yield pipeline, watch
        finish(pipeline, report, epoch)
        for leak in watch.leaks():
            report.fail(leak)
    left_behind(pipeline, report)
    if report.failures:
        print(f"logs and run directory: {folder}", flush=True)
    else:
        shutil.rmtree(folder)


def storm(
    pipeline: Pipeline, rng: random.Random, deck: list[Fault], seconds: float | None, report: Report, least: int = 0
) -> None:
    """Deals the faults in random order, again and again (None: once), ``least`` at least, and waits for recoveries."""
    began = time.monotonic()
    hand = rng.sample(deck, len(deck))
    while hand if seconds is None else time.monotonic() < began + seconds or report.by_kind.total() < least:
        pipeline.hold(min(rng.expovariate(1 / GAP_SECONDS), 4 * GAP_SECONDS) if seconds is not None else SHORT_SECONDS)
        number = 2 if seconds is not None and rng.random() < TWICE else 1
        dealt = []
        for _ in range(number):
            hand = hand or rng.sample(deck, len(deck))
            dealt.append(hand.pop())
        name = " + ".join(fault.name for fault in dealt)
        try:
            for fault in dealt:
                report.injected(fault.name, fault.explains)
                fault.inject(pipeline, rng)
        except RuntimeError as error:
            report.fail(f"{name}: {error}")
        bound = sum(fault.recovery_seconds for fault in dealt)
        took = _recover(pipeline, name, bound, report)
        ledger = pipeline.summary()["ledger"]  # its error is checked when nothing is in flight any more
        open_books = f"; the ledger is open by {ledger['error']}" if ledger["error"] else ""
        print(f"{time.monotonic() - began:7.1f} s  {name}: recovered after {took:.1f} s{open_books}", flush=True)
        print(f"           {json.dumps(ledger)}", flush=True)
        report.recoveries += [(fault.name, took) for fault in dealt]
        surprised(pipeline, name, report)


def surprised(pipeline: Pipeline, name: str, report: Report) -> None:
    """What ended, or ended badly, and should not have."""
    for surprise in pipeline.surprises:
        report.fail(f"{name}: {surprise}")
    pipeline.surprises.clear()


def _recover(pipeline: Pipeline, name: str, bound: float, report: Report) -> float:
    """How long it takes.

    Raises:
        GivenUp: it never does.
    """
    released, watch = time.monotonic(), Stopwatch()
    took = recovery(pipeline, released, bound)
    while took is None and watch.elapsed < (allowed := bound + min(watch.held_up, BUSY * bound)):
        took = recovery(pipeline, released, allowed)
    if took is None:
        status = pipeline.status()
        shown = {k: v for k, v in status.get("learner", {}).items() if k in ("state", "bottleneck", "failing")}
        who = [
            (one["worker_id"], one["state"], round(one["heard_seconds_ago"], 1)) for one in status.get("workers", [])
        ]
        report.fail(f"{name}: not recovered within {bound:g} s, {watch}; learner {shown}, workers {who}")
        took = recovery(pipeline, released, bound + PATIENCE_SECONDS)
    if took is None:
        raise GivenUp(f"{name}: given up after {time.monotonic() - released:.0f} s; logs: {pipeline.directory.parent}")
    return took


def recovery(pipeline: Pipeline, released: float, bound: float) -> float | None:
    """Seconds since ``released`` (monotonic) until training goes on and every worker is served; None: not in time."""
    since = time.time() - (time.monotonic() - released)
    deadline = released + bound
    if not pipeline.trains(deadline - time.monotonic(), since):
        return None
    everybody = set(pipeline.workers)
    served = pipeline.wait(lambda: pipeline.serving(released) >= everybody, deadline - time.monotonic(), tick=0.2)
    return time.monotonic() - released if served else None


def finish(pipeline: Pipeline, report: Report, epoch: Any) -> None:
    """Drains, and compares the ledger with the store's own books, whose ``epoch`` was this at the start."""
    with pipeline.admin() as admin:
        pipeline.end()
        stored: Any = admin.hgetall(_prefix(pipeline) + "books")
        books = {k.decode(): int(v) for k, v in stored.items()}
        same = admin.get(_prefix(pipeline) + "epoch") == epoch
    surprised(pipeline, "the end", report)
    report.ledger = ledger = pipeline.summary()["ledger"]
    whole = same and "store_lost" not in ledger["dropped"]  # a store that is emptied has lost nothing if it was empty
    for words in (_replay_differences if pipeline.preset == R2D2 else _fifo_differences)(ledger, books, whole):
        report.fail(words)


def _prefix(pipeline: Pipeline) -> str:
    """Of the store's keys."""
    return "seedmq:replay:" if pipeline.preset == R2D2 else "seedmq:"


def _fifo_differences(ledger: Mapping[str, Any], books: Mapping[str, int], whole: bool) -> Iterator[str]:
    applied = ledger["trained"] + ledger["rolled_back"]
    if whole and applied != books["acknowledged_total"]:
        yield f"applied {applied} transitions, of which the store has acknowledged {books['acknowledged_total']}"
    if ledger["waiting"]["store"] + ledger["waiting"]["prefetch"] != books["waiting"]:
        yield f"the store holds {books['waiting']} transitions, and not as in {ledger}"


def _replay_differences(ledger: Mapping[str, Any], books: Mapping[str, int], whole: bool) -> Iterator[str]:
    """Updates leave the replay as it is: its books are what was inserted, what of it was evicted, and what is there."""
    if ledger["resident"] != books["resident"]:
        yield f"the store holds {books['resident']} transitions, the ledger says {ledger['resident']}"
    for name in ("inserted", "evicted") if whole else ():
        if ledger[name] != books[f"{name}_total"]:
            yield f"the store has {name} {books[f'{name}_total']} transitions, the ledger says {ledger[name]}"


def left_behind(pipeline: Pipeline, report: Report) -> None:
    """Processes, and files that the next start would not remove."""
    deadline = time.monotonic() + END_SECONDS
    while (alive := pipeline.processes()) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    if alive:
        report.fail(f"processes outlived the run: {alive}")
    sweep(pipeline.temporary)
    files = sorted(path.name for path in pipeline.temporary.iterdir() if path != pipeline.store.directory)
    if files:
        report.fail(f"left in the temporary folder: {files}")
