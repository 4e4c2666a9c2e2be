"""The priority that an unroll enters the replay with: its loss under the Q-values that acted. numpy, any thread.

The same loss as the learner's (``learner.algorithms.r2d2``), with the acting network as its own target network: no
network is run. What a final observation that asked for no action is worth (environments that reset in the same step) is
not known here and counts as 0 where the episode was truncated; the first update of the unroll corrects its priority.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from learner.r2d2 import MIN_PRIORITY, rescale, unscale
from pipeline.config.r2d2 import R2d2Section

Array = npt.NDArray[Any]


def initial_priorities(fields: Mapping[str, Array], settings: R2d2Section) -> npt.NDArray[np.float32]:
    """Priorities of n unrolls, float32 ``[n]``; 1e-6 without a valid learnt row.

    Args:
        fields: Views of records as ``UnrollLayout.view`` makes them, ``[n, rows, ...]``: behaviour (Q-values), action,
            reward, terminated, life_lost, valid. Row 0 is the first of ``settings.burn_in`` rows that are left out.
        settings: The loss.
    """
    start = settings.burn_in
    q = fields["behaviour"][:, start:]
    action = fields["action"][:, start:-1]
    valid = fields["valid"][:, start:] != 0
    reward = fields["reward"][:, start + 1 :] * np.float32(settings.reward_scale)
    if settings.reward_clip is not None:
        reward = np.clip(reward, -settings.reward_clip, settings.reward_clip)
    ends = fields["terminated"] | fields["life_lost"]
    discount = np.float32(settings.discount) * (ends[:, start + 1 :] == 0)
    best = unscale(q.max(-1), settings.rescale_epsilon)
    returns = best.copy()
    for _ in range(min(settings.n_steps, reward.shape[1])):
        # One row's new value reads the next row's old one: the right side is complete before it is assigned.
        returns[:, :-1] = np.where(valid, reward + discount * returns[:, 1:], best[:, :-1])
    chosen = np.take_along_axis(q[:, :-1], action[..., None].astype(np.int64), -1)[..., 0]
    td = np.where(valid, np.abs(rescale(returns[:, :-1], settings.rescale_epsilon) - chosen), 0.0)
    mean = td.sum(1) / np.maximum(valid.sum(1), 1)
    mixed = settings.eta * td.max(1) + (1.0 - settings.eta) * mean
    return (np.where(np.isfinite(mixed), mixed, 0.0) + MIN_PRIORITY).astype(np.float32)
