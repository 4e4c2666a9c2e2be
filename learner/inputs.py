"""What a network is fed and what it returns, built by the same code for acting and for training.

T is the unroll length, B the batch, S the frame stack. A row's recurrent state, frame stack, previous action and
previous reward are cleared where ``first`` (SEMANTICS: before the row is consumed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from learner.frame_stack import stack_frames, visible
from pipeline.unrolls import OBSERVATION, STATE


class Inputs(NamedTuple):
    """Inputs of a network: ``[B, ...]`` for one step, ``[T+1, B, ...]`` for an unroll.

    Attributes:
        observation: Leaf path -> stacked observation in the leaf's dtype (``frame_stack.stacked_shape``).
        previous_action: The stored (raw) action of the row before; its content means nothing where ``first``.
        previous_reward: float32 ``[...]``, scaled, then clipped as in the loss; 0 where ``first``.
        first: bool ``[...]``, the observation begins an episode.
    """

    observation: dict[str, tf.Tensor]
    previous_action: tf.Tensor
    previous_reward: tf.Tensor
    first: tf.Tensor


class Outputs(NamedTuple):
    """Outputs of a network.

    Attributes:
        policy: float32 ``[..., D]``, parameters of the action distribution.
        value: float32 ``[...]``.
    """

    policy: tf.Tensor
    value: tf.Tensor


class RewardTransform(NamedTuple):
    """Scales, then clips to +- ``clip``: rewards as the loss and the previous-reward input see them."""

    scale: float = 1.0
    clip: float | None = None

    def __call__(self, reward: tf.Tensor) -> tf.Tensor:
        scaled = reward if self.scale == 1.0 else reward * self.scale
        return scaled if self.clip is None else tf.clip_by_value(scaled, -self.clip, self.clip)


def step_inputs(
    windows: Mapping[str, Sequence[tf.Tensor]],
    firsts: Sequence[tf.Tensor],
    previous_action: tf.Tensor,
    reward: tf.Tensor,
    *,
    padding: str,
    rewards: RewardTransform,
    ranks: Mapping[str, int],
) -> Inputs:
    """Inputs from windows of S rows; the leading axes ``[...]`` are ``[B]`` or ``[T+1, B]``.

    Args:
        windows: Leaf path -> S frames ``[..., *shape]``, oldest first, the row's own frame last.
        firsts: S bool ``[...]``, the ``first`` flags of the same rows.
        previous_action: ``[..., *action_shape]``.
        reward: float32 ``[...]``, raw, as it arrived with the row's observation.
        padding: ``zero`` or ``repeat``.
        rewards: Applied to ``reward``.
        ranks: Leaf path -> rank of one frame.
    """
    masks = visible(firsts)
    transformed = rewards(reward)
    return Inputs(
        observation={path: stack_frames(frames, masks, ranks[path], padding) for path, frames in windows.items()},
        previous_action=previous_action,
        previous_reward=tf.where(firsts[-1], tf.zeros_like(transformed), transformed),
        first=firsts[-1],
    )


def unroll_inputs(batch: Mapping[str, tf.Tensor], frame_stack: int, padding: str, rewards: RewardTransform) -> Inputs:
    """Inputs ``[T+1, B, ...]`` of the unrolls that acted.

    Args:
        batch: Tensors named and shaped as ``UnrollLayout.batch`` gives them; observations and ``first`` with S-1 rows
            in front.
        frame_stack: S.
        padding: ``zero`` or ``repeat``.
        rewards: Applied to the raw rewards.
    """
    rows = batch["reward"].shape[0]

    def window(field: tf.Tensor) -> list[tf.Tensor]:
        return [field[start : start + rows] for start in range(frame_stack)]

    observation = {name.removeprefix(OBSERVATION): x for name, x in batch.items() if name.startswith(OBSERVATION)}
    return step_inputs(
        windows={path: window(frames) for path, frames in observation.items()},
        firsts=window(tf.cast(batch["first"], tf.bool)),
        previous_action=tf.concat([batch["previous_action"][None], batch["action"][:-1]], 0),
        reward=batch["reward"],
        padding=padding,
        rewards=rewards,
        ranks={path: frames.shape.rank - 2 for path, frames in observation.items()},
    )


def unroll_state(batch: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, ...]:
    """The recurrent state carried into row 0, before its own reset by ``first``: ``[B, ...]`` per leaf."""
    count = sum(name.startswith(STATE) for name in batch)
    return tuple(batch[f"{STATE}{i}"] for i in range(count))
