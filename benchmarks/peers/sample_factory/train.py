"""Sample Factory's APPO: trained agent steps per second.

    python train.py NAME [--seconds S] [--warm-up S] [--set KEY=VALUE ...]

Runs in an environment of its own (``requirements.txt``), imports nothing of seedmq and prints one JSON object last.
``SETTINGS`` are Sample Factory's own command-line parameters; what they leave out has its default. Steps are those of
the batches that the learner has trained on (its ``env_steps``, frame skip not counted in), not those that were sampled.

    cartpole             the recipe in ``sf_examples/train_gym_env.py``, with seedmq's network
    cartpole_vectorized  gymnasium's vectorized CartPole through batched sampling
    cartpole_large       the same with the environments and the batch of seedmq's ``cartpole_throughput``
    pong                 the recipe of ``sf_examples/atari``: gymnasium's Atari wrappers, one environment at a time
    pong_vectorized      the recipe of ``sf_examples/envpool/atari``: EnvPool through batched sampling

Both Pong recipes take every batch through four epochs of PPO; here it is one, as in seedmq, which is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

sys.path.append(str(Path(__file__).resolve().parent.parent))
from window import Window

CPUS = len(os.sched_getaffinity(0))
COMMON = {
    "algo": "APPO",
    "device": "cpu",
    "use_rnn": False,
    "recurrence": 1,
    "with_vtrace": False,
    "async_rl": True,
    "restart_behavior": "overwrite",
}
MLP = {"encoder_mlp_layers": [64, 64], "nonlinearity": "tanh"}
EPOCHS = {"num_epochs": 1, "num_batches_per_epoch": 1}
VECTORIZED_CARTPOLE = MLP | {
    "num_workers": CPUS,
    "num_envs_per_worker": 1,
    "worker_num_splits": 1,
    "batched_sampling": True,
    "rollout": 20,
    "reward_scale": 0.1,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "cartpole": MLP
    | {
        "num_workers": CPUS,
        "num_envs_per_worker": 20,
        "policy_workers_per_policy": 2,
        "batch_size": 512,
        "reward_scale": 0.1,
    },
    "cartpole_vectorized": VECTORIZED_CARTPOLE | {"env_agents": 128, "batch_size": 2560},
    "cartpole_large": VECTORIZED_CARTPOLE | {"env_agents": 1024 // CPUS, "batch_size": 10240},
    "pong": EPOCHS
    | {"num_workers": CPUS, "num_envs_per_worker": 8, "worker_num_splits": 2, "rollout": 20, "batch_size": 640},
    "pong_vectorized": EPOCHS
    | {
        "num_workers": CPUS,
        "env_agents": 16,
        "rollout": 20,
        "batch_size": 640,
    },
}


class VectorCartPole(gym.Env[Any, Any]):
    """gymnasium's vectorized CartPole as Sample Factory takes it: an environment of many agents that resets itself."""

    def __init__(self, envs: int) -> None:
        self.vector: Any = gym.make_vec("CartPole-v1", envs, vectorization_mode="custom")
        self.num_agents = envs
        self.is_multiagent = True
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.vector.reset(seed=seed)
        return observation.astype(np.float32), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.vector.step(np.asarray(action, np.int64))
        return observation.astype(np.float32), reward, terminated, truncated, info


class Measure(AlgoObserver):
    """Reads the learner's counter after each training iteration; ends the run with the window."""

    def __init__(self, window: Window) -> None:
        self.window = window

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        steps = runner.total_env_steps_since_resume
        if steps is not None and self.window.add(time.monotonic(), steps):
            runner.cfg.train_for_env_steps = 0


def configure(name: str, overrides: list[str], folder: str) -> Any:
    """Sample Factory's configuration: its defaults, then its Atari recipe's, then ours."""
    env = "atari_pong" if name.startswith("pong") else "CartPole-v1"
    settings = COMMON | SETTINGS[name] | dict(one.split("=", 1) for one in overrides)
    words = [f"--env={env}", "--experiment=bench", f"--train_dir={folder}", "--summaries_use_frameskip=False"]
    for key, value in settings.items():
        words += [f"--{key}", *(str(x) for x in (value if isinstance(value, list) else [value]))]
    parser, _ = parse_sf_args(argv=words)
    if name == "pong":
        from sf_examples.atari.atari_params import atari_override_defaults

        atari_override_defaults(env, parser)
        register_env(env, make_atari)
    elif name == "pong_vectorized":
        from sf_examples.envpool.atari.envpool_atari_params import add_atari_env_args, atari_override_defaults

        add_atari_env_args(env, parser)
        atari_override_defaults(env, parser)
        register_env(env, make_envpool)
    else:
        parser.add_argument("--env_agents", type=int, default=1)
        register_env(env, make_cartpole)
    return parse_full_cfg(parser, words)


def make_cartpole(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    return VectorCartPole(cfg.env_agents) if cfg.batched_sampling else gym.make(name)


def make_atari(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    import ale_py  # noqa: F401 - registers Atari's environments, in each process
    from sf_examples.atari.atari_utils import make_atari_env

    return make_atari_env(name, cfg, env_config, render_mode)


def make_envpool(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    from sf_examples.envpool.atari.envpool_atari_utils import make_atari_env

    env = make_atari_env(name, cfg, env_config, render_mode)
    env.unwrapped.closed = True  # gymnasium's close() looks for it, and EnvPool does not set it
    return env


def measure(name: str, seconds: float, warm_up: float, overrides: list[str]) -> dict[str, Any]:
    window = Window(warm_up, seconds)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        _, runner = make_runner(configure(name, overrides, folder))
        runner.register_observer(Measure(window))
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
    if status != ExperimentStatus.SUCCESS:
        raise RuntimeError(f"Sample Factory ended with status {status}")
    return window.result() | {"settings": SETTINGS[name]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(SETTINGS))
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=10.0)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of Sample Factory's"
    )
    options = parser.parse_args()
    print(json.dumps(measure(options.name, options.seconds, options.warm_up, options.set)))


if __name__ == "__main__":
    main()
