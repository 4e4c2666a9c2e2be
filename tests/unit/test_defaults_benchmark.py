"""``benchmarks/defaults.py``: its picture task, and what it writes of curves."""

import numpy as np
import pytest

from benchmarks import defaults
from benchmarks.catch import CELLS, PIXELS, SIZE, Catch

pytestmark = pytest.mark.unit


def play(environment, choose):
    """Return and length of an episode in which ``choose(ball, paddle)`` acts on what the picture shows."""
    picture, _ = environment.reset()
    for steps in range(1, 100):
        assert picture.shape == (SIZE, SIZE) and picture.dtype == np.uint8
        cells = picture[::PIXELS, ::PIXELS]
        ball, paddle = int(np.argmax(cells[:-1].max(0))), int(np.argmax(cells[-1]))
        picture, reward, terminated, truncated, _ = environment.step(np.int64(choose(ball, paddle)))
        assert not truncated
        if terminated:
            return reward, steps
    raise AssertionError("the ball never arrives")


def test_who_looks_catches_every_ball_and_who_does_not_one_in_twelve():
    environment = Catch()
    environment.reset(seed=1)
    assert {play(environment, lambda ball, paddle: 1 + np.sign(ball - paddle)) for _ in range(50)} == {(1.0, CELLS - 1)}
    still = [play(environment, lambda ball, paddle: 1)[0] for _ in range(2000)]
    assert np.mean(still) == pytest.approx(-1 + 2 / CELLS, abs=0.05)


@pytest.mark.parametrize("length", [0, 1, 5, 500])
def test_a_curve_keeps_its_ends_and_no_more_points_than_a_table_of_a_few_kilobytes_holds(length, tmp_path):
    curve = [(float(i), i / 3) for i in range(length)]
    kept = defaults.thinned(curve)
    assert len(kept) == min(length, defaults.POINTS - 1)
    assert kept[:1] + kept[-1:] == [(int(s), round(r, 2)) for s, r in curve[:1] + curve[-1:]]
    row = {"task": "A-v0", "seed": 3}
    defaults.write_curves(tmp_path / "curves.csv", [defaults.Run(row, kept), defaults.Run(row, [(7, 0.5)])])
    lines = (tmp_path / "curves.csv").read_text().splitlines()
    assert lines[0] == "task,seed,steps,return" and lines[-1] == "A-v0,3,7,0.5" and len(lines) == len(kept) + 2
