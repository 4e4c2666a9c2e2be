"""Environment families that seedmq knows, and how the missing ones are installed. Nothing is imported to find out."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A kind of environment."""

    name: str
    modules: tuple[str, ...]
    """Top-level modules that must be there."""
    example: str
    """An ``environment.id`` of the family."""
    install: str
    """How to get it."""

    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [module for module in self.modules if importlib.util.find_spec(module) is None]


FAMILIES = (
    Family("classic control", ("gymnasium",), "CartPole-v1", "pip install gymnasium"),
    Family("Atari (ALE)", ("ale_py",), "ale_py:ALE/Pong-v5", 'pip install "seedmq[atari]"'),
    Family("MuJoCo", ("mujoco",), "HalfCheetah-v5", 'pip install "gymnasium[mujoco]"'),
    Family("Box2D", ("Box2D", "pygame"), "LunarLander-v3", 'pip install "gymnasium[box2d]"'),
    Family("ViZDoom", ("vizdoom",), "vizdoom.gymnasium_wrapper:VizdoomBasic-v1", "pip install vizdoom"),
    Family(
        "DeepMind Lab",
        ("deepmind_lab",),
        "workers.dmlab:DeepMindLab/explore_goal_locations_small-v0",
        "no wheel: build it from source (github.com/google-deepmind/lab)",
    ),
)


def describe() -> list[str]:
    """One line per family: installed, with an id to try, or missing, with the way to get it."""
    width = max(len(family.name) for family in FAMILIES)
    return [_line(family, width) for family in FAMILIES]


def _line(family: Family, width: int) -> str:
    if not family.missing():
        return f"{family.name:{width}}  installed  {family.example}"
    return f"{family.name:{width}}  missing    {family.install}"
