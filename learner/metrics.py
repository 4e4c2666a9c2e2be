"""What a learner serves at ``metrics.bind``."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from learner.inference import InferenceLoop
from pipeline.metrics.endpoint import Health
from pipeline.stopping import StopToken

STUCK_SECONDS = 60.0
"""The inference loop turns many times a second, but while TensorFlow compiles for a new batch size."""


def registry() -> CollectorRegistry:
    """Everything that this process counts."""
    return CollectorRegistry()


def health(inference: InferenceLoop, doing: Callable[[], str], stop: StopToken) -> Health:
    """Alive: no thread has died, and inference turns. Ready: the policy is built, and a broker is there.

    Args:
        inference: The loop.
        doing: What the learner does before it trains, in words.
        stop: The learner's token.
    """

    def alive() -> str:
        if stop.error is not None:
            return f"{type(stop.error).__name__}: {stop.error}"
        turned = inference.turned
        still = 0.0 if turned is None else time.monotonic() - turned
        return f"inference has stood still for {still:.0f} s" if still > STUCK_SECONDS else ""

    def ready() -> str:
        return inference.away or ("" if inference.serves else doing() or "the policy is not built yet")

    return Health(alive, ready)
