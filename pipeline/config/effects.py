"""Settings that somebody has set and that have no effect under the others: said, since they are hardly meant so."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pipeline.config.load import DEFAULT, Loaded, value_of
from pipeline.config.tree import Config


class _Rule(NamedTuple):
    """Settings (sections, by a trailing dot) that something makes idle, and what that is."""

    keys: tuple[str, ...]
    applies: Callable[[Config], bool]
    reason: Callable[[Config], str]

    def covers(self, key: str) -> bool:
        return any(key.startswith(name) if name.endswith(".") else key == name for name in self.keys)


def _algorithm(config: Config) -> str:
    return f"training.algorithm = {config.training.algorithm}"


def _network(config: Config) -> str:
    return f"network.name = {config.network.name}"


def _optimizer(config: Config) -> str:
    return f"training.optimizer.name = {config.training.optimizer.name}"


_OF_OURS = (
    "network.hidden",
    "network.activation",
    "network.lstm",
    "network.previous_action",
    "network.previous_reward",
    "network.separate_value",
    "network.normalize_observations",
)
_FIFO = ("training.max_lag", "store.capacity", "store.when_full", "store.ack")
_RULES = (
    _Rule(("r2d2.", "replay."), lambda config: config.training.algorithm == "vtrace", _algorithm),
    _Rule(("vtrace.", *_FIFO), lambda config: config.training.algorithm == "r2d2", _algorithm),
    _Rule(
        ("vtrace.entropy_cost_schedule.",),
        lambda config: config.vtrace.entropy_target is not None,
        lambda config: f"vtrace.entropy_target = {config.vtrace.entropy_target}",
    ),
    _Rule(
        ("vtrace.entropy_adjustment_speed",),
        lambda config: config.vtrace.entropy_target is None,
        lambda _: "vtrace.entropy_target = null",
    ),
    _Rule(_OF_OURS, lambda config: ":" in config.network.name, _network),
    _Rule(("network.activation",), lambda config: config.network.name in ("nature_cnn", "impala_deep"), _network),
    _Rule(
        ("training.optimizer.beta_1", "training.optimizer.beta_2"),
        lambda config: config.training.optimizer.name == "rmsprop",
        _optimizer,
    ),
    _Rule(
        ("training.optimizer.decay", "training.optimizer.momentum"),
        lambda config: config.training.optimizer.name == "adam",
        _optimizer,
    ),
    _Rule(
        ("environment.stack_padding",),
        lambda config: config.environment.frame_stack == 1,
        lambda _: "environment.frame_stack = 1",
    ),
    _Rule(
        ("broker.learner_bind", "broker.learner_connect"),
        lambda config: config.broker.placement == "embedded",
        lambda _: "broker.placement = embedded",
    ),
)


def without_effect(loaded: Loaded) -> list[str]:
    """A line for each setting that was set, in a file, a variable or by ``--set``, and has no effect.

    What is set to nothing (0, false, null, an empty list) is not told: it asks for nothing.
    """
    said = [key for key, origin in loaded.origins.items() if origin != DEFAULT and value_of(loaded.config, key)]
    found: dict[str, str] = {}
    for rule in _RULES:
        if rule.applies(loaded.config):
            for key in filter(rule.covers, said):
                found.setdefault(key, f"{key} has no effect with {rule.reason(loaded.config)}")
    return list(found.values())
