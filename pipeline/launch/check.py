"""``seedmq config check``: what a run would refuse, by the code that would refuse it, without starting one.

One environment is made, and on its spaces the network and the optimizer that the configuration asks for, on the CPU.
"""

from __future__ import annotations

import os

import click

from pipeline.config.effects import without_effect
from pipeline.config.load import Loaded
from pipeline.config.tree import Config
from pipeline.errors import ConfigError, MissingExtraError, SeedmqError
from pipeline.spaces import Spaces


def check(loaded: Loaded) -> None:
    """Prints whether a run could begin with it, what has no effect, and what cannot be told on this machine.

    Raises:
        SeedmqError: as a run's worker or learner would.
    """
    for line in without_effect(loaded):
        click.echo(f"note: {line}")
    try:
        _check_network(loaded.config, _spaces(loaded.config))
    except MissingExtraError as error:
        click.echo(f"not checked here, environment and network: {error}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tensorflow":
            raise
        click.echo("not checked here, the network: TensorFlow is not installed")
    click.echo(f"{loaded.source}: ok")


def _spaces(config: Config) -> Spaces:
    """Of the configured environment, one of which is made, and closed again."""
    from workers.environments import make_group
    from workers.place import words_of

    try:
        group = make_group(config.environment, 1)
        try:
            return group.spaces
        finally:
            group.close()
    except SeedmqError:
        raise
    except Exception as error:
        raise ConfigError(f"environment.id = {config.environment.id}: {words_of(error, 'making one')}") from error


def _check_network(config: Config, spaces: Spaces) -> None:
    """Builds network and optimizer; on the CPU, as this machine may not be the learner's."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from learner.start import load_tensorflow

    load_tensorflow()
    from learner.agent import build_agent
    from learner.devices import choose_devices

    build_agent(config, spaces, choose_devices(["cpu:0"], ["cpu:0"])).trainer()
