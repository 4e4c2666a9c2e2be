"""From settings to a network with all its variables."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import tensorflow as tf

from learner.distributions import Distribution
from learner.frame_stack import stacked_shape
from learner.inputs import Inputs, Outputs
from learner.networks.heads import ActorCriticHead, MakeHead
from learner.networks.network import Network
from learner.networks.torso import SMALLEST_PICTURE, is_image
from learner.networks.torso_network import CONVOLUTIONS, Convolutional, Mlp
from pipeline.config.network import NETWORKS, NetworkSection
from pipeline.errors import ConfigError
from pipeline.spaces import Spaces

HIDDEN = {"mlp": [64, 64], "nature_cnn": [512], "impala_deep": [256]}
"""``network.hidden``, where it is not set: of the papers."""


def build_network(
    spaces: Spaces,
    distribution: Distribution,
    settings: NetworkSection,
    frame_stack: int,
    seed: int = 1,
    *,
    head: MakeHead = ActorCriticHead,
) -> Network:
    """A network whose variables all exist, with values that depend on ``seed`` alone.

    ``head`` is what the algorithm needs; a class by import path brings its own. Call it under the scope of the strategy
    that is to hold the variables, with ``settings.precision`` chosen.

    Raises:
        ConfigError: settings that do not go together, an unknown class, or a network whose outputs are not as promised.
        SpaceError: observations that cannot be stacked.
    """
    network = _construct(spaces, distribution, settings, frame_stack, seed, head)
    _check(network, spaces, distribution, frame_stack)
    return network


def _construct(  # noqa: PLR0917
    spaces: Spaces, distribution: Distribution, settings: NetworkSection, frame_stack: int, seed: int, head: MakeHead
) -> Network:
    if ":" in settings.name:
        # Layers of Keras without a seed of their own draw from the global one.
        tf.keras.utils.set_random_seed(seed)
        made = _imported(settings.name)
        try:
            inspect.signature(made).bind(spaces, distribution, frame_stack, seed, **settings.kwargs)
        except TypeError as error:
            raise ConfigError(
                f"network.name = {settings.name!r} is made with (spaces, distribution, frame_stack, seed) and "
                f"network.kwargs = {settings.kwargs}, which it does not take: {error}"
            ) from error
        return made(spaces, distribution, frame_stack, seed, **settings.kwargs)
    name = settings.name if settings.name != "auto" else _chosen(spaces, frame_stack)
    core: dict[str, Any] = {
        "head": head,
        "lstm": settings.lstm,
        "previous_action": settings.previous_action,
        "previous_reward": settings.previous_reward,
        "normalize": settings.normalize_observations,
    }
    hidden = HIDDEN.get(name, []) if settings.hidden is None else settings.hidden
    if name == "mlp":
        return Mlp(
            spaces,
            distribution,
            frame_stack,
            seed,
            hidden=hidden,
            activation=settings.activation,
            separate_value=not settings.lstm if settings.separate_value is None else settings.separate_value,
            **core,
        )
    if settings.separate_value:
        raise ConfigError(f"network.separate_value is for mlp, not for {name!r}")
    return Convolutional(
        spaces,
        distribution,
        frame_stack,
        seed,
        name,
        hidden=hidden,
        precision=settings.precision,
        **core,
    )


def convolves(settings: NetworkSection, spaces: Spaces, frame_stack: int) -> bool:
    """Whether the network convolves pictures; of a class by import path, whether there are such as one would."""
    name = settings.name if settings.name in NETWORKS and settings.name != "auto" else _chosen(spaces, frame_stack)
    return name in CONVOLUTIONS


def _chosen(spaces: Spaces, frame_stack: int) -> str:
    """``network.name: auto``: convolutions where there is a picture that is large enough for them, else ``mlp``."""
    pictures = [stacked_shape(leaf, frame_stack) for leaf in spaces.observation if is_image(leaf)]
    return "nature_cnn" if pictures and all(min(shape[:2]) >= SMALLEST_PICTURE for shape in pictures) else "mlp"


def _imported(path: str) -> type[Network]:
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"network.name = {path!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Network)):
        raise ConfigError(f"network.name = {path!r} is not a subclass of learner.networks.network.Network")
    return found


def example_inputs(spaces: Spaces, distribution: Distribution, frame_stack: int, batch: int) -> Inputs:
    """Inputs ``[batch, ...]`` of zeros, all ``first``."""
    return Inputs(
        observation={
            leaf.path: tf.zeros([batch, *stacked_shape(leaf, frame_stack)], tf.dtypes.as_dtype(leaf.dtype))
            for leaf in spaces.observation
        },
        previous_action=tf.zeros([batch, *distribution.action_shape], distribution.action_dtype),
        previous_reward=tf.zeros([batch]),
        first=tf.ones([batch], tf.bool),
    )


def _check(network: Network, spaces: Spaces, distribution: Distribution, frame_stack: int) -> None:
    """One step, which makes what a lazy layer makes late, and shows whether the network keeps the interface."""
    state = network.initial_state(2)
    result = network.step(example_inputs(spaces, distribution, frame_stack, 2), state)
    if isinstance(result, Outputs) or not (isinstance(result, tuple) and len(result) == 2):
        name = type(network).__name__
        raise ConfigError(f"network {name}: step returns (Outputs, state), both, not {type(result).__name__} alone")
    outputs, after = result
    found = [_description(x) for x in (outputs.policy, outputs.value, *after)]
    wanted = [f"float32[2, {distribution.parameters}]", "float32[2]", *(_description(x) for x in state)]
    if found != wanted:
        name = type(network).__name__
        raise ConfigError(f"network {name}: a step gives policy, value and state of {found}, not {wanted}")


def _description(x: tf.Tensor) -> str:
    return f"{x.dtype.name}{list(x.shape)}"
