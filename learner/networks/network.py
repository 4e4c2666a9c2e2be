"""The interface of a network, and the stable names of its variables.

A network of one's own is a subclass, named in the configuration as ``package.module:Class`` and constructed as
``Class(spaces, distribution, frame_stack, seed, **network.kwargs)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from learner.inputs import Inputs, Outputs
from learner.networks.normalizer import Normalizer

State = tuple[tf.Tensor, ...]


class Network(tf.Module):
    """A policy and a value function, with recurrent state or without.

    Variables are ``tf.Variable`` (or those of Keras layers), all made by the constructor or by the first call of
    ``step``, attributes of the network or of modules, layers, lists and dictionaries that are. Define ``step``,
    ``unroll`` or both: each default stands on the other.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.step is Network.step and cls.unroll is Network.unroll:
            raise TypeError(f"{cls.__name__} defines neither step nor unroll")

    uses_previous_action: bool = True
    """False: acting keeps no previous action for it, and ``Inputs.previous_action`` is meaningless."""

    normalizer: Normalizer | None = None
    """What the network normalizes its observations by; the trainer brings it up to date."""

    @property
    def value_output(self) -> tuple[tf.Variable, tf.Variable] | None:
        """Kernel and bias of the linear layer whose only output is the value: adjusted where the scale of values
        changes. None: what the layer gives means another value then, until it has learnt."""
        return None

    def initial_state(self, batch: int) -> State:
        """Recurrent state at the start of an episode: float32 ``[batch, ...]`` per leaf; ``()`` without recurrence."""
        del batch
        return ()

    def step(self, inputs: Inputs, state: State) -> tuple[Outputs, State]:
        """One row per environment, ``[B, ...]``; where ``inputs.first`` the initial state replaces the one fed."""
        first = Inputs(*tf.nest.map_structure(lambda x: x[None], tuple(inputs)))
        outputs, state = self.unroll(first, state)
        return Outputs(outputs.policy[0], outputs.value[0]), state

    def unroll(self, inputs: Inputs, state: State) -> tuple[Outputs, State]:
        """Rows 0..T, ``[T+1, B, ...]``, from the ``state`` carried into row 0; resets inside where ``first``.

        Equal to T+1 calls of ``step``, which is what this default does.
        """
        rows = []
        for t in range(inputs.first.shape[0]):
            row = Inputs(*tf.nest.map_structure(lambda x, t=t: x[t], tuple(inputs)))
            outputs, state = self.step(row, state)
            rows.append(outputs)
        return Outputs(tf.stack([x.policy for x in rows]), tf.stack([x.value for x in rows])), state


def state_shapes(network: Network) -> tuple[tuple[int, ...], ...]:
    """Shapes of the recurrent state leaves without the batch, as ``UnrollLayout`` takes them."""
    return tuple(tuple(leaf.shape[1:]) for leaf in network.initial_state(1))


def named_variables(network: tf.Module) -> list[tuple[str, tf.Variable]]:
    """Every variable once, under the path of attributes that leads to it, in order of construction.

    The names are the keys of checkpoints: they do not depend on the strategy, the device or the process.
    """
    seen: set[int] = set()
    return list(_walk(network, "", seen))


def _walk(node: Any, path: str, seen: set[int]) -> Iterator[tuple[str, tf.Variable]]:
    if isinstance(node, tf.Variable) or id(node) in seen:
        if id(node) not in seen:
            seen.add(id(node))
            yield path, node
        return
    seen.add(id(node))
    for key, child in _children(node):
        yield from _walk(child, f"{path}/{key}" if path else key, seen)


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, tf.keras.layers.Layer):
        # Numbered: Keras' own paths depend on how many layers the process has made before.
        yield from ((f"{i}_{weight.name}", weight.value) for i, weight in enumerate(node.weights))
    elif isinstance(node, tf.Module):
        yield from ((key, child) for key, child in vars(node).items() if not key.startswith("_self_"))
    elif isinstance(node, Mapping):
        yield from ((str(key), child) for key, child in node.items())
    elif isinstance(node, list | tuple):
        yield from ((str(i), child) for i, child in enumerate(node))
