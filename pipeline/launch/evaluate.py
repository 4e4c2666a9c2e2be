"""``seedmq eval``: plays episodes with the newest good checkpoint of a run.

Episodes are assigned beforehand: of n environments, environment j plays episodes j, j + n, j + 2n, ..., and all
of them are waited for. To take the first that finish would favour short ones. Returns are raw and undiscounted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress, TextColumn

from pipeline.config.tree import Config
from pipeline.errors import EXIT_FINISHED, CheckpointError, EnvironmentFailure, SpaceError
from pipeline.reaping import run_kept
from pipeline.rows import FIRST, TERMINATED, TRUNCATED
from pipeline.run_dir import RunDirectory
from pipeline.streams import Lane, Role, Stream, environment_seed, environment_seeds

if TYPE_CHECKING:
    from learner.policies import Acting
    from workers.group import Group
    from workers.rows import StepRows


LINE_SECONDS = 10.0


class Ended(NamedTuple):
    """Episodes that ended with these rows: environments ``[k]`` and raw returns ``[k]``."""

    environments: npt.NDArray[np.int64]
    returns: npt.NDArray[np.float64]


class Schedule:
    """Which environment plays which episode. Pure.

    Args:
        episodes: N, in all.
        environments: n, at most N.
    """

    def __init__(self, episodes: int, environments: int) -> None:
        self.returns: list[float | None] = [None] * episodes
        self._next = np.arange(environments)
        self._stride = environments
        self._steps = np.zeros(environments, np.int64)
        self.finished = 0

    @property
    def done(self) -> bool:
        return self.finished == len(self.returns)

    def book(self, ended: Ended) -> None:
        """Notes returns; what an environment plays beyond its episodes is ignored."""
        for environment, value in zip(ended.environments.tolist(), ended.returns.tolist(), strict=True):
            episode = int(self._next[environment])
            if episode < len(self.returns):
                self.returns[episode] = value
                self.finished += 1
                self._next[environment] += self._stride

    def advance(self, begins: npt.NDArray[np.bool_]) -> int:
        """A step of all environments; gives how many the longest episode of those that are waited for has had.

        Args:
            begins: ``[n]`` environments that begin an episode.
        """
        self._steps += 1
        self._steps[begins] = 0
        return int(self._steps[self._next < len(self.returns)].max(initial=0))

    def check(self, max_steps: int) -> None:
        """Whether an episode that is waited for has an end.

        Raises:
            EnvironmentFailure: it has taken more steps than this. A mean over the others would favour short ones.
        """
        late = np.flatnonzero((self._next < len(self.returns)) & (self._steps > max_steps))
        if not len(late):
            return
        bound = f"after {max_steps:,} steps (--max-steps)"
        if not self.finished:
            raise EnvironmentFailure(f"no episode has ended {bound}: does the environment ever end one?")
        raise EnvironmentFailure(
            f"{len(late)} of {len(self._next)} environments have an episode that has not ended {bound}; "
            f"{self.finished} of {len(self.returns)} episodes had ended, and a mean over those would favour short ones"
        )


def evaluate(run_dir: Path, episodes: int, mode: str, seed: int, as_json: bool, *, max_steps: int) -> int:
    """Plays ``episodes`` episodes and prints their returns.

    Args:
        run_dir: of a run, going on or ended.
        episodes: at least 1.
        mode: ``greedy`` explores as evaluation does (not at all by default), ``sample`` as training does.
        seed: of environments and sampling.
        as_json: print a JSON mapping instead of a table.
        max_steps: of one episode.

    Raises:
        ConfigError: there is no run in ``run_dir``, or its environment cannot be made.
        CheckpointError: it has no usable checkpoint.
        SpaceError: the environment has other spaces than the one trained on.
        EnvironmentFailure: an episode has not ended after ``max_steps``.
    """
    directory = RunDirectory.open(run_dir)
    if not directory.checkpoints.is_dir() or not any(directory.checkpoints.iterdir()):
        raise CheckpointError(f"no checkpoint in {directory.checkpoints}: the run has not trained yet")
    return run_kept(lambda: _evaluated(directory, episodes, mode, seed, as_json, max_steps=max_steps))


def _evaluated(directory: RunDirectory, episodes: int, mode: str, seed: int, as_json: bool, *, max_steps: int) -> int:
    """In a process of its own, with which goes what environments have started."""
    config = _on_any_device(directory.read_config())
    environments = min(episodes, config.workers.envs, config.learner.inference_batch)

    from learner.start import load_tensorflow

    load_tensorflow()
    from learner.agent import load_policy
    from workers.environments import make_group

    group = make_group(config.environment, environments)
    try:
        agent = load_policy(config, directory.checkpoints, environments, Stream(seed, Role.COMMAND))
        difference = group.spaces.difference(agent.spaces)
        if difference is not None:
            raise SpaceError(f"the environment is not the one that was trained on: {difference}")
        rows = group.reset(environment_seeds(environment_seed(seed, Lane.COMMAND, 0), environments))
        explored = agent.exploration.in_mode("greedy" if mode == "greedy" else "sample").of_evaluation(environments)
        returns = _play(group, agent.policy, rows, Schedule(episodes, environments), explored, max_steps=max_steps)
    finally:
        group.close()
    result = summarize(mode, returns)
    click.echo(json.dumps(result) if as_json else text(result, agent.version))
    return EXIT_FINISHED


def summarize(mode: str, returns: list[float]) -> dict[str, Any]:
    """What ``--json`` prints; the deviation is that of the episodes, not of their mean."""
    return {
        "episodes": len(returns),
        "mode": mode,
        "episode_return_mean": float(np.mean(returns)),
        "episode_return_std": float(np.std(returns)),
        "episode_returns": returns,
    }


def text(result: dict[str, Any], version: int) -> str:
    """The same in words."""
    returns = result["episode_returns"]
    return "\n".join(
        [
            f"policy version   {version}",
            f"episodes         {result['episodes']} ({result['mode']})",
            f"return           {result['episode_return_mean']:.2f} ± {result['episode_return_std']:.2f}",
            f"lowest, highest  {min(returns):.2f}, {max(returns):.2f}",
        ]
    )


def ended_in(rows: StepRows) -> Ended:
    """Episodes whose final row is among ``rows``: a row of its own, with or without a reply."""
    records = rows.records
    final = records[(records["flags"] & (TERMINATED | TRUNCATED)) != 0]
    return Ended(final["environment"].astype(np.int64), final["episode_return"].astype(np.float64))


def _play(
    group: Group, policy: Acting, rows: StepRows, schedule: Schedule, exploration: Any, *, max_steps: int
) -> list[float]:
    n = group.n
    slots = np.arange(n, dtype=np.int32)
    first = np.ones(n, np.bool_)
    with Shown(len(schedule.returns)) as shown:
        while True:
            schedule.book(ended_in(rows))
            if schedule.done:
                return [float(value) for value in schedule.returns if value is not None]
            # The last n rows are the environments'; final rows that came with their successors need no action.
            records, leaves = rows.records[-n:], [leaf[-n:] for leaf in rows.leaves]
            begins = (records["flags"] & FIRST) != 0
            shown.update(schedule.finished, schedule.advance(begins))
            schedule.check(max_steps)
            first |= begins
            acted = policy.submit(slots, first, records["reward"], leaves, exploration).result()
            first = np.zeros(n, np.bool_)
            rows = group.step(np.ascontiguousarray(acted.env_action).tobytes())


class Shown:
    """How far it is: a bar in a terminal, else a line every few seconds; on the error stream.

    Args:
        episodes: In all.
        clock: Monotonic seconds.
    """

    def __init__(self, episodes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._episodes = episodes
        self._clock = clock
        self._bar = Progress(
            *Progress.get_default_columns(),
            TextColumn("{task.fields[steps]}"),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("episodes", total=episodes, steps="")
        self._began = self._said_at = clock()

    def __enter__(self) -> Shown:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, finished: int, longest: int) -> None:
        """Episodes that have ended, and steps of the longest that has not."""
        if not self._bar.disable:
            self._bar.update(self._task, completed=finished, steps=f"the longest of the others: {longest:,} steps")
        elif (now := self._clock()) >= self._said_at + LINE_SECONDS:
            self._said_at = now
            words = f"{now - self._began:.0f} s: {finished:,} of {self._episodes:,} episodes have ended"
            click.echo(f"{words}, the longest of the others has taken {longest:,} steps", err=True)


def _on_any_device(config: Config) -> Config:
    """A run that was trained on a GPU can be evaluated where there is none."""
    learner = config.learner.model_copy(update={"inference_devices": ["auto"], "training_devices": ["auto"]})
    return config.model_copy(update={"learner": learner})
