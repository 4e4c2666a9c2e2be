"""DeepMind Lab as gymnasium environments: ``workers.dmlab:DeepMindLab/<level>-v0`` for the levels of DMLab-30.

Against the published Python API of github.com/google-deepmind/lab (its ``docs/users/python_api.md``). No wheel: it
must be built there and installed. Actions and observation size are those of SEED RL (``dmlab/env.py``).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from pipeline.errors import MissingExtraError

Frame = npt.NDArray[np.uint8]

OBSERVATION = "RGB_INTERLEAVED"
ACTIONS = np.array(
    [  # look left-right, look down-up, strafe, move, fire, jump, crouch
        (0, 0, 0, 1, 0, 0, 0),  # forward
        (0, 0, 0, -1, 0, 0, 0),  # backward
        (0, 0, -1, 0, 0, 0, 0),  # strafe left
        (0, 0, 1, 0, 0, 0, 0),  # strafe right
        (-20, 0, 0, 0, 0, 0, 0),  # look left
        (20, 0, 0, 0, 0, 0, 0),  # look right
        (-20, 0, 0, 1, 0, 0, 0),  # look left and go forward
        (20, 0, 0, 1, 0, 0, 0),  # look right and go forward
        (0, 0, 0, 0, 1, 0, 0),  # fire
    ],
    np.intc,
)
LEVELS = (
    "rooms_collect_good_objects_train",
    "rooms_exploit_deferred_effects_train",
    "rooms_select_nonmatching_object",
    "rooms_watermaze",
    "rooms_keys_doors_puzzle",
    "language_select_described_object",
    "language_select_located_object",
    "language_execute_random_task",
    "language_answer_quantitative_question",
    "lasertag_one_opponent_small",
    "lasertag_three_opponents_small",
    "lasertag_one_opponent_large",
    "lasertag_three_opponents_large",
    "natlab_fixed_large_map",
    "natlab_varying_map_regrowth",
    "natlab_varying_map_randomized",
    "skymaze_irreversible_path_hard",
    "skymaze_irreversible_path_varied",
    "psychlab_arbitrary_visuomotor_mapping",
    "psychlab_continuous_recognition",
    "psychlab_sequential_comparison",
    "psychlab_visual_search",
    "explore_object_locations_small",
    "explore_object_locations_large",
    "explore_obstructed_goals_small",
    "explore_obstructed_goals_large",
    "explore_goal_locations_small",
    "explore_goal_locations_large",
    "explore_object_rewards_few",
    "explore_object_rewards_many",
)


class DeepMindLab(gymnasium.Env):  # type: ignore[misc]
    """One level. Observation uint8 ``[height, width, 3]``; nine discrete actions; the reward is the level's own.

    An episode that ends has no observation of its own: the last one stands as the final one.

    Args:
        level: Path below the game scripts, such as ``contributed/dmlab30/rooms_watermaze``.
        width: Pixels.
        height: Pixels.
        frame_skip: Frames per step; rewards are summed.
        renderer: ``software`` or ``hardware`` (needs a GPU).
        config: More of the lab's own settings, as text.

    Raises:
        MissingExtraError: ``deepmind_lab`` is not installed.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium's own type

    def __init__(
        self,
        level: str,
        *,
        width: int = 96,
        height: int = 72,
        frame_skip: int = 1,
        renderer: str = "software",
        config: dict[str, str] | None = None,
    ) -> None:
        try:
            import deepmind_lab
        except ImportError as error:
            raise MissingExtraError(
                "DeepMind Lab is not installed: it has no wheel; build it from github.com/google-deepmind/lab "
                "(bazel build -c opt python/pip_package) and pip install what that makes"
            ) from error
        settings = {"width": str(width), "height": str(height), **(config or {})}
        self._lab = deepmind_lab.Lab(level, [OBSERVATION], config=settings, renderer=renderer)
        self._frame_skip = frame_skip
        self._last: Frame = np.zeros((height, width, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Box(0, 255, (height, width, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """A fresh level: its seed is drawn from the environment's own generator."""
        super().reset(seed=seed)
        self._lab.reset(seed=int(self.np_random.integers(2**31 - 1)))
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        reward = float(self._lab.step(ACTIONS[int(action)], num_steps=self._frame_skip))
        done = not self._lab.is_running()
        return (self._last if done else self._observe()), reward, done, False, {}

    def close(self) -> None:
        self._lab.close()

    def _observe(self) -> Frame:
        self._last = np.array(self._lab.observations()[OBSERVATION], np.uint8)
        return self._last


for _level in LEVELS:
    gymnasium.register(
        f"DeepMindLab/{_level}-v0",
        entry_point=DeepMindLab,
        kwargs={"level": f"contributed/dmlab30/{_level}", "frame_skip": 1},
    )
