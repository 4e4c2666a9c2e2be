"""Readers of what others write, under generated and kept inputs: refused by name or taken, and nothing else.

The same examples in each run. ``make fuzz`` looks further, guided by coverage; what it finds goes into
``tests/fuzz/corpus``.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.config import schema
from pipeline.config.yaml_text import scalar
from pipeline.protocol import Kind, Report, decode, encode
from pipeline.store.codec import Codec, decode_whole
from pipeline.store.codec import encode as encode_unroll
from tests.fuzz import mutations
from tests.fuzz.mutations import FIELDS, HOW
from tests.fuzz.targets import LAYOUT, TARGETS, joined
from tests.unit.routing_net import step_frames

pytestmark = pytest.mark.unit

CORPUS = sorted(path for path in (Path(__file__).parents[1] / "fuzz" / "corpus").rglob("*") if path.is_file())
EXAMPLES = 150
repeated = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
randoms = st.randoms(use_true_random=False)
kinds = st.sampled_from(sorted(FIELDS))
hows = st.sampled_from(HOW)
plain = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=30)
trees = st.recursive(
    plain | st.binary(max_size=30),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kept_inputs(path: Path) -> None:
    taken = TARGETS[path.parent.name](path.read_bytes())
    assert taken == path.name.startswith("valid"), "its name says whether it is taken"


def test_every_target_has_inputs_of_both_sorts() -> None:
    kept = {(path.parent.name, path.name.startswith("valid")) for path in CORPUS}
    assert kept == {(name, valid) for name in TARGETS for valid in (True, False)}


@repeated
@given(randoms, kinds, hows)
def test_spoilt_messages(rng: Random, kind: Kind, how: str) -> None:
    frames = mutations.message(rng, kind, FIELDS[kind], [bytes(96)], how)
    taken = TARGETS["protocol"](joined([frame[:65535] for frame in frames]))
    assert not (taken and how == "truncated")


@repeated
@given(kinds, st.lists(trees, max_size=6))
def test_any_fields_under_any_kind(kind: Kind, fields: list[Any]) -> None:
    TARGETS["protocol"](joined([msgpack.packb([1, int(kind), *fields], use_bin_type=True)]))


@repeated
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    for name in ("protocol", "request", "unroll"):
        TARGETS[name](data)
    TARGETS["protocol"](joined([data]))


@repeated
@given(randoms, st.lists(st.tuples(kinds, hows), min_size=1, max_size=8))
def test_spoilt_conversations(rng: Random, messages: list[tuple[Kind, str]]) -> None:
    """Of a worker that is served (run 1) and a learner, any of their messages spoilt."""
    spoilt = []
    for kind, how in messages:
        fields, buffers = FIELDS[kind], [bytes(64), bytes(32)]
        if kind in (Kind.STEP, Kind.HEARTBEAT, Kind.BYE):
            fields = [1, *fields[1:]]
        spoilt.append(joined([x[:20000] for x in mutations.message(rng, kind, fields, buffers, how)][:8]))
    TARGETS["router"](joined(spoilt))


@repeated
@given(randoms, st.integers(2, 4))
def test_spoilt_rows(rng: Random, rows: int) -> None:
    _, *buffers = step_frames(1, 0, 0, rows)
    TARGETS["request"](joined([mutations.flipped(rng, frame) for frame in buffers]))


@repeated
@given(st.integers(0, 2**62), st.integers(0, 2**62), st.dictionaries(st.text(max_size=20), st.integers(0, 2**62 - 1)))
def test_reports_come_back(taken: int, masked: int, dropped: dict[str, int]) -> None:
    report = Report(taken % 2**62, dict(list(dropped.items())[:32]), masked % 2**62, {}, "x")
    message = decode([encode(Kind.BYE, 1, report.to_wire())])
    assert Report.from_wire(message.fields[1]) == report


@repeated
@given(st.integers(0, 2**32), st.sampled_from(Codec))
def test_unrolls_come_back(seed: int, kind: Codec) -> None:
    record = np.random.default_rng(seed).integers(0, 2 + seed % 255, LAYOUT.nbytes).astype(np.uint8)
    opened = np.empty((1, LAYOUT.nbytes), np.uint8)
    assert decode_whole([encode_unroll(record, LAYOUT, kind)], LAYOUT, opened) == [None]
    assert np.array_equal(opened[0], record)


@repeated
@given(randoms, st.sampled_from(Codec), hows)
def test_spoilt_unrolls(rng: Random, kind: Codec, how: str) -> None:
    whole = encode_unroll(np.arange(LAYOUT.nbytes).astype(np.uint8), LAYOUT, kind)
    spoilt = mutations.payload(rng, whole, LAYOUT, how)
    assert not TARGETS["unroll"](spoilt) or how == "structural" or spoilt == whole


@settings(repeated, max_examples=60)
@given(st.dictionaries(st.sampled_from([".".join(path) for path in schema.leaves()]), trees, max_size=4))
def test_any_values_of_any_keys(values: dict[str, Any]) -> None:
    lines = ["environment: {id: none}"]
    for key, value in values.items():
        *sections, name = key.split(".")
        opening = "".join(f"{section}: {{" for section in sections)
        lines.append(f"{opening}{name}: {_yaml(value)}{'}' * len(sections)}")
    TARGETS["config"]("\n".join(lines).encode(errors="replace"))
    overrides = [f"{key}={_yaml(value)}" for key, value in values.items()]
    TARGETS["settings"]("\n".join(overrides).encode(errors="replace"))


def _yaml(value: Any) -> str:
    """One line of it; what YAML cannot say as its Python text."""
    try:
        return scalar(value)
    except (ValueError, TypeError):
        return repr(value)


@settings(repeated, max_examples=30)
@given(randoms, st.sampled_from([path for path in CORPUS if path.parent.name in ("config", "settings")]))
def test_spoilt_configurations(rng: Random, path: Path) -> None:
    data = path.read_bytes()
    at = rng.randrange(len(data) + 1)
    for spoilt in (mutations.flipped(rng, data), data[:at], data[:at] + rng.choice(NASTY) + data[at:]):
        TARGETS[path.parent.name](spoilt)


NASTY = [b"\t", b"\0", b"\xff", b"{", b"[" * 3000, b"&a ", b"*a", b"!!python/object:os.system ", b": ", b"\n- ", b"'"]
NASTY += [b"%YAML 9\n", b"---\n", b"9" * 5000, b"1e999", b"\xe2\x80\xa8", b"? ", b"| \n", b"<<: {}\n", b"0x", b"-.inf"]
