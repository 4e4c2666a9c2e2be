"""gymnasium spaces as ``pipeline.spaces.Spaces``, and observations as a list of leaves in the same order.

Leaves are matched by key, never by the order in which an environment happens to build its dictionaries.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from pipeline.errors import SpaceError
from pipeline.spaces import DTYPES, MAX_LEAVES, MAX_RANK, Leaf, Spaces

SUPPORTED = (
    "observations: Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these; actions: Discrete, Box"
)
_WRAPPER = "set environment.wrappers to one ([package.module:callable]) that"
_KNOWN_WRAPPERS = {"minigrid": "minigrid.wrappers:ImgObsWrapper"}
"""By the package of an observation space that only it has: its own wrapper that leaves that out."""
_MOST_COMBINATIONS = 1024
"""Of several discrete actions, as values of one."""

Path = tuple[Any, ...]


def spaces_of(observation_space: Any, action_space: Any) -> Spaces:
    """Describes the spaces of one environment.

    Raises:
        SpaceError: a space that is not supported; the message names the leaf and lists what works.
    """
    found = [_observation_leaf(name(path, "observation"), space) for path, space in _walk(observation_space, ())]
    if not 0 < len(found) <= MAX_LEAVES:
        way_out = "joins some" if found else "adds one"
        raise SpaceError(f"an observation has 1 to {MAX_LEAVES} leaves, not {len(found)}: {_WRAPPER} {way_out}")
    names = [leaf.path for leaf in found]
    for path in names:
        if names.count(path) > 1:
            raise SpaceError(
                f"two observation leaves are named {path!r}: keys may not contain '/': {_WRAPPER} renames them"
            )
    return Spaces(tuple(found), _action_leaf(action_space))


def leaf_paths(observation_space: Any) -> tuple[Path, ...]:
    """Keys that lead to each leaf, in the order of ``Spaces.observation``; ``((),)`` for a flat space."""
    return tuple(path for path, _ in _walk(observation_space, ()))


def flatten(observation: Any, paths: tuple[Path, ...]) -> list[Any]:
    """The leaves of one observation, or of a vector environment's (each with a leading ``[n]``), in order.

    Raises:
        KeyError, IndexError, TypeError: the observation lacks a leaf.
    """
    if paths == ((),):
        return [observation]
    leaves = []
    for path in paths:
        value = observation
        for key in path:
            value = value[key]
        leaves.append(value)
    return leaves


def name(path: Path, flat: str) -> str:
    """A leaf's name: its keys joined by ``/``; ``flat`` where the space is not nested."""
    return "/".join(str(key) for key in path) if path else flat


def _walk(space: Any, path: Path) -> list[tuple[Path, Any]]:
    if isinstance(space, gym.Dict):
        keys = sorted(space.spaces, key=str)
        return [leaf for key in keys for leaf in _walk(space.spaces[key], (*path, key))]
    if isinstance(space, gym.Tuple):
        return [leaf for i, part in enumerate(space.spaces) for leaf in _walk(part, (*path, i))]
    return [(path, space)]


def _observation_leaf(path: str, space: Any) -> Leaf:
    if isinstance(space, gym.Discrete):
        return _discrete(path, space)
    kinds = {gym.Box: "box", gym.MultiDiscrete: "multi_discrete", gym.MultiBinary: "multi_binary"}
    for kind, word in kinds.items():
        if isinstance(space, kind):
            return _checked(Leaf(path, word, np.dtype(space.dtype).name, tuple(int(x) for x in space.shape)))
    raise _refusal(f"observation {path!r}", space, _way_out_of_observation(space))


def _action_leaf(space: Any) -> Leaf:
    if isinstance(space, gym.Discrete):
        return _discrete("action", space)
    if isinstance(space, gym.Box):
        low, high = (tuple(float(x) for x in np.ravel(bound)) for bound in (space.low, space.high))
        shape = tuple(int(x) for x in space.shape)
        return _checked(Leaf("action", "box", np.dtype(space.dtype).name, shape, low=low, high=high))
    raise _refusal("the action", space, _way_out_of_action(space))


def _refusal(what: str, space: Any, way_out: str) -> SpaceError:
    return SpaceError(f"{what} is a {type(space).__name__} space, which is not supported: {way_out}; {SUPPORTED}")


def _way_out_of_observation(space: Any) -> str:
    package = type(space).__module__.partition(".")[0]
    if package in _KNOWN_WRAPPERS:
        return f"set environment.wrappers to [{_KNOWN_WRAPPERS[package]}], which leaves it out"
    if isinstance(space, gym.Text):
        return f"{_WRAPPER} leaves it out, or encodes the text as numbers in a Box"
    if isinstance(space, (gym.Sequence, gym.Graph)):
        return f"{_WRAPPER} leaves it out, or pads it to a Box of fixed shape"
    return f"{_WRAPPER} leaves it out, or turns it into a Box"


def _way_out_of_action(space: Any) -> str:
    if isinstance(space, (gym.MultiDiscrete, gym.MultiBinary)):
        sizes = [int(x) for x in np.ravel(space.nvec)] if isinstance(space, gym.MultiDiscrete) else [2] * _size(space)
        combinations = math.prod(sizes)
        if combinations <= _MOST_COMBINATIONS:
            return f"{_WRAPPER} takes a Discrete({combinations}), one value for each combination"
        return (
            f"{_WRAPPER} takes a Box of {len(sizes)} numbers and rounds them, or a Discrete of the combinations needed"
        )
    if isinstance(space, (gym.Dict, gym.Tuple)):
        return f"{_WRAPPER} takes one Discrete or one Box for all its parts"
    return f"{_WRAPPER} takes a Discrete or a Box"


def _size(space: Any) -> int:
    return math.prod(int(x) for x in space.shape)


def _discrete(path: str, space: Any) -> Leaf:
    return _checked(Leaf(path, "discrete", np.dtype(space.dtype).name, (), n=int(space.n), start=int(space.start)))


def _checked(leaf: Leaf) -> Leaf:
    if leaf.dtype not in DTYPES or len(leaf.shape) > MAX_RANK:
        raise SpaceError(
            f"space at {leaf.path!r} has dtype {leaf.dtype} and shape {leaf.shape}: {_WRAPPER} casts or reshapes it; "
            f"at most {MAX_RANK} dimensions, and dtypes: {', '.join(DTYPES)}"
        )
    return leaf
