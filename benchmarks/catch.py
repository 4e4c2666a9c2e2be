"""``benchmarks.catch:Catch-v0``: a ball falls, a paddle catches it; seen as an Atari-shaped picture.

The board has 12 rows and 12 columns of cells of 7x7 pixels: observations are uint8 ``[84, 84]``. The ball begins in the
first row of a random column and falls one row a step; the paddle, in the last row, moves left, stays, or moves right.
When the ball reaches the last row the episode ends, after 11 steps, with a reward of 1 where the paddle is below it,
else -1. An agent that does not look returns -0.83 on average. After bsuite's catch (arXiv 1908.03568), with pixels.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

CELLS, PIXELS = 12, 7
SIZE = CELLS * PIXELS

Picture = npt.NDArray[np.uint8]


class Catch(gymnasium.Env[Picture, np.int64]):  # type: ignore[misc]
    """See the module's text."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space = Box(0, 255, (SIZE, SIZE), np.uint8)
    action_space = Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Picture, dict[str, Any]]:
        """The ball in the first row, the paddle in the middle."""
        super().reset(seed=seed)
        self._row, self._ball, self._paddle = 0, int(self.np_random.integers(CELLS)), CELLS // 2
        return self._picture(), {}

    def step(self, action: np.int64) -> tuple[Picture, float, bool, bool, dict[str, Any]]:
        """Moves the paddle, then the ball."""
        self._paddle = min(max(self._paddle + int(action) - 1, 0), CELLS - 1)
        self._row += 1
        ended = self._row == CELLS - 1
        reward = (1.0 if self._paddle == self._ball else -1.0) if ended else 0.0
        return self._picture(), reward, ended, False, {}

    def _picture(self) -> Picture:
        cells = np.zeros((CELLS, CELLS), np.uint8)
        cells[self._row, self._ball] = 255
        cells[-1, self._paddle] = 255
        return np.kron(cells, np.ones((PIXELS, PIXELS), np.uint8))


gymnasium.register("Catch-v0", Catch)
