"""What a value was meant to be that is written as another type: taken where there is no doubt, else said."""

from __future__ import annotations

from typing import Any

from pipeline.config import yaml_text

_EXACT = 2**53
"""Up to here a float says which integer is meant."""


def whole(value: Any) -> Any:
    """An integer that is written as a float, ``1e6``, as the integer; so in a list. Anything else as it is."""
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and abs(value) <= _EXACT and value.is_integer() else value


def as_list(value: Any) -> str:
    """How a single value, or several with commas between, is written as a list; nothing where it is none of these."""
    if isinstance(value, str):
        items = [_number_or_text(part.strip()) for part in value.split(",") if part.strip()]
    else:
        items = [value] if isinstance(value, int | float) else []
    return f"; write {yaml_text.scalar(items)}" if items else ""


def _number_or_text(text: str) -> Any:
    try:
        return yaml_text.parse(text)
    except ValueError:
        return text
