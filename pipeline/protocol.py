"""The wire protocol: message kinds, encoding and the bounds on what is accepted. ``docs/protocol.md`` is its document.

A message is a list of frames. Frame 0 is a msgpack array ``[VERSION, kind, *fields]`` of at most ``MAX_HEAD_BYTES``;
the frames after it are raw little-endian buffers, never looked into on the way. No pickle, no nesting deeper than
``MAX_DEPTH``, nothing is allocated before its length is checked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import msgpack

from pipeline.errors import ProtocolError

VERSION = 2
MAX_HEAD_BYTES = 1 << 20
MAX_ITEMS = 1 << 16
MAX_DEPTH = 8
MAX_FRAMES = 1 << 14
MAX_GROUPS = 64


class Kind(IntEnum):
    """Message kinds. Fields after ``[version, kind]`` stand beside each; run, group, sequence, rows are integers."""

    # worker -> broker
    HELLO = 1  # hello: see Hello
    STEP = 2  # run, group, sequence, rows, replies; frames: ROW records, then one buffer per observation leaf
    HEARTBEAT = 3  # run, report: see Report
    BYE = 4  # run, report
    STATUS = 5  # (nothing)
    # broker -> worker
    WELCOME = 17  # run, {"worker": leased index, "seed": int, "heartbeat_seconds": x, "lease_seconds": x, "anew": bool}
    WAIT = 18  # run, reason: nothing wrong, say HELLO again in a second
    REFUSED = 19  # run, reason, cause: for good; see Cause
    ACTIONS = 20  # run, group, sequence; frame: env actions [replies, *shape] in the action leaf's dtype
    ALIVE = 21  # run, state ("serving" | "held_back" | "no_learner"), reason
    GOODBYE = 22  # run: BYE was booked
    STATUS_REPLY = 23  # status mapping
    UNKNOWN = 24  # run: the broker does not know this run (it restarted, or the lease ran out): say HELLO again
    DRAIN = 25  # run, reason: stop stepping, deliver what is taken, say BYE, exit 0
    # learner -> broker
    READY = 33  # see pipeline.routing.learners.Ready: also the learner's heartbeat
    CREDIT = 34  # rows: how many more rows the inference loop can take
    REPLIES = 35  # [[worker, run, group, sequence], ...]; one frame each
    ADMIT = 36  # worker, run, seed of its first environment, anew: a run that has stepped before begins new episodes
    REJECT = 37  # worker, run, reason, cause: WAIT if cause is NOT_YET, else REFUSED
    PUBLISH = 38  # status mapping: the learner's part of STATUS_REPLY
    DISMISS = 39  # reason: DRAIN to every worker
    # broker -> learner
    BATCH = 49  # [[worker, run, group, sequence, rows, replies, frames], ...]; all their frames in order
    JOIN = 50  # worker, run, hello
    LEFT = 51  # worker, run, reason, report
    REPORT = 52  # worker, run, report: a worker's heartbeat, passed on
    BROKER = 53  # {"broker", "session", "workers", "busy_percent"}: answers READY; another session voids all credit


_KINDS = {int(kind): kind for kind in Kind}
_CONTAINERS = frozenset({list, dict})


class Cause(IntEnum):
    """Why a worker is turned away. What is for good is the worker's exit code."""

    NOT_YET = 0  # it may ask again
    CONFIGURATION = 2  # its environment or its settings do not go with the learner's
    SESSION = 3  # what it said breaks the protocol, or another run took its place


class Message(NamedTuple):
    """A decoded message: fields as msgpack gave them, buffers untouched."""

    kind: Kind
    fields: list[Any]
    buffers: list[Any]


class _Packer(threading.local):
    """Each thread's own: it keeps its buffer."""

    def __init__(self) -> None:
        self.pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True).pack


_packer = _Packer()


def encode(kind: Kind, *fields: Any) -> bytes:
    """Frame 0 of a message."""
    return _packer.pack((VERSION, kind, *fields))


