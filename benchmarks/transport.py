"""The way from worker to inference and back, with a policy that answers zeros at once: requests per second.

Four clients, a process each, with one request outstanding; observations are the same array each time. seedmq's side is
the product: the worker's loop, session and socket, the broker where ``seedmq run`` has it (``transport.*``) or as a
process (``transport.process.*``), the inference loop with its checks and its one batch, the replies. Only environments,
network, and what becomes of the rows behind the reply (books, unrolls, store) are missing.

    large   16 observations of 84 x 84 x 4 bytes a request (4-stacks), as SEED RL sends them
    small   one observation of 16 bytes a request
    atari   16 environments a request: seedmq sends single frames of 84 x 84, as it does; grpcio and pyzmq 4-stacks

    grpcio        bidirectional streams of the same bytes, a server with a thread for each client; nothing serialized
    grpcio_async  the same with asyncio's server
    pyzmq         ROUTER and DEALER that receive and send one frame of the same bytes, and do nothing else: the limit
    relay         the same three frames as seedmq's through a process that receives and sends: the limit of a hop
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from benchmarks import harness, lockstep
from benchmarks.clients import Still, clients
from benchmarks.harness import Measure, Metric, Peer
from benchmarks.serving import START_SECONDS, Zeros, placed, serving
from benchmarks.unrolls import layout_of
from pipeline.config.tree import Config, EnvironmentSection, LearnerSection, WorkersSection
from pipeline.protocol import Kind, encode
from pipeline.rows import ROW
from pipeline.spaces import Leaf, Spaces

CLIENTS = 4
ACTION = Leaf("action", "discrete", "int64", (), n=4)
RUN = 2**62  # run ids of the product are random below 2^63: heads are as long as this one's


class Messages(NamedTuple):
    """What a request carries: ``n`` environments' observations, one leaf."""

    leaf: Leaf
    n: int

    @property
    def request_bytes(self) -> int:
        """Of a request's payload: row records and observations."""
        return self.n * (ROW.itemsize + self.leaf.nbytes)

    @property
    def reply_bytes(self) -> int:
        return self.n * ACTION.nbytes

    @property
    def frames(self) -> tuple[list[int], list[int]]:
        """Bytes of each frame of a STEP and of its ACTIONS."""
        step, actions = encode(Kind.STEP, RUN, 0, 10_000, self.n, self.n), encode(Kind.ACTIONS, RUN, 0, 10_000)
        return [len(step), self.n * ROW.itemsize, self.n * self.leaf.nbytes], [len(actions), self.reply_bytes]


LARGE = Messages(Leaf("observation", "box", "uint8", (84, 84, 4)), 16)
SMALL = Messages(Leaf("observation", "box", "float32", (4,)), 1)
SINGLE = Messages(Leaf("observation", "box", "uint8", (84, 84)), 16)


class Case(NamedTuple):
    """A metric: what seedmq sends, what the baselines send, and how often a request counts."""

    figure: str
    unit: str
    ours: Messages
    theirs: Messages
    each: int = 1


CASES = (
    Case("large.requests_per_second", "requests/s", LARGE, LARGE),
    Case("small.requests_per_second", "requests/s", SMALL, SMALL),
    Case("atari.environment_steps_per_second", "environment steps/s", SINGLE, LARGE, SINGLE.n),
)


@contextmanager
def metrics() -> Iterator[list[Metric]]:
    yield [_metric(case, placement) for placement in ("embedded", "process") for case in CASES]


def _metric(case: Case, placement: str) -> Metric:
    prefix = "transport." if placement == "embedded" else "transport.process."
    baselines: dict[str, Measure] = {
        "grpcio": Peer("grpcio", partial(_grpcio, case, "threads")),
        "grpcio_async": Peer("grpcio", partial(_grpcio, case, "async")),
    }
    if placement == "embedded":
        baselines["pyzmq"] = partial(_pyzmq, case)
    else:
        baselines["relay"] = partial(_relay, case)
    return Metric(prefix + case.figure, case.unit, partial(_seedmq, case, placement), baselines)


def _seedmq(case: Case, placement: str, seconds: float) -> float:
    leaf, n = case.ours
    spaces = Spaces((leaf,), ACTION)
    config = Config(
        environment=EnvironmentSection(id="none"),
        workers=WorkersSection(count=CLIENTS, envs=n, groups=1),
        learner=LearnerSection(slots=CLIENTS * n),
    )
    with (
        placed(config, placement) as config,
        serving(config, spaces, Zeros(ACTION), layout_of(leaf, 1, 1), collects=False) as requests,
        clients(config, Still, [(spaces, n)] * CLIENTS) as check,
    ):
        requests.wait_for(CLIENTS, check)
        return case.each * requests.rate(seconds, check) / n


def _grpcio(case: Case, server: str, seconds: float) -> float:
    words = ["--request", str(case.theirs.request_bytes), "--reply", str(case.theirs.reply_bytes)]
    words += ["--clients", str(CLIENTS), "--seconds", str(seconds), "--server", server]
    found = harness.run_peer("grpcio", "transport.py", words, seconds + 2 * START_SECONDS)
    return case.each * float(found["requests_per_second"])


def _pyzmq(case: Case, seconds: float) -> float:
    request, reply = [case.theirs.request_bytes], [case.theirs.reply_bytes]
    return case.each * lockstep.measure(request, reply, CLIENTS, relayed=False, seconds=seconds)


def _relay(case: Case, seconds: float) -> float:
    request, reply = case.ours.frames
    return case.each * lockstep.measure(request, reply, CLIENTS, relayed=True, seconds=seconds)
