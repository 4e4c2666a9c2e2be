"""The DeepMind Lab adapter against the lab's published API: there is no wheel, so a module of that surface is used."""

import sys
import types
from typing import ClassVar

import numpy as np
import pytest

from pipeline.config.load import load
from pipeline.config.tree import EnvironmentSection
from pipeline.errors import MissingExtraError
from pipeline.rows import FIRST, TERMINATED
from pipeline.streams import environment_seeds
from workers.environments import make_group

pytestmark = pytest.mark.unit


class Lab:
    """Episodes of three steps; the picture counts them."""

    made: ClassVar[list["Lab"]] = []

    def __init__(self, level, observations, config, renderer):
        self.level, self.config, self.renderer = level, config, renderer
        self.steps, self.seeds, self.actions = 0, [], []
        assert observations == ["RGB_INTERLEAVED"]
        Lab.made.append(self)

    def reset(self, seed):
        self.steps = 0
        self.seeds.append(seed)

    def observations(self):
        assert self.is_running(), "no observation after the end"
        return {"RGB_INTERLEAVED": np.full((72, 96, 3), self.steps, np.uint8)}

    def step(self, action, num_steps):
        assert action.dtype == np.intc and action.shape == (7,)
        self.actions.append((tuple(action.tolist()), num_steps))
        self.steps += 1
        return 0.5

    def is_running(self):
        return self.steps < 3

    def close(self):
        pass


def section() -> EnvironmentSection:
    return load("dmlab_vtrace", environ={}).config.environment


def test_it_plays_as_the_preset_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepmind_lab", types.SimpleNamespace(Lab=Lab))
    Lab.made.clear()
    group = make_group(section(), 2)
    rows = [group.reset(environment_seeds(1, 2)).records.copy()]
    pictures = []
    for _ in range(4):
        records, (leaf,) = group.step(np.zeros(2, np.int64).tobytes())
        rows.append(records.copy())
        pictures.append(leaf.max())
    labs = [lab for lab in Lab.made if lab.seeds]
    assert {lab.level for lab in labs} == {"contributed/dmlab30/explore_goal_locations_small"}
    assert labs[0].config == {"width": "96", "height": "72"} and labs[0].seeds[0] != labs[1].seeds[0]
    assert labs[0].actions[0] == ((0, 0, 0, 1, 0, 0, 0), 4), "frame_skip reaches the lab once"
    assert rows[3]["flags"].tolist() == [TERMINATED] * 2
    assert rows[3]["episode_return"].tolist() == [1.5, 1.5]
    assert pictures[2] == 2, "the last picture stands as the final one"
    assert rows[4]["flags"].tolist() == [FIRST] * 2 and len(labs[0].seeds) == 2
    group.close()


def test_without_the_lab_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(MissingExtraError, match="no wheel; build it"):
        make_group(section(), 1)