def decode(frames: list[Any]) -> Message:
    """Checks and opens frame 0; the other frames stay as they are.

    Args:
        frames: ``bytes``, ``memoryview`` or anything else with the buffer protocol.

    Raises:
        ProtocolError: empty, oversized, malformed, of another version or of an unknown kind.
    """
    if not 0 < len(frames) <= MAX_FRAMES:
        raise ProtocolError(f"a message has 1 to {MAX_FRAMES} frames, not {len(frames)}")
    head = unpack(frames[0])
    if not isinstance(head, list) or len(head) < 2:
        raise ProtocolError("frame 0 is not an array [version, kind, ...]")
    if head[0] != VERSION:
        raise ProtocolError(f"protocol version {str(head[0])[:20]!r} here meets version {VERSION}")
    kind = _KINDS.get(head[1]) if type(head[1]) is int else None
    if kind is None:
        raise ProtocolError(f"unknown message kind {str(head[1])[:20]!r}")
    return Message(kind, head[2:], frames[1:])


def unpack(head: Any) -> Any:
    """One bounded msgpack object.

    Raises:
        ProtocolError: longer, wider or deeper than the bounds, or not msgpack.
    """
    if len(head) > MAX_HEAD_BYTES:
        raise ProtocolError(f"frame 0 has {len(head)} bytes, at most {MAX_HEAD_BYTES} are taken")
    try:
        value = msgpack.unpackb(
            head,
            raw=False,
            strict_map_key=True,
            max_str_len=MAX_HEAD_BYTES,
            max_bin_len=MAX_HEAD_BYTES,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(
            f"frame 0 is not the msgpack we take: {type(error).__name__}: {str(error)[:100]}"
        ) from error
    if _deeper(value, MAX_DEPTH):
        raise ProtocolError(f"frame 0 is nested deeper than {MAX_DEPTH}")
    return value


def _deeper(value: Any, depth: int) -> bool:
    if type(value) not in _CONTAINERS:
        return False
    if depth == 0:
        return True
    items = value.values() if type(value) is dict else value
    if _CONTAINERS.isdisjoint(map(type, items)):  # this is on the path of every message
        return False
    return any(type(x) in _CONTAINERS and _deeper(x, depth - 1) for x in items)


def fields_of(message: Message, *types: type | tuple[type, ...]) -> list[Any]:
    """The message's fields, each checked against its type; more fields than named are refused.

    Raises:
        ProtocolError: too few, too many or of another type. ``bool`` is not taken for ``int``.
    """
    if tuple(map(type, message.fields)) == types:  # on the path of every message
        return message.fields
    if len(message.fields) != len(types):
        raise ProtocolError(f"{message.kind.name} has {len(types)} fields, not {len(message.fields)}")
    for position, (value, kind) in enumerate(zip(message.fields, types, strict=True)):
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise ProtocolError(f"field {position} of {message.kind.name} is a {type(value).__name__}")
    return message.fields


def are_integers(item: Any, count: int) -> bool:
    """Whether it is a list of so many integers."""
    return type(item) is list and [*map(type, item)] == [int] * count


_HELLO_TYPES = {
    "worker_id": str,
    "run": int,
    "mode": str,
    "spaces": dict,
    "groups": list,
    "config_hash": str,
    "worker": int,
    "reports": dict,
    "info": dict,
}


class Hello(NamedTuple):
    """What a worker says of itself, once.

    Attributes:
        worker_id: Logical name; a newer run of the same name takes over.
        run: Random id of this process's environments, 0 < run < 2^63.
        mode: ``train`` or ``eval``.
        spaces: ``Spaces.to_wire()`` of one environment.
        groups: Environments of each env group.
        config_hash: Hash of what learner and worker must agree upon; empty where unknown.
        worker: Index leased before (claimed again after a broker restart), or -1.
        reports: Reports of earlier runs of this worker that died without a BYE: run -> Report.
        info: Host, pid, versions; shown in status.
    """

    worker_id: str
    run: int
    mode: str
    spaces: dict[str, Any]
    groups: list[int]
    config_hash: str
    worker: int
    reports: dict[str, Any]
    info: dict[str, Any]

    def to_wire(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_wire(cls, data: Any) -> Hello:
        """The inverse of ``to_wire`` for untrusted data; ``spaces`` are checked by ``Spaces.from_wire``.

        Raises:
            ProtocolError: a field is missing, unknown or impossible.
        """
        if not isinstance(data, dict) or set(data) != set(cls._fields):
            raise ProtocolError(f"a HELLO has the keys {', '.join(cls._fields)}")
        hello = cls(**data)
        wrong = [
            name
            for name, kind in _HELLO_TYPES.items()
            if not isinstance(data[name], kind) or isinstance(data[name], bool)
        ]
        if wrong:
            raise ProtocolError(f"HELLO: {wrong[0]} is a {type(data[wrong[0]]).__name__}")
        if not 0 < hello.run < 2**63 or not 0 < len(hello.worker_id) <= 200 or hello.mode not in ("train", "eval"):
            raise ProtocolError("HELLO: impossible run, worker_id or mode")
        if not hello.worker_id.isprintable():
            raise ProtocolError("HELLO: worker_id has control characters")
        if not 0 < len(hello.groups) <= MAX_GROUPS or not all(type(n) is int and 0 < n <= 2**14 for n in hello.groups):
            raise ProtocolError(f"HELLO: 1 to {MAX_GROUPS} groups of 1 to 16384 environments")
        if len(hello.reports) > 64:
            raise ProtocolError("HELLO: more than 64 reports")
        return hello


class GroupReport(NamedTuple):
    """An env group's part of a report.

    Attributes:
        environments: So many, in the order of their offsets within the worker.
        sent: Transitions in all STEPs so far: what the running indices of the last one's rows add up to.
        last: Of these, in the last STEP: what never arrives where the run ends before that does.
    """

    environments: int
    sent: int
    last: int


class Report(NamedTuple):
    """A worker run's counters, cumulative since the run began, and the worker's faults since it was started.

    ``taken`` is what ``dropped``, ``unsent`` and the ``sent`` of all groups add up to.

    Attributes:
        taken: Valid transitions taken by the environments (the ledger's ``taken``).
        dropped: Transitions dropped at the worker: reason -> number.
        masked: Rows that are no valid transition's start: final and abandoned ones.
        faults: Environment faults: kind (``env_errors``, ``env_hangs``, ``non_finite``) -> number, over all runs of the
            worker so far.
        message: The last fault in words, of whatever run.
        busy_percent: Share of the time since the last report in which it did not wait for actions.
        unsent: Transitions taken that are in no STEP: by the others of a group in a step that one environment did not
            come back from, or in a step that ended when the run was over.
        groups: See ``GroupReport``.
    """

    taken: int = 0
    dropped: Mapping[str, int] = MappingProxyType({})
    masked: int = 0
    faults: Mapping[str, int] = MappingProxyType({})
    message: str = ""
    busy_percent: int = 0
    unsent: int = 0
    groups: tuple[GroupReport, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        mappings = {"dropped": dict(self.dropped), "faults": dict(self.faults)}
        return {**self._asdict(), **mappings, "groups": [list(group) for group in self.groups]}

    @classmethod
    def from_wire(cls, data: Any) -> Report:
        """The inverse of ``to_wire`` for untrusted data.

        Raises:
            ProtocolError: a field is missing, unknown or impossible.
        """
        if not isinstance(data, dict) or set(data) != set(cls._fields):
            raise ProtocolError(f"a report has the keys {', '.join(cls._fields)}")
        groups = data["groups"]
        if not isinstance(groups, list) or len(groups) > MAX_GROUPS or not all(are_integers(x, 3) for x in groups):
            raise ProtocolError(f"report: groups are up to {MAX_GROUPS} lists of three integers")
        counts = [data["taken"], data["masked"], data["unsent"], *(number for group in groups for number in group)]
        for name in ("dropped", "faults"):
            if not isinstance(data[name], dict) or len(data[name]) > 32:
                raise ProtocolError(f"report: {name} is not a small mapping")
            counts += data[name].values()
        if not all(type(n) is int and 0 <= n < 2**62 for n in counts) or not isinstance(data["message"], str):
            raise ProtocolError("report: counters are integers from 0, message is text")
        if type(data["busy_percent"]) is not int or not 0 <= data["busy_percent"] <= 100:
            raise ProtocolError("report: busy_percent is an integer from 0 to 100")
        return cls(**data)._replace(message=data["message"][:2000], groups=tuple(GroupReport(*x) for x in groups))
