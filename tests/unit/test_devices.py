"""Which devices are chosen, and what is refused."""

import pytest
import tensorflow as tf

import tests.unit.two_cpus  # noqa: F401
from learner.devices import choose_devices, configure_runtime
from pipeline.errors import ConfigError

pytestmark = pytest.mark.unit


def test_auto_says_what_it_chose():
    devices = choose_devices(["auto"], ["auto"])
    best = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    assert devices.inference == devices.training == devices.replicas == (best,)
    assert f"inference on {best} (auto), training on {best} (auto)" in devices.description
    assert devices.strategy.num_replicas_in_sync == 1


def test_one_to_infer_one_to_train():
    devices = choose_devices(["cpu:0"], ["CPU:1"])
    assert (devices.inference, devices.training) == (("CPU:0",), ("CPU:1",))
    assert devices.replicas == ("CPU:1", "CPU:0")
    assert devices.in_flight == 1 and devices._replace(inference=("GPU:0",)).in_flight == 2
    assert devices.strategy.num_replicas_in_sync == 2


def test_overlap_is_one_union():
    devices = choose_devices(["/device:CPU:0"], ["cpu:0", "cpu:1"])
    assert devices.replicas == ("CPU:0", "CPU:1")


@pytest.mark.parametrize(
    ("inference", "training", "message"),
    [
        (["gpu:7"], ["auto"], r"learner\.inference_devices demands 'gpu:7'.*it sees CPU:0, CPU:1"),
        (["auto"], ["cpu:2"], r"learner\.training_devices demands 'cpu:2'"),
        (["tpu:0"], ["auto"], "'tpu:0' is no device"),
        (["cpu:0"], ["cpu:1", "CPU:1"], "names CPU:1 twice"),
        ([], ["auto"], "is empty"),
    ],
)
def test_refused(inference, training, message):
    with pytest.raises(ConfigError, match=message):
        choose_devices(inference, training)


def test_threads_cannot_change_once_tensorflow_runs():
    tf.config.list_logical_devices()
    with pytest.raises(ConfigError, match="intra_op_threads = 3"):
        configure_runtime(intra_op_threads=3)
