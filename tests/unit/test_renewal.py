"""One environment of a group fails: it alone is made anew, and what the others did stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from pipeline.rows import FIRST, NO_REPLY, TERMINATED
from tests.counter_env import CounterEnv
from tests.mini_broker import Tally
from workers.group import Group
from workers.singles import Singles
from workers.watched import Watched

pytestmark = pytest.mark.unit
N, FAILS = 4, 2


class Made:
    """Makes environments, of which that at ``FAILS`` fails at step 3 of its second episode, or of every one."""

    def __init__(self, fault: str, mode: AutoresetMode, faults: int = 10**6, every: bool = False) -> None:
        self.numbers: list[list[int]] = [[] for _ in range(N)]
        self.closed: list[int] = []
        self.told: list[tuple[int, str]] = []
        self.fault, self.faults, self.every = fault, faults, every
        self.group = Group(Singles(self.make, N, mode, self.on_fault))
        self.rows = self.group.reset(np.arange(100, 100 + N))

    def make(self, index: int) -> Watched:
        made = self

        class Env(CounterEnv):
            def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
                if seed is not None:
                    made.numbers[index].append(seed)
                return super().reset(seed=seed, options=options)

            def close(self) -> None:
                made.closed.append(index)

        due = index == FAILS and (self.every or not self.told)
        return Watched(Env(fault=self.fault if due else None, at=3, episode=1 if self.every else 2), index, None)

    def on_fault(self, index: int, error: BaseException) -> None:
        if len(self.told) == self.faults:
            raise error
        self.told.append((index, str(error)))

    def step(self) -> Any:
        self.rows = self.group.step(np.zeros(N, np.int64).tobytes())
        return self.rows


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("fault", ["raise", "shape", "sys_exit"])
def test_only_the_environment_that_failed_is_made_anew(fault, mode):
    made = Made(fault, mode)
    tallies = [Tally() for _ in range(N)]
    while not made.told:
        for record in made.rows.records:
            tallies[record["environment"]].add(record)
        made.step()
    before = [tally.valid for tally in tallies]
    records, (leaf,) = made.rows
    assert records["flags"].tolist() == [FIRST if index == FAILS else 0 for index in range(N)]
    assert leaf[:, 2].tolist() == [0 if index == FAILS else 3 for index in range(N)]
    assert records["index"].tolist() == [count + (index != FAILS) for index, count in enumerate(before)]
    assert made.closed == [FAILS] and [index for index, _ in made.told] == [FAILS]
    assert [len(numbers) for numbers in made.numbers] == [2 if index == FAILS else 1 for index in range(N)]
    assert len(set(made.numbers[FAILS])) == 2, "it begins another stream"
    for _ in range(40):
        for record in made.rows.records:
            tallies[record["environment"]].add(record)
        made.step()
    for record in made.rows.records:
        tallies[record["environment"]].add(record)
    rows = made.group.rows
    assert (rows.taken, rows.masked) == (sum(t.valid for t in tallies), sum(t.masked for t in tallies))
    assert rows.dropped == 0


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_its_next_episode_has_its_own_return(mode):
    made = Made("raise", mode)
    found: list[Any] = []
    for _ in range(40):
        records = made.step().records
        found += [(record["environment"], record["episode_return"], record["episode_length"])
                  for record in records if record["flags"] & TERMINATED]  # fmt: skip
    assert {(value, length) for _, value, length in found} == {(28, 7)}
    assert all(record["flags"] & NO_REPLY for record in records[:-N])


def test_an_environment_that_fails_in_each_episode_spends_the_budget():
    made = Made("raise", AutoresetMode.NEXT_STEP, faults=3, every=True)
    with pytest.raises(RuntimeError, match="told to fail"):
        for _ in range(100):
            made.step()
    assert len(made.told) == 3


def test_what_fails_before_its_first_step_fails_the_group():
    def make(index: int) -> Watched:
        return Watched(CounterEnv(fault="raise" if index == 1 else None, at=1), index, None)

    told: list[int] = []
    group = Group(Singles(make, 2, on_fault=lambda index, error: told.append(index)))
    group.reset(np.arange(2))
    with pytest.raises(RuntimeError, match="told to fail"):
        group.step(np.zeros(2, np.int64).tobytes())
    assert not told


def test_an_environment_that_cannot_be_made_again_is_tried_again():
    class Broken(CounterEnv):
        starts = 0

        def __init__(self) -> None:
            super().__init__(fault="raise", at=3)
            Broken.starts += 1
            if 1 < Broken.starts < 4:
                raise ConnectionError("the simulator is not there yet")

        def close(self) -> None:
            raise OSError("it is gone already")

    told: list[str] = []
    singles = Singles(
        lambda index: Watched(Broken(), index, None), 1, on_fault=lambda i, error: told.append(str(error))
    )
    group = Group(singles)
    group.reset(np.arange(1))
    flags = [int(group.step(np.zeros(1, np.int64).tobytes()).records["flags"][0]) for _ in range(3)]
    assert flags == [0, 0, FIRST] and Broken.starts == 4
    assert told == ["the counter was told to fail at step 3", *["the simulator is not there yet"] * 2]
