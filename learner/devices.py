"""Which devices infer and which train, and the strategy over their union.

Weights stand on every device of the union and are updated on all of them at once (SEED RL's rule); only training
devices contribute gradients. Everything here runs before TensorFlow makes its first tensor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from pipeline.errors import ConfigError

AUTO = "auto"
_NAME = re.compile(r"^/?(?:device:)?(cpu|gpu):(\d+)$")


class Devices(NamedTuple):
    """The choice.

    Attributes:
        inference: Device names such as ``GPU:0``, in the order of the settings.
        training: The same.
        strategy: Over the union, training devices first; make every variable in its scope.
        description: One line for the log: what was chosen, what by ``auto``, what there is.
    """

    inference: tuple[str, ...]
    training: tuple[str, ...]
    strategy: tf.distribute.Strategy
    description: str

    @property
    def replicas(self) -> tuple[str, ...]:
        """The union in the strategy's order: replica i is device i."""
        return _union(self.training, self.inference)

    @property
    def infers_on_cpu(self) -> bool:
        """The policy's tables are in the host's memory."""
        return self.inference[0].startswith("CPU")

    @property
    def in_flight(self) -> int:
        """Inference batches that are worth having in flight. A CPU computes within the call: a second batch would
        only keep the first one's actions back until it is computed, too."""
        return 1 if self.infers_on_cpu else 2


def configure_runtime(intra_op_threads: int = 0, inter_op_threads: int = 0) -> None:
    """Thread pools (0: TensorFlow's choice), and GPU memory taken as needed instead of all at once.

    Raises:
        ConfigError: TensorFlow has already started with other settings.
    """
    try:
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
        if intra_op_threads:
            tf.config.threading.set_intra_op_parallelism_threads(intra_op_threads)
        if inter_op_threads:
            tf.config.threading.set_inter_op_parallelism_threads(inter_op_threads)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"learner.intra_op_threads = {intra_op_threads}, learner.inter_op_threads = {inter_op_threads}: "
            f"TensorFlow has already started ({error})"
        ) from error


def choose_devices(inference: Sequence[str], training: Sequence[str]) -> Devices:
    """Resolve the settings ``learner.inference_devices`` and ``learner.training_devices``; starts TensorFlow.

    Raises:
        ConfigError: a demanded device does not exist, is named twice or not understood, a list is empty, or CPUs and
            GPUs are mixed (their arithmetic differs in the last bit, so mirrored weights would drift apart).
    """
    existing = _existing()
    chosen_inference = _resolve("learner.inference_devices", inference, existing)
    chosen_training = _resolve("learner.training_devices", training, existing)
    union = _union(chosen_training, chosen_inference)
    kinds = {name.split(":")[0] for name in union}
    if len(kinds) > 1:
        raise ConfigError(
            f"learner.inference_devices = {list(inference)}, learner.training_devices = {list(training)}: "
            "weights are mirrored over devices of one kind, not over CPUs and GPUs"
        )
    description = (
        f"inference on {_words(inference, chosen_inference)}, training on {_words(training, chosen_training)}; "
        f"TensorFlow sees {', '.join(existing)}"
    )
    return Devices(chosen_inference, chosen_training, _strategy(union), description)


def _existing() -> tuple[str, ...]:
    """Names of the devices there are, such as ``CPU:0``."""
    return tuple(f"{kind}:{i}" for kind in ("CPU", "GPU") for i in range(len(tf.config.list_logical_devices(kind))))


def _resolve(key: str, demanded: Sequence[str], existing: tuple[str, ...]) -> tuple[str, ...]:
    names: list[str] = []
    for device in demanded:
        name = _best(existing) if device.lower() == AUTO else _canonical(key, device)
        if name not in existing:
            raise ConfigError(f"{key} demands {device!r}, which TensorFlow does not see; it sees {', '.join(existing)}")
        if name in names:
            raise ConfigError(f"{key} = {list(demanded)} names {name} twice")
        names.append(name)
    if not names:
        raise ConfigError(f"{key} is empty: name a device, or auto")
    return tuple(names)


def _best(existing: tuple[str, ...]) -> str:
    return "GPU:0" if "GPU:0" in existing else "CPU:0"


def _canonical(key: str, device: str) -> str:
    match = _NAME.match(device.lower())
    if match is None:
        raise ConfigError(f"{key}: {device!r} is no device; write auto, cpu:0, gpu:1, ...")
    return f"{match[1].upper()}:{int(match[2])}"


def _union(training: tuple[str, ...], inference: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(training + inference))


def _words(demanded: Sequence[str], chosen: tuple[str, ...]) -> str:
    return ", ".join(
        f"{name} (auto)" if device.lower() == AUTO else name for device, name in zip(demanded, chosen, strict=True)
    )


def _strategy(union: tuple[str, ...]) -> tf.distribute.Strategy:
    if len(union) == 1:
        return tf.distribute.OneDeviceStrategy(union[0])
    # NCCL, the default of GPUs, does not exist for CPUs.
    on_cpu = union[0].startswith("CPU")
    reduction = tf.distribute.ReductionToOneDevice() if on_cpu else tf.distribute.NcclAllReduce()
    return tf.distribute.MirroredStrategy(list(union), cross_device_ops=reduction)
