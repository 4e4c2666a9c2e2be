"""gymnasium spaces as ``pipeline.spaces.Spaces``, and observations as a list of leaves in the same order.

Leaves are matched by key, never by the order in which an environment happens to build its dictionaries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces as gym

from pipeline.errors import SpaceError
from pipeline.spaces import DTYPES, MAX_LEAVES, MAX_RANK, Leaf, Spaces

SUPPORTED = (
    "observations: Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these; actions: Discrete, Box"
)

Path = tuple[Any, ...]


def spaces_of(observation_space: Any, action_space: Any) -> Spaces:
    """Describes the spaces of one environment.

    Raises:
        SpaceError: a space that is not supported; the message names the leaf and lists what works.
    """
    found = [_observation_leaf(name(path, "observation"), space) for path, space in _walk(observation_space, ())]
    if not 0 < len(found) <= MAX_LEAVES:
        raise SpaceError(f"an observation has 1 to {MAX_LEAVES} leaves, not {len(found)}")
    names = [leaf.path for leaf in found]
    for path in names:
        if names.count(path) > 1:
            raise SpaceError(f"two observation leaves are named {path!r}: keys may not contain '/'")
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
    raise SpaceError(f"observation {path!r} is a {type(space).__name__} space, which is not supported; {SUPPORTED}")


def _action_leaf(space: Any) -> Leaf:
    if isinstance(space, gym.Discrete):
        return _discrete("action", space)
    if isinstance(space, gym.Box):
        low, high = (tuple(float(x) for x in np.ravel(bound)) for bound in (space.low, space.high))
        shape = tuple(int(x) for x in space.shape)
        return _checked(Leaf("action", "box", np.dtype(space.dtype).name, shape, low=low, high=high))
    raise SpaceError(f"the action is a {type(space).__name__} space, which is not supported; {SUPPORTED}")


def _discrete(path: str, space: Any) -> Leaf:
    return _checked(Leaf(path, "discrete", np.dtype(space.dtype).name, (), n=int(space.n), start=int(space.start)))


def _checked(leaf: Leaf) -> Leaf:
    if leaf.dtype not in DTYPES or len(leaf.shape) > MAX_RANK:
        raise SpaceError(f"space at {leaf.path!r} has dtype {leaf.dtype} and shape {leaf.shape}; dtypes: {DTYPES}")
    return leaf
