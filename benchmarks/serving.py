"""The learner's side to measure with: its inference loop on a thread of its own, and the broker where it stands.

private(config, ...)    a configuration whose endpoints stand in a private folder
broker_process(config)  the broker, where it is a process
placed(config, ...)     both: ``private``, with the broker process if asked
serving(config, ...)    the inference loop around a policy; workers may join
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from learner.assembler import Assembler, Unroll
from learner.collector import Collector
from learner.episodes import Episodes
from learner.inference import InferenceLoop, Serving
from learner.paths import LEARNER_ID
from learner.policies import Acting, PolicyBySlot
from learner.policy import PolicyRows
from learner.roster import Roster
from learner.slots import SlotTable
from learner.writer import UnrollWriter
from pipeline.config.tree import Config
from pipeline.ledger import Ledger
from pipeline.requests import Reported, RequestSource
from pipeline.run_dir import write_text
from pipeline.sources import BrokerSource, EmbeddedSource
from pipeline.spaces import Leaf, Spaces
from pipeline.stopping import OwnedThread, StopToken
from pipeline.unrolls import UnrollLayout

START_SECONDS = 120.0
WARM_UP_SECONDS = 1.0
END_SECONDS = 20.0
LOOK_SECONDS = 0.02


@contextmanager
def private(config: Config, placement: str) -> Iterator[Config]:
    """``config`` with its endpoints in a private folder, as ``seedmq run`` has them."""
    with tempfile.TemporaryDirectory(prefix="seedmq-bench-") as folder:
        endpoints = {"bind": f"ipc://{folder}/broker", "learner_bind": f"ipc://{folder}/learner"}
        broker = config.broker.model_copy(update={**endpoints, "placement": placement})
        yield config.model_copy(update={"broker": broker})


@contextmanager
def broker_process(config: Config) -> Iterator[int]:
    """The broker of a ``private`` configuration; gives its process id."""
    socket = Path(config.broker.learner_bind.removeprefix("ipc://"))
    file = socket.with_name("config.yaml")
    write_text(file, json.dumps(config.model_dump(mode="json", by_alias=True)))
    command = [sys.executable, "-m", "pipeline.cli", "-q", "broker", "--config", str(file)]
    with subprocess.Popen(command) as process:
        try:
            _await(process, socket)
            yield process.pid
        finally:
            process.terminate()


@contextmanager
def placed(config: Config, placement: str) -> Iterator[Config]:
    """``private``; ``process`` starts the broker."""
    with private(config, placement) as config, ExitStack() as stack:
        if placement == "process":
            stack.enter_context(broker_process(config))
        yield config


def _await(process: subprocess.Popen[bytes], socket: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not socket.exists():
        if process.poll() is not None:
            raise RuntimeError(f"the broker ended early with {process.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the broker did not start within {START_SECONDS:g} s")
        time.sleep(LOOK_SECONDS)


class Zeros(NamedTuple):
    """A policy that answers zeros, at once; and the batch that it answers."""

    action: Leaf
    rows: int = 0

    def submit(self, slots: Any, first: Any, reward: Any, observation: Any, exploration: Any) -> Zeros:
        return self._replace(rows=len(slots))

    def result(self) -> PolicyRows:
        zeros = np.zeros((self.rows, *self.action.shape), self.action.numpy_dtype)
        return PolicyRows(zeros, zeros, np.zeros((self.rows, 1), np.float32), ())

    def warm_up(self) -> None:
        pass


class Nothing:
    """Collects nothing: where the way of the observations ends with the reply. A sink that takes all, too."""

    def collect(self, batch: Any, acted: Any, version: int) -> None:
        pass

    def put(self, unrolls: list[Unroll]) -> int:
        return len(unrolls)

    def close(self) -> None:
        pass


class Listening(Roster):
    """Counts the reports that workers' heartbeats bring."""

    reports = 0

    def report(self, event: Reported) -> None:
        self.reports += 1
        super().report(event)


