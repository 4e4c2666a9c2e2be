"""Observations in units of their own spread: against numpy over all rows that were seen."""

import numpy as np
import pytest
import tensorflow as tf

from learner.frame_stack import stacked_shape
from learner.networks.normalizer import LARGEST, Normalizer, make_normalizer
from pipeline.spaces import Leaf

pytestmark = pytest.mark.unit

T, B = 5, 4
LEAVES = (
    Leaf("number", "box", "float64", ()),
    Leaf("vector", "box", "float32", (3,)),
    Leaf("grid", "box", "int32", (2, 3)),
    Leaf("picture", "box", "uint8", (2, 2, 3)),
)


def batch_of(seed, stack=1):
    """``[stack - 1 + T + 1, B, ...]`` of numbers far from 0, of different spreads, and which of them count."""
    rng = np.random.default_rng(seed)
    fields = {"valid": (rng.random((T, B)) < 0.7).astype(np.uint8)}
    for leaf in LEAVES:
        rows = rng.normal(100.0 + seed, 1.0 + seed, (stack - 1 + T + 1, B, *leaf.shape))
        fields[f"observation/{leaf.path}"] = rows.astype(leaf.numpy_dtype)
    return fields


def learnt_from(normalizer, *batches):
    for batch in batches:
        normalizer.update({name: tf.convert_to_tensor(x) for name, x in normalizer.observed(batch).items()})
    return normalizer


@pytest.mark.parametrize("stack", [1, 3])
def test_statistics_are_those_of_all_valid_rows(stack):
    batches = [batch_of(seed, stack) for seed in range(5)]
    normalizer = learnt_from(Normalizer(LEAVES, stack), *batches)
    for leaf, mean, variance in zip(LEAVES, normalizer.mean, normalizer.variance, strict=True):
        rows = [b[f"observation/{leaf.path}"][stack - 1 :][:T][b["valid"].astype(bool)] for b in batches]
        seen = np.concatenate(rows).astype(np.float64)
        np.testing.assert_allclose(mean, seen.mean(0), rtol=1e-5)
        np.testing.assert_allclose(variance, seen.var(0), rtol=1e-4)
    assert float(normalizer.count) == sum(batch["valid"].sum() for batch in batches)


@pytest.mark.parametrize("stack", [1, 3])
def test_what_comes_out_is_centred_scaled_and_of_the_shape_that_a_network_takes(stack):
    normalizer = learnt_from(Normalizer(LEAVES, stack), batch_of(1, stack))
    given = {
        leaf.path: tf.cast(tf.fill([6, *stacked_shape(leaf, stack)], 101), tf.dtypes.as_dtype(leaf.dtype))
        for leaf in LEAVES
    }
    found = normalizer(given)
    for leaf, mean, variance in zip(LEAVES, normalizer.mean, normalizer.variance, strict=True):
        assert found[leaf.path].shape == (6, *stacked_shape(leaf, stack)) and found[leaf.path].dtype == tf.float32
        expected = (101 - mean.numpy()) / np.sqrt(variance.numpy() + 1e-8)
        last = found[leaf.path].numpy()[0]
        if len(leaf.shape) == 2:
            last = last[..., -1]
        elif leaf.shape:
            last = last[..., -leaf.shape[-1] :]
        elif stack > 1:
            last = last[-1]
        np.testing.assert_allclose(last, np.clip(expected, -LARGEST, LARGEST), rtol=1e-4, atol=1e-5)


def test_before_the_first_update_numbers_pass_as_they_are():
    found = Normalizer(LEAVES[1:2], 1)({"vector": tf.constant([[1.0, -2.0, 1e6]])})
    np.testing.assert_allclose(found["vector"], [[1.0, -2.0, LARGEST]], rtol=1e-6)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_batch_without_valid_rows_or_with_one_that_is_not_finite_changes_nothing(broken):
    normalizer = learnt_from(Normalizer(LEAVES, 1), batch_of(1))
    before = [x.numpy() for x in (*normalizer.mean, *normalizer.variance, normalizer.count)]
    nothing, damaged = batch_of(2), batch_of(3)
    nothing["valid"][:] = 0
    damaged["observation/vector"][:] = broken
    learnt_from(normalizer, nothing, damaged)
    for found, expected in zip((*normalizer.mean, *normalizer.variance, normalizer.count), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_what_never_changes_becomes_zero_and_then_what_differs_is_bounded():
    batch = batch_of(1)
    batch["observation/vector"][:] = 5.0
    normalizer = learnt_from(Normalizer(LEAVES[1:2], 1), batch)
    found = normalizer({"vector": tf.constant([[5.0, 5.1, -1e9]])})
    np.testing.assert_allclose(found["vector"], [[0.0, LARGEST, -LARGEST]])


def test_flags_and_what_is_fed_one_hot_have_no_scale():
    flags, choice = Leaf("flags", "multi_binary", "int8", (4,)), Leaf("choice", "discrete", "int64", (), n=3)
    assert make_normalizer((flags, choice, Leaf("on", "box", "bool", (2,))), 1) is None
    (mean,) = make_normalizer((flags, LEAVES[1], choice), 1).mean
    assert mean.shape == (3,)
