"""In which precision a convolutional torso computes: ``network.precision: auto``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

# Without one of these oneDNN emulates bfloat16, at more than twice the cost of float32 (docs/decisions/0003).
_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
_CPU_INFO = Path("/proc/cpuinfo")
_FIRST_GPU = (8, 0)  # compute capability of Ampere, the first with bfloat16 tensor cores


def choose_precision(setting: str, devices: Sequence[str]) -> str:
    """``float32`` or ``bfloat16``, the same for all ``devices``, since acting and training must agree.

    Args:
        setting: One of the two, or ``auto``: bfloat16 where every device has instructions for it.
        devices: TensorFlow device names such as ``CPU:0``.
    """
    if setting != "auto":
        return setting
    return "bfloat16" if all(map(_computes_bfloat16, devices)) else "float32"


def _computes_bfloat16(device: str) -> bool:
    kind, index = device.split(":")
    if kind == "CPU":
        return not _CPU_FLAGS.isdisjoint(_cpu_flags())
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices(kind)[int(index)])
    return tuple(details.get("compute_capability", (0, 0))) >= _FIRST_GPU


def _cpu_flags() -> list[str]:
    """What Linux says the first CPU has; nothing elsewhere."""
    if not _CPU_INFO.is_file():
        return []
    lines = (line for line in _CPU_INFO.read_text().splitlines() if line.startswith("flags"))
    return next(lines, "").split()
