"""Frame stacking on the device, the same function for acting and training.

Rows hold single frames. Row i shows the frames of rows i-S+1..i, oldest first, along the last axis. The frame at lag k
is visible iff none of the rows i-k+1..i is ``first``: a stack never shows another episode.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tensorflow as tf

from pipeline.errors import SpaceError
from pipeline.spaces import Leaf

# Unsigned integers whose bytes are the bytes of S frames, least significant first.
_WORDS = {2: tf.uint16, 4: tf.uint32, 8: tf.uint64} if sys.byteorder == "little" else {}


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
        raise SpaceError(
            f"observation {leaf.path!r} of rank {len(shape)} cannot be stacked: set environment.frame_stack to 1"
        )
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
        shown.append(tf.where(expanded, frame, shown[-1]) if padding == "repeat" else _zero_hidden(frame, expanded))
    shown.reverse()
    if rank == 2 or (rank == 0 and len(shown) > 1):
        return _interleaved(shown)
    return tf.concat(shown, -1) if len(shown) > 1 else shown[0]


def _zero_hidden(frame: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    if frame.dtype.is_floating or frame.dtype == tf.bool:
        return tf.where(mask, frame, tf.zeros_like(frame))
    return frame * tf.cast(mask, frame.dtype)  # a fifth of the time of tf.where, but NaN times 0 is NaN


def _interleaved(frames: Sequence[tf.Tensor]) -> tf.Tensor:
    """As ``tf.stack(frames, -1)``, which copies byte by byte: putting words together takes an eighth of its time."""
    word = _WORDS.get(len(frames)) if frames[0].dtype == tf.uint8 else None
    if word is None:
        return tf.stack(frames, -1)
    packed = tf.cast(frames[0], word)
    for k, frame in enumerate(frames[1:], 1):
        packed += tf.cast(frame, word) * tf.constant(256**k, word)
    return tf.bitcast(packed, tf.uint8)
