"""YAML: core-schema types, and text that reads back equal here and in YAML 1.1."""

import math
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.yaml_text import parse, scalar

pytestmark = pytest.mark.unit

texts = st.text(max_size=20) | st.sampled_from(["1e3", "no", "1:30", "2026-01-01", "0x1F", "~", "<<", "=", ".5", "010"])
numbers = st.integers() | st.floats(allow_nan=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(values)
def test_what_is_written_reads_back_equal(value: Any) -> None:
    text = scalar(value)
    assert "\n" not in text
    again = parse(text)
    assert again == value
    assert repr(again) == repr(value)
    assert yaml.safe_load(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1.5E+2", 150.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("1_000", 1000),
        ("010", 10),
        ("-3", -3),
        ("True", True),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("0x1F", "0x1F"),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        ("[1, a]", [1, "a"]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
    ],
)
def test_types_are_those_of_the_core_schema(text: str, value: object) -> None:
    assert parse(text) == value
    assert type(parse(text)) is type(value)


@pytest.mark.parametrize("text", ["9" * 5000, "\ud800", "a: b: c", "!x 1", "? [1]\n: 2"])
def test_what_is_no_value_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse(text)
