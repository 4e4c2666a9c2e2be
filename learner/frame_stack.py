"""Frame stacking on the device, the same function for acting and training.

Rows hold single frames. Row i shows the frames of rows i-S+1..i, oldest first, along the last axis. The frame at lag k
is visible iff none of the rows i-k+1..i is ``first``: a stack never shows another episode.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from pipeline.errors import SpaceError
from pipeline.spaces import Leaf


def stacked_shape(leaf: Leaf, frame_stack: int) -> tuple[int, ...]:
    """Shape of one stacked observation of ``leaf``.

    Rank 0: ``[]`` for a stack of 1, else ``[S]``. Rank 1 and 3: concatenated on the last axis. Rank 2: a new last axis,
    also for a stack of 1, so that a grey picture always has a channel. Other ranks are left alone where S is 1.

    Raises:
        SpaceError: a leaf that cannot be stacked (discrete, or of rank 4 and more).
    """
    shape = leaf.shape
    if len(shape) == 2:
        return (*shape, frame_stack)
    if frame_stack == 1:
        return shape
    if leaf.kind == "discrete":
        raise SpaceError(
            f"observation {leaf.path!r} is discrete and cannot be stacked: set environment.frame_stack to 1"
        )
    if len(shape) > 3:
        raise SpaceError(f"observation {leaf.path!r} of rank {len(shape)} cannot be stacked: set frame_stack to 1")
    return (*shape[:-1], shape[-1] * frame_stack) if shape else (frame_stack,)


def visible(firsts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Which frames of a window a row may see.

    Args:
        firsts: bool ``[...]`` per row of the window, oldest first, the row itself last.

    Returns:
        bool ``[...]`` per frame, in the same order; the row's own frame is always visible.
    """
    mask = tf.ones_like(firsts[-1])
    masks = [mask]
    for first in reversed(firsts[1:]):
        mask = tf.logical_and(mask, tf.logical_not(first))
        masks.append(mask)
    return masks[::-1]


def stack_frames(frames: Sequence[tf.Tensor], masks: Sequence[tf.Tensor], rank: int, padding: str) -> tf.Tensor:
    """One stacked observation per row.

    Args:
        frames: ``[..., *shape]`` per row of the window, oldest first, S of them.
        masks: What ``visible`` returned for the window.
        rank: Rank of ``shape``.
        padding: What stands for a frame that is not visible: ``zero``, or ``repeat`` the oldest visible one.

    Returns:
        ``[..., *stacked_shape]`` in the dtype of the frames.
    """
    shown = [frames[-1]]
    for frame, mask in zip(reversed(frames[:-1]), reversed(masks[:-1]), strict=True):
        expanded = tf.reshape(mask, tf.concat([tf.shape(mask), [1] * rank], 0)) if rank else mask
        shown.append(tf.where(expanded, frame, shown[-1] if padding == "repeat" else tf.zeros_like(frame)))
    shown.reverse()
    if rank == 2 or (rank == 0 and len(shown) > 1):
        return tf.stack(shown, -1)
    return tf.concat(shown, -1) if len(shown) > 1 else shown[0]