class Requests:
    """What the inference loop serves, counted.

    Args:
        loop: Running.
        roster: Who is served.
        stop: Its token.
        ledger: What its collector books.
    """

    def __init__(self, loop: InferenceLoop, roster: Listening, stop: StopToken, ledger: Ledger) -> None:
        self._loop, self._roster, self._table, self._stop = loop, roster, roster.table, stop
        self.ledger = ledger

    @property
    def counters(self) -> dict[str, int]:
        """Of the loop: ``rows`` and ``batches``, and what was not served, by reason. And ``reports`` that came."""
        return {**self._loop.counters, "reports": self._roster.reports}

    @property
    def rows(self) -> int:
        """Served so far."""
        return self._loop.counters["rows"]

    def wait_for(self, workers: int, check: Callable[[], None], rows: int = 1) -> None:
        """Returns a warm-up after so many workers have come and so many rows were served.

        Raises:
            TimeoutError: they did not come. And what ``check`` raises, and what ended the loop.
        """
        deadline = time.monotonic() + START_SECONDS
        while len(self._table) < workers or self.rows < rows:
            if time.monotonic() > deadline:
                came = f"{len(self._table)} of {workers} workers came, {self.rows} of {rows} rows were served"
                raise TimeoutError(f"{came} within {START_SECONDS:g} s")
            self.pass_time(LOOK_SECONDS, check)
        self.pass_time(WARM_UP_SECONDS, check)

    def rate(self, seconds: float, check: Callable[[], None]) -> float:
        """Rows per second of the next ``seconds``."""
        begun, before = time.monotonic(), self.rows
        self.pass_time(seconds, check)
        return (self.rows - before) / (time.monotonic() - begun)

    def pass_time(self, seconds: float, check: Callable[[], None]) -> None:
        """Waits, while others work.

        Raises:
            What ``check`` raises, and what ended the loop.
        """
        self._stop.wait(seconds)
        self._stop.raise_error()
        check()


def _source(config: Config) -> RequestSource:
    make = EmbeddedSource if config.broker.placement == "embedded" else BrokerSource
    return make(config, None, LEARNER_ID, config.slots)


@contextmanager
def serving(
    config: Config, spaces: Spaces, policy: Acting, layout: UnrollLayout, *, collects: bool, in_flight: int = 1
) -> Iterator[Requests]:
    """The inference loop, wired as the learner wires it, the store apart: finished unrolls are thrown away.

    Args:
        config: From ``placed``.
        spaces: Of one environment.
        policy: Warmed up.
        layout: Of the unrolls.
        collects: Whether rows are booked and assembled into unrolls behind the reply.
        in_flight: Batches; of the policy's devices.
    """
    stop, ledger, table = StopToken(), Ledger(False), SlotTable(config.slots)
    assembler, nothing = Assembler(layout, config.slots), Nothing()
    writer = UnrollWriter(lambda: nothing, config.training.batch_size, threading.Event(), lambda: "never full")
    roster = Listening(
        spaces=spaces,
        config_hash="",
        largest_group=min(config.learner.inference_batch, config.slots),
        table=table,
        assembler=assembler,
        ledger=ledger,
        known={},
        settled={},
        seeds=lambda _lane, _count: 1,
    )
    collector: Any = nothing
    if collects:
        collector = Collector(
            assembler=assembler,
            writer=writer,
            ledger=ledger,
            episodes=Episodes(1, config.slots),
            evaluations=Episodes(1, config.slots),
            inherited=table.inherited,
        )
    loop = InferenceLoop(
        lambda: _source(config),
        batch=min(config.learner.inference_batch, config.slots),
        version=lambda: 0,
        status=dict,
        on_spaces=lambda _: None,
        stop=stop,
    )
    by_slot = PolicyBySlot(policy, policy, table.evaluates)
    recurrent = bool(layout.state_shapes)
    loop.serve_with(Serving(by_slot, roster, collector, writer, spaces.observation, recurrent, in_flight))
    threads = [OwnedThread("inference", loop.run, stop), OwnedThread("writer", writer.run, stop)]
    for thread in threads:
        thread.start()
    try:
        yield Requests(loop, roster, stop, ledger)
    finally:
        loop.dismiss("measured", time.monotonic() + END_SECONDS)
        threads[0].join(END_SECONDS + 1.0)
        writer.close(time.monotonic() + END_SECONDS)
        threads[1].join(END_SECONDS)
    stop.raise_error()
