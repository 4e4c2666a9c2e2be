"""RLlib's IMPALA: trained agent steps per second.

    python train.py {cartpole,cartpole_vectorized,pong,pong_vectorized} [--seconds S] [--warm-up S]

Runs in an environment of its own (``requirements.txt``), imports nothing of seedmq and prints one JSON object last.
Steps are the learner's ``num_env_steps_trained_lifetime``, not those that were sampled; it counts a row more for each
piece of an episode, the one that its value is bootstrapped from.

    cartpole             RLlib's tuned example of IMPALA on CartPole-v1, with seedmq's network
    cartpole_vectorized  the same with gymnasium's vectorized CartPole in each runner (``vector_entry_point``)
    pong                 RLlib's Atari wrappers (84x84, four frames), whose observations are float32
    pong_vectorized      ALE's own vectorized Pong in each runner, made float32 as RLlib's network wants it
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

sys.path.append(str(Path(__file__).resolve().parent.parent))
from window import Window

CPUS = len(os.sched_getaffinity(0))
CONV_FILTERS = [[32, 8, 4, "valid"], [64, 4, 2, "valid"], [64, 3, 1, "valid"]]
CARTPOLE = {
    "env": "CartPole-v1",
    "training": {"grad_clip": 40.0, "grad_clip_by": "global_norm", "lr": 0.0005, "vf_loss_coeff": 0.05},
    "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": True},
}
PONG = {
    "training": {
        "grad_clip": 30.0,
        "grad_clip_by": "global_norm",
        "lr": 0.0008,
        "vf_loss_coeff": 0.5,
        "entropy_coeff": 0.01,
    },
    "model": {"conv_filters": CONV_FILTERS, "head_fcnet_hiddens": [512], "vf_share_layers": True},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "cartpole": CARTPOLE
    | {"runners": {"num_env_runners": CPUS, "num_envs_per_env_runner": 1, "rollout_fragment_length": 50}, "batch": 500},
    "cartpole_vectorized": CARTPOLE
    | {
        "runners": {"num_env_runners": CPUS, "num_envs_per_env_runner": 64, "rollout_fragment_length": 20},
        "vectorize": "vector_entry_point",
        "batch": 2560,
    },
    "pong": PONG
    | {
        "env": "pong",
        "runners": {"num_env_runners": CPUS, "num_envs_per_env_runner": 5, "rollout_fragment_length": 50},
        "batch": 500,
    },
    "pong_vectorized": PONG
    | {
        "env": "pong",
        "runners": {"num_env_runners": CPUS, "num_envs_per_env_runner": 16, "rollout_fragment_length": 20},
        "vectorize": "vector_entry_point",
        "batch": 640,
    },
}


class FloatFrames(gym.vector.VectorObservationWrapper):
    """uint8 ``[N, 4, 84, 84]`` of ALE to float32 ``[N, 84, 84, 4]`` from -1 to 1, as RLlib's Atari wrapper scales."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        shape = (84, 84, 4)
        self.single_observation_space = gym.spaces.Box(-1.0, 1.0, shape, np.float32)
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (self.num_envs, *shape), np.float32)

    def observations(self, observations: Any) -> Any:
        return np.moveaxis(observations, 1, -1).astype(np.float32) / 128.0 - 1.0


def make_pong(context: Any) -> Any:
    import ale_py
    from ale_py.vector_env import AtariVectorEnv
    from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack

    if "num_envs" in context:
        return FloatFrames(AtariVectorEnv("pong", num_envs=context["num_envs"], num_threads=1))
    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    return wrap_atari_for_new_api_stack(env, dim=84, framestack=4)


def configure(name: str) -> IMPALAConfig:
    settings = SETTINGS[name]
    return (
        IMPALAConfig()
        .environment(settings["env"])
        .env_runners(gym_env_vectorize_mode=settings.get("vectorize", "sync"), **settings["runners"])
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=settings["batch"], **settings["training"])
        .rl_module(model_config=DefaultModelConfig(**settings["model"]))
        .reporting(min_time_s_per_iteration=1)
        .debugging(log_level="ERROR")
    )


def measure(name: str, seconds: float, warm_up: float) -> dict[str, Any]:
    ray.init(num_cpus=2 * CPUS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    register_env("pong", make_pong)
    algorithm = configure(name).build_algo()
    window = Window(warm_up, seconds)
    try:
        while not window.over:
            trained = algorithm.train().get("learners", {}).get("__all_modules__", {})
            if "num_env_steps_trained_lifetime" in trained:
                window.add(time.monotonic(), int(trained["num_env_steps_trained_lifetime"]))
    finally:
        algorithm.stop()
        ray.shutdown()
    return window.result() | {"settings": SETTINGS[name]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(SETTINGS))
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=10.0)
    options = parser.parse_args()
    print(json.dumps(measure(options.name, options.seconds, options.warm_up)))


if __name__ == "__main__":
    main()
