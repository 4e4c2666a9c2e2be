"""The least that a worker needs of a broker, for tests of workers alone: a ROUTER that welcomes, answers and remembers.

Its loop runs in a thread that owns the socket; the test talks to it through plain attributes and deadlines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
import zmq

from pipeline import protocol
from pipeline.protocol import Hello, Kind, Report, encode
from pipeline.rows import FIRST, NO_REPLY, ROW
from pipeline.spaces import Spaces


class Run:
    """What one run has sent."""

    def __init__(self, hello: Hello, worker: int) -> None:
        self.hello, self.worker = hello, worker
        self.spaces = Spaces.from_wire(hello.spaces)
        self.sequence = [-1] * len(hello.groups)
        self.delivered: dict[tuple[int, int], int] = {}  # (group, environment) -> index of its last row
        self.rows: list[tuple[int, Any, list[Any]]] = []  # group, records, leaves
        self.repeats = 0
        self.bye: Report | None = None
        self.report: Report | None = None

    @property
    def transitions(self) -> int:
        return sum(self.delivered.values())


class MiniBroker:
    """Args:
    endpoint: Where it binds; ``tcp://127.0.0.1:*`` takes a free port.
    keep: Remember all rows.
    """

    def __init__(self, endpoint: str = "tcp://127.0.0.1:*", keep: bool = True, seed: int = 1) -> None:
        self.runs: dict[int, Run] = {}
        self.byes: dict[int, Report] = {}
        self.hellos: list[Hello] = []
        self.mute: set[Kind] = set()  # kinds of messages that are ignored
        self.heartbeats = 0
        self.dismissed = False
        self.state = ("serving", "")
        self.keep, self.seed = keep, seed
        self.errors: list[BaseException] = []
        self._wanted, self._stop, self._ready = endpoint, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    def __enter__(self) -> MiniBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        assert not self.errors or error is not None, self.errors

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def until(self, condition: Callable[[], Any], seconds: float = 120.0) -> None:
        """Waits for a condition; fails after the deadline."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert not self.errors, self.errors
            assert time.monotonic() < deadline, "not reached in time"
            self._stop.wait(0.01)

    @property
    def transitions(self) -> int:
        return sum(run.transitions for run in self.runs.values())

    def _run(self) -> None:
        context: Any = zmq.Context()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 200)
        try:
            self._socket.bind(self._wanted)
            self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
            self._ready.set()
            while not self._stop.is_set():
                if self._socket.poll(20):
                    peer, *frames = self._socket.recv_multipart()
                    self._take(peer, protocol.decode(frames))
        except BaseException as error:  # noqa: BLE001 - raised by the test
            self.errors.append(error)
        finally:
            self._ready.set()
            self._socket.close()
            context.term()

    def _take(self, peer: bytes, message: protocol.Message) -> None:
        if message.kind in self.mute:
            return
        if message.kind is Kind.HELLO:
            self._hello(peer, Hello.from_wire(message.fields[0]))
            return
        number = message.fields[0]
        run = self.runs.get(number)
        if message.kind is Kind.BYE:
            self.byes[number] = Report.from_wire(message.fields[1])
            self._send(peer, Kind.GOODBYE, number)
        elif run is None:
            self._send(peer, Kind.UNKNOWN, number)
        elif message.kind is Kind.HEARTBEAT:
            self.heartbeats += 1
            run.report = Report.from_wire(message.fields[1])
            self._send(peer, *((Kind.DRAIN, number, "enough") if self.dismissed else (Kind.ALIVE, number, *self.state)))
        elif message.kind is Kind.STEP:
            self._step(peer, run, message)

    def _hello(self, peer: bytes, hello: Hello) -> None:
        self.hellos.append(hello)
        taken = {run.worker for number, run in self.runs.items() if run.hello.worker_id != hello.worker_id}
        worker = hello.worker if hello.worker >= 0 else next(i for i in range(1000) if i not in taken)
        if hello.run not in self.runs:
            self.runs[hello.run] = Run(hello, worker)
        lease = {"worker": worker, "seed": self.seed, "heartbeat_seconds": 0.2, "lease_seconds": 15.0}
        self._send(peer, Kind.WELCOME, hello.run, lease)

    def _step(self, peer: bytes, run: Run, message: protocol.Message) -> None:
        number, group, sequence, rows, replies = message.fields
        action = run.spaces.action
        reply = np.full((replies, *action.shape), action.start, action.numpy_dtype).tobytes()
        if sequence == run.sequence[group]:
            run.repeats += 1
        else:
            assert sequence > run.sequence[group]
            run.sequence[group] = sequence
            records = np.frombuffer(message.buffers[0], ROW)
            assert len(records) == rows
            leaves = [x.view(b, rows) for x, b in zip(run.spaces.observation, message.buffers[1:], strict=True)]
            for environment, index in zip(records["environment"], records["index"], strict=True):
                run.delivered[group, int(environment)] = int(index)
            if self.keep:
                run.rows.append((group, records, leaves))
        self._send(peer, Kind.ACTIONS, number, group, sequence, buffers=[reply])

    def _send(self, peer: bytes, kind: Kind, *fields: Any, buffers: Any = ()) -> None:
        self._socket.send_multipart([peer, encode(kind, *fields), *buffers])


class Tally:
    """Row transitions of one environment's rows in order: valid ones end at a row that is not FIRST."""

    def __init__(self) -> None:
        self.valid = self.masked = self.episodes = 0
        self.rows = 0

    def add(self, record: Any) -> None:
        if self.rows:
            if record["flags"] & FIRST:
                self.masked += 1
            else:
                self.valid += 1
        self.rows += 1
        self.episodes += bool(record["flags"] & 3)
        assert not record["flags"] & NO_REPLY or record["flags"] & 3
