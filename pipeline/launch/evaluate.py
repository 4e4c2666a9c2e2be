"""``seedmq eval``: plays episodes with the newest good checkpoint of a run.

Episodes are assigned beforehand: of n environments, environment j plays episodes j, j + n, j + 2n, ..., and all
of them are waited for. To take the first that finish would favour short ones. Returns are raw and undiscounted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress

from pipeline.config.tree import Config
from pipeline.errors import EXIT_FINISHED, CheckpointError, SpaceError
from pipeline.reaping import run_kept
from pipeline.rows import FIRST, TERMINATED, TRUNCATED
from pipeline.run_dir import RunDirectory
from pipeline.streams import Lane, Role, Stream, environment_seed, environment_seeds

if TYPE_CHECKING:
    from learner.policies import Acting
    from workers.group import Group
    from workers.rows import StepRows


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
        self._next = list(range(environments))
        self._stride = environments
        self.finished = 0

    @property
    def done(self) -> bool:
        return self.finished == len(self.returns)

    def book(self, ended: Ended) -> None:
        """Notes returns; what an environment plays beyond its episodes is ignored."""
        for environment, value in zip(ended.environments.tolist(), ended.returns.tolist(), strict=True):
            episode = self._next[environment]
            if episode < len(self.returns):
                self.returns[episode] = value
                self.finished += 1
                self._next[environment] += self._stride


def evaluate(run_dir: Path, episodes: int, mode: str, seed: int, as_json: bool) -> int:
    """Plays ``episodes`` episodes and prints their returns.

    Args:
        run_dir: of a run, going on or ended.
        episodes: at least 1.
        mode: ``greedy`` explores as evaluation does (not at all by default), ``sample`` as training does.
        seed: of environments and sampling.
        as_json: print a JSON mapping instead of a table.

    Raises:
        ConfigError: there is no run in ``run_dir``, or its environment cannot be made.
        CheckpointError: it has no usable checkpoint.
        SpaceError: the environment has other spaces than the one trained on.
    """
    directory = RunDirectory.open(run_dir)
    if not directory.checkpoints.is_dir() or not any(directory.checkpoints.iterdir()):
        raise CheckpointError(f"no checkpoint in {directory.checkpoints}: the run has not trained yet")
    return run_kept(lambda: _evaluated(directory, episodes, mode, seed, as_json))


def _evaluated(directory: RunDirectory, episodes: int, mode: str, seed: int, as_json: bool) -> int:
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
        returns = _play(group, agent.policy, rows, Schedule(episodes, environments), explored)
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


def _play(group: Group, policy: Acting, rows: StepRows, schedule: Schedule, exploration: Any) -> list[float]:
    n = group.n
    slots = np.arange(n, dtype=np.int32)
    first = np.ones(n, np.bool_)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("episodes", total=len(schedule.returns))
        while True:
            schedule.book(ended_in(rows))
            progress.update(bar, completed=schedule.finished)
            if schedule.done:
                return [float(value) for value in schedule.returns if value is not None]
            # The last n rows are the environments'; final rows that came with their successors need no action.
            records, leaves = rows.records[-n:], [leaf[-n:] for leaf in rows.leaves]
            first |= (records["flags"] & FIRST) != 0
            acted = policy.submit(slots, first, records["reward"], leaves, exploration).result()
            first = np.zeros(n, np.bool_)
            rows = group.step(np.ascontiguousarray(acted.env_action).tobytes())


def _on_any_device(config: Config) -> Config:
    """A run that was trained on a GPU can be evaluated where there is none."""
    learner = config.learner.model_copy(update={"inference_devices": ["auto"], "training_devices": ["auto"]})
    return config.model_copy(update={"learner": learner})
