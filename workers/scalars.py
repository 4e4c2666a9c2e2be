"""What environments return beside observations: rewards, flags and lives are taken as numbers, or refused by name.

An array of one element, of whatever shape, is a number. Nothing else is guessed: an array of several, None, text, a
complex number or any other object is refused with its type and shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import EnvironmentFailure

CONVENTION = "gymnasium's convention: reset returns (observation, info), step returns five values"
Array = npt.NDArray[Any]

REAL, INTEGER, FLAG = "biuf", "iu", "biu"  # kinds of dtypes
_WANTED = {REAL: "one real number", INTEGER: "one integer", FLAG: "True or False"}


class BadResult(Exception):
    """What an environment returned cannot be what it stands for; an environment fault."""


class BadObservation(BadResult):
    """An observation that does not fit its space."""


def parts_of(environment: Any, method: str, result: Any, number: int) -> Any:
    """The parts of what ``reset`` (2) or ``step`` (5) returned.

    Raises:
        EnvironmentFailure: it follows another convention, such as that of Gym before 0.26.
    """
    if not isinstance(result, tuple) or len(result) != number:
        raise unconventional(environment, method, words(result))
    return result


def unconventional(environment: Any, method: str, what: str) -> EnvironmentFailure:
    """The error of an environment whose ``reset`` or ``step`` follows another convention."""
    return EnvironmentFailure(f"{type(environment.unwrapped).__name__}.{method} returned {what} ({CONVENTION})")


def reward_of(value: Any) -> float:
    """One environment's reward.

    Raises:
        BadResult: it is not one real number.
    """
    return float(value if isinstance(value, (float, np.floating)) else _one("reward", value, REAL))


def flag_of(name: str, value: Any) -> bool:
    """One environment's ``terminated`` or ``truncated``.

    Raises:
        BadResult: it is neither a boolean, nor the integer 0 or 1.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    return bool(_checked_flags(name, _one(name, value, FLAG), value))


def lives_of(info: Any) -> int:
    """The lives that one environment's info tells.

    Raises:
        BadResult: it tells none, or no integer.
    """
    return int(_one("info['lives']", _lives(info), INTEGER))


def rewards_of(value: Any, n: int) -> Array:
    """A vector environment's rewards ``[n]``, a copy in their own dtype.

    Raises:
        BadResult: they are not n real numbers.
    """
    return _column("reward", value, n, REAL)


def flags_of(name: str, value: Any, n: int) -> npt.NDArray[np.bool_]:
    """A vector environment's ``terminated`` or ``truncated``, bool ``[n]``, a copy.

    Raises:
        BadResult: they are neither booleans, nor integers 0 and 1.
    """
    column = _column(name, value, n, FLAG)
    flags: npt.NDArray[np.bool_] = column if column.dtype == np.bool_ else _checked_flags(name, column, value) != 0
    return flags


def all_lives_of(info: Any, n: int) -> npt.NDArray[np.int64]:
    """The lives that a vector environment's info tells, ``[n]``, a copy.

    Raises:
        BadResult: it tells none, or they are not n integers.
    """
    return _column("info['lives']", _lives(info), n, INTEGER).astype(np.int64)


def words(value: Any) -> str:
    """A value's type, and the shape and dtype of an array."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, (list, tuple)):
        return f"a {kind} of {len(value)}"
    return "None" if value is None else f"a value of type {kind}"


def _lives(info: Any) -> Any:
    if not isinstance(info, Mapping) or "lives" not in info:
        raise BadResult("info['lives'] is not there, which environment.life_loss = terminal goes by")
    return info["lives"]


def _one(name: str, value: Any, kinds: str) -> Any:
    array = _array(name, value, kinds)
    if array.size != 1:
        raise BadResult(f"{name} is {words(value)}, not {_WANTED[kinds]}")
    return array.item()


def _column(name: str, value: Any, n: int, kinds: str) -> Array:
    array = _array(name, value, kinds)
    if array.shape == (n,):
        return array.copy()
    if array.size != n or n not in (*array.shape, 1):
        raise BadResult(f"{name} is {words(value)}, not {_WANTED[kinds]} for each of {n} environments")
    return array.reshape(n).copy()


def _array(name: str, value: Any, kinds: str) -> Array:
    array: Array
    if type(value) is np.ndarray:
        array = value
    else:
        try:
            array = np.asarray(value)
        except Exception as error:  # an object of somebody else's: anything may come
            raise BadResult(f"{name} is {words(value)}, not {_WANTED[kinds]}: {error}") from error
    if array.dtype.kind not in kinds:
        raise BadResult(f"{name} is {words(value)}, not {_WANTED[kinds]}")
    return array


def _checked_flags(name: str, flags: Any, value: Any) -> Any:
    if np.any((flags != 0) & (flags != 1)):
        raise BadResult(f"{name} is {value!s:.50}, not {_WANTED[FLAG]}")
    return flags
