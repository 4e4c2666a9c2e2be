"""A torso in bfloat16: acting agrees with training, gradients agree with float32, everything else is float32."""

import numpy as np
import pytest
import tensorflow as tf
from pydantic import ValidationError

from learner.distributions import distribution_for
from learner.inputs import Inputs
from learner.networks import build_network, named_variables, precision
from learner.networks.build import example_inputs
from learner.networks.precision import choose_precision
from pipeline.config.network import NetworkSection
from pipeline.spaces import Leaf, Spaces

pytestmark = pytest.mark.unit

STACK = 4
SPACES = Spaces(
    (Leaf("camera", "box", "uint8", (36, 36)), Leaf("speed", "box", "float32", (2, 3))),
    Leaf("action", "discrete", "int64", (), n=5),
)
DISTRIBUTION = distribution_for(SPACES.action)


def network_in(dtype, name="nature_cnn", lstm=8):
    network = build_network(SPACES, DISTRIBUTION, NetworkSection(name=name, lstm=lstm, precision=dtype), STACK)
    network.head.policy.kernel.assign(network.head.policy.kernel * 100.0)  # as sharp as after training
    return network


def random_inputs(rows, batch):
    rng = np.random.default_rng(0)
    example = example_inputs(SPACES, DISTRIBUTION, STACK, 1)
    camera = tf.constant(rng.integers(0, 256, (rows, batch, 36, 36, STACK)), tf.uint8)
    speed = tf.constant(rng.normal(size=(rows, batch, *example.observation["speed"].shape[1:])), tf.float32)
    first = tf.constant(rng.random((rows, batch)) < 0.3)
    return Inputs({"camera": camera, "speed": speed}, tf.zeros([rows, batch], tf.int32), tf.zeros([rows, batch]), first)


@pytest.mark.parametrize("name", ["nature_cnn", "impala_deep"])
def test_gradients_agree_with_those_of_float32(name):
    inputs = random_inputs(3, 4)
    found = {}
    for dtype in ("float32", "bfloat16"):
        network = network_in(dtype, name)
        variables = [v for _, v in named_variables(network) if v.trainable]
        assert {v.dtype for v in variables} == {tf.float32}
        with tf.GradientTape() as tape:
            outputs, state = network.unroll(inputs, network.initial_state(4))
            loss = tf.reduce_sum(tf.square(outputs.policy)) + tf.reduce_sum(outputs.value)
        assert {x.dtype for x in (*outputs, *state)} == {tf.float32}
        found[dtype] = outputs, tape.gradient(loss, variables)
    (exact, exact_gradients), (outputs, gradients) = found["float32"], found["bfloat16"]
    np.testing.assert_allclose(outputs.policy, exact.policy, atol=0.05)
    assert (outputs.policy != exact.policy).numpy().any()
    assert {x.dtype for x in gradients} == {tf.float32}
    difference = tf.linalg.global_norm([a - b for a, b in zip(gradients, exact_gradients, strict=True)])
    assert difference < 0.1 * tf.linalg.global_norm(exact_gradients)
    for gradient, wanted in zip(gradients, exact_gradients, strict=True):
        a, b = np.ravel(gradient), np.ravel(wanted)
        assert a @ b > 0.97 * np.linalg.norm(a) * np.linalg.norm(b)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_log_probabilities_of_a_large_batch_equal_those_of_acting(dtype):
    """Four rows a batch when acting, 48 at once in the update."""
    network, rows, batch = network_in(dtype), 12, 4
    inputs = random_inputs(rows, batch)
    state = network.initial_state(batch)
    step = tf.function(network.step)
    behaviour = []
    for t in range(rows):
        outputs, state = step(Inputs(*tf.nest.map_structure(lambda x, t=t: x[t], tuple(inputs))), state)
        behaviour.append(outputs.policy)
    behaviour = tf.stack(behaviour)
    action = tf.constant(np.random.default_rng(1).integers(0, 5, (rows, batch)), tf.int32)
    outputs, _ = tf.function(network.unroll)(inputs, network.initial_state(batch))
    found, wanted = (DISTRIBUTION.log_prob(x, action) for x in (outputs.policy, behaviour))
    np.testing.assert_allclose(found, wanted, atol=1e-4 if dtype == "float32" else 1e-3)


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16", None])
def test_auto_follows_the_instructions_of_the_cpu(flag, tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(precision, "_CPU_INFO", info)
    assert choose_precision("auto", ["CPU:0"]) == "float32"  # no Linux
    info.write_text(f"processor\t: 0\nflags\t\t: fpu avx512f {flag or ''}\nbugs\t\t: spectre_v1\n")
    assert choose_precision("auto", ["CPU:0", "CPU:1"]) == ("bfloat16" if flag else "float32")
    assert choose_precision("float32", ["CPU:0"]) == "float32"
    assert choose_precision("bfloat16", ["CPU:0"]) == "bfloat16"


@pytest.mark.parametrize(("capability", "chosen"), [((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")])
def test_auto_follows_the_generation_of_the_gpu(capability, chosen, monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [f"{kind}:0", f"{kind}:1"])
    details = {"GPU:0": {"compute_capability": (9, 0)}, "GPU:1": {"compute_capability": capability}}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.__getitem__)
    assert choose_precision("auto", ["GPU:0", "GPU:1"]) == chosen


def test_networks_without_convolutions_refuse_another_precision():
    for name in ("mlp", "package.module:Class"):
        with pytest.raises(ValidationError, match="precision = bfloat16 is for nature_cnn and impala_deep"):
            NetworkSection(name=name, precision="bfloat16")
