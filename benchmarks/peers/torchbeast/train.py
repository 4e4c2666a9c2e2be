"""TorchBeast's MonoBeast on Pong: trained agent steps per second.

    python train.py CHECKOUT [--seconds S] [--warm-up S]

``CHECKOUT`` is a checkout of TorchBeast, which no package index has. Runs in an environment of its own
(``requirements.txt``), imports nothing of seedmq and prints one JSON object last. Steps are those that MonoBeast logs
after each update: unroll length times batch size of what was trained on.

MonoBeast is from the days of the gym interface before 0.26 and of Atari environments by their ``NoFrameskip-v4`` names;
``Pong`` gives it ALE of today under that name. Network and wrappers (84x84, four frames) are MonoBeast's own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ale_py
import gym
import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))
from window import Window

ENVIRONMENT = "PongNoFrameskip-v4"
SETTINGS = {
    "num_actors": len(os.sched_getaffinity(0)),
    "unroll_length": 20,
    "batch_size": 8,
    "num_buffers": 32,
    "num_learner_threads": 2,
    "learning_rate": 0.0004,
    "entropy_cost": 0.01,
    "epsilon": 0.01,
}
END = 10**9  # far beyond what a benchmark takes


class Pong(gym.Env[Any, Any]):
    """Pong's frames, uint8 ``[210, 160, 3]``, by the gym interface before 0.26; no frame skip, no sticky actions."""

    def __init__(self) -> None:
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(ale_py.roms.get_rom_path("pong"))
        self.actions = self.ale.getMinimalActionSet()
        self.action_space = gym.spaces.Discrete(len(self.actions))
        self.observation_space = gym.spaces.Box(0, 255, (210, 160, 3), np.uint8)
        self.random = np.random.RandomState()

    @property
    def np_random(self) -> Any:  # type: ignore[override]
        """With ``randint``, which newer generators lack."""
        return self.random

    def get_action_meanings(self) -> list[str]:
        return [action.name for action in self.actions]

    def seed(self, seed: int | None = None) -> list[int | None]:
        self.random.seed(seed)
        self.ale.setInt("random_seed", int(self.random.randint(2**31 - 1)))
        return [seed]

    def reset(self, **unused: Any) -> Any:
        self.ale.reset_game()
        return self.ale.getScreenRGB()

    def step(self, action: int) -> tuple[Any, float, bool, dict[str, Any]]:
        reward = self.ale.act(self.actions[action])
        return self.ale.getScreenRGB(), float(reward), bool(self.ale.game_over()), {}


def measure(checkout: Path, seconds: float, warm_up: float) -> dict[str, Any]:
    sys.path.insert(0, str(checkout))
    monobeast = importlib.import_module("torchbeast.monobeast")
    gym.register(ENVIRONMENT, entry_point=Pong, order_enforce=False, disable_env_checker=True)
    window = Window(warm_up, seconds)
    with tempfile.TemporaryDirectory(prefix="torchbeast-") as folder:
        words = [f"--{key}={value}" for key, value in SETTINGS.items()]
        words += [f"--env={ENVIRONMENT}", f"--savedir={folder}", f"--total_steps={END}", "--disable_cuda"]
        flags = monobeast.parser.parse_args([*words, "--disable_checkpoint"])

        class Measuring(monobeast.file_writer.FileWriter):  # type: ignore[misc, name-defined]
            """MonoBeast's log; ends the training with the window."""

            def log(self, to_log: dict[str, Any], *arguments: Any, **more: Any) -> None:
                super().log(to_log, *arguments, **more)
                if window.add(time.monotonic(), int(to_log["step"])):
                    flags.total_steps = 1

        monobeast.file_writer.FileWriter = Measuring
        monobeast.main(flags)
    return window.result() | {"settings": SETTINGS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=10.0)
    options = parser.parse_args()
    print(json.dumps(measure(options.checkout, options.seconds, options.warm_up)))


if __name__ == "__main__":
    main()
