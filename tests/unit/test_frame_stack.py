"""Frame stacking against a slow reference that walks back row by row."""

import numpy as np
import pytest
import tensorflow as tf

from learner.frame_stack import stack_frames, stacked_shape, visible
from learner.inputs import RewardTransform, unroll_inputs
from pipeline.errors import SpaceError
from pipeline.spaces import Leaf

pytestmark = pytest.mark.unit


def reference(frames, first, row, stack, padding):
    """Frames shown at ``row``, oldest first: walk back until an episode begins."""
    shown, oldest, ended = [], frames[row], False
    for lag in range(stack):
        if lag > 0:
            ended = ended or bool(first[row - lag + 1])
        if not ended:
            oldest = frames[row - lag]
            shown.append(oldest)
        else:
            shown.append(oldest if padding == "repeat" else np.zeros_like(oldest))
    return shown[::-1]


@pytest.mark.parametrize("padding", ["zero", "repeat"])
@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (4, 5, 2)])
@pytest.mark.parametrize("stack", [1, 2, 3, 4, 8])
def test_windows_of_an_unroll_equal_the_reference(shape, stack, padding, dtype=np.uint8):
    rng = np.random.default_rng(len(shape) + 10 * stack)
    rows, batch = 12, 16
    frames = rng.integers(1, 255, (stack - 1 + rows, batch, *shape)).astype(dtype)
    first = rng.random((stack - 1 + rows, batch)) < 0.25
    first[stack - 1 : stack + 2] |= rng.random((3, batch)) < 0.5  # episode ends in the first three rows
    data = {
        "reward": np.zeros((rows, batch), np.float32),
        "first": first.astype(np.uint8),
        "action": np.zeros((rows, batch), np.int32),
        "previous_action": np.zeros(batch, np.int32),
        "observation/x": frames,
    }
    inputs = unroll_inputs({k: tf.constant(v) for k, v in data.items()}, stack, padding, RewardTransform())
    found = inputs.observation["x"].numpy()
    leaf = Leaf("x", "box", np.dtype(dtype).name, shape)
    assert found.shape == (rows, batch, *stacked_shape(leaf, stack)) and found.dtype == dtype
    for row in range(rows):
        for b in range(batch):
            shown = reference(frames[:, b], first[:, b], row + stack - 1, stack, padding)
            if len(shape) == 2 or (not shape and stack > 1):
                wanted = np.stack(shown, -1)
            else:
                wanted = np.concatenate(shown, -1) if shape else shown[0]
            np.testing.assert_array_equal(found[row, b], wanted)


@pytest.mark.parametrize("padding", ["zero", "repeat"])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int32, np.uint16, np.float32])
def test_windows_of_other_dtypes(dtype, padding):
    test_windows_of_an_unroll_equal_the_reference((4, 5), 4, padding, dtype)


def test_every_byte_keeps_its_place_in_a_word():
    """On this machine's byte order, compiled and not."""
    frames = [tf.constant([[[0, 255, 128 + k, k]]], tf.uint8) for k in range(8)]
    for stack in (2, 4, 8):
        masks = visible([tf.constant([False])] * stack)
        for jit_compile in (False, True):
            stacked = tf.function(stack_frames, jit_compile=jit_compile)(frames[:stack], masks, 2, "zero")
            np.testing.assert_array_equal(stacked, np.stack([f.numpy() for f in frames[:stack]], -1))


def test_visibility_by_hand():
    # Rows i-3..i; an episode began at row i-1: the frames of rows i-3 and i-2 belong to the one before.
    firsts = [tf.constant([x]) for x in (False, False, True, False)]
    assert [bool(m[0]) for m in visible(firsts)] == [False, False, True, True]
    # A first at the oldest row of the window hides nothing in it.
    firsts = [tf.constant([x]) for x in (True, False, False, False)]
    assert [bool(m[0]) for m in visible(firsts)] == [True] * 4


def test_hidden_garbage_never_shows():
    frames = [tf.constant([[np.nan]]), tf.constant([[2.0]])]
    masks = visible([tf.constant([False]), tf.constant([True])])
    assert stack_frames(frames, masks, 1, "zero").numpy().tolist() == [[0.0, 2.0]]


@pytest.mark.parametrize("leaf", [Leaf("d", "discrete", "int64", (), n=3), Leaf("v", "box", "uint8", (2, 2, 2, 2))])
def test_leaves_that_cannot_be_stacked(leaf):
    assert stacked_shape(leaf, 1) == leaf.shape
    with pytest.raises(SpaceError, match=leaf.path):
        stacked_shape(leaf, 2)


def test_reward_is_scaled_then_clipped_and_cleared_at_first():
    data = {
        "reward": np.array([[9.0], [3.0], [-9.0], [0.2]], np.float32),
        "first": np.array([[1], [0], [0], [0]], np.uint8),
        "action": np.array([[5], [6], [7], [8]], np.int32),
        "previous_action": np.array([4], np.int32),
        "observation/x": np.zeros((4, 1, 2), np.float32),
    }
    inputs = unroll_inputs({k: tf.constant(v) for k, v in data.items()}, 1, "zero", RewardTransform(0.5, 1.0))
    np.testing.assert_allclose(inputs.previous_reward[:, 0], [0.0, 1.0, -1.0, 0.1], rtol=1e-6)
    assert inputs.previous_action[:, 0].numpy().tolist() == [4, 5, 6, 7]
    assert inputs.first[:, 0].numpy().tolist() == [True, False, False, False]
