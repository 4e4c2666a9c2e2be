"""From configuration and spaces to what acts and what is trained."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from learner.checkpoint import load_latest
from learner.devices import Devices, choose_devices, configure_runtime
from learner.distributions import Distribution
from learner.exploration import Exploration
from learner.inputs import RewardTransform
from learner.method import Method, method_of
from learner.networks.build import build_network, convolves
from learner.networks.network import Network, named_variables, state_shapes
from learner.networks.precision import choose_precision
from learner.policies import Acting, SplitPolicy
from learner.policy import Policy
from learner.trainer import Trainer
from pipeline.config.tree import Config
from pipeline.errors import CheckpointError
from pipeline.spaces import Spaces
from pipeline.streams import Stream
from pipeline.unrolls import UnrollLayout

log = logging.getLogger(__name__)

NETWORK = "network/"  # how the trainer names the network's variables
SMALLEST_BUCKET = 8


@dataclass(frozen=True)
class Agent:
    """A network on its devices, with the distribution of its actions and the record of its unrolls."""

    config: Config
    spaces: Spaces
    devices: Devices
    method: Method
    network: Network
    layout: UnrollLayout

    @property
    def distribution(self) -> Distribution:
        return self.method.distribution

    @property
    def rewards(self) -> RewardTransform:
        return self.method.rewards

    @property
    def exploration(self) -> Exploration:
        return self.method.exploration

    def another_network(self) -> Network:
        """One more network like the one that is trained, on the same devices."""
        with self.devices.strategy.scope():
            return _network(self.config, self.spaces, self.devices, self.method)

    def policy(self, slots: int, stream: Stream, network: Network | None = None) -> Acting:
        """A policy with ``slots`` slots over the inference devices; one trace per batch bucket.

        Args:
            slots: How many.
            stream: Of its noise; each device has its own.
            network: Another one than the one that is trained.
        """
        names = self.devices.inference
        each = -(-slots // len(names))
        policies = [
            Policy(
                network or self.network,
                self.distribution,
                self.spaces,
                slots=each,
                frame_stack=self.config.environment.frame_stack,
                padding=self.config.environment.stack_padding,
                rewards=self.rewards,
                buckets=buckets(min(self.config.learner.inference_batch, each)),
                device=name,
                key=stream.key(k),
                jit_compile=self.config.learner.jit_compile,
            )
            for k, name in enumerate(names)
        ]
        return policies[0] if len(policies) == 1 else SplitPolicy(policies)

    def trainer(self) -> Trainer:
        """The trainer of the network."""
        environment = self.config.environment
        return Trainer(
            self.network,
            self.method.algorithm(lambda: _network(self.config, self.spaces, self.devices, self.method)),
            self.config.training.optimizer,
            self.devices,
            environment.frame_stack,
            environment.stack_padding,
            self.rewards,
            batch_size=self.config.training.batch_size,
            jit_compile=self.config.learner.jit_compile,
        )


def buckets(largest: int) -> list[int]:
    """Batch sizes that are traced: powers of two up to ``largest``, which is one whatever it is."""
    sizes = []
    size = SMALLEST_BUCKET
    while size < largest:
        sizes.append(size)
        size *= 2
    return [*sizes, largest]


def prepare_devices(config: Config) -> Devices:
    """Threads and devices; before anything else touches TensorFlow.

    Raises:
        ConfigError: a demanded device is missing.
    """
    configure_runtime(config.learner.intra_op_threads, config.learner.inter_op_threads)
    devices = choose_devices(config.learner.inference_devices, config.learner.training_devices)
    log.info(devices.description)
    return devices


def build_agent(config: Config, spaces: Spaces, devices: Devices) -> Agent:
    """Builds the network on its devices.

    Raises:
        ConfigError: settings that do not go together.
        SpaceError: spaces that the network or the frame stack cannot take.
    """
    method = method_of(config, spaces.action, convolves(config.network, spaces, config.environment.frame_stack))
    distribution = method.distribution
    with devices.strategy.scope():
        network = _network(config, spaces, devices, method)
    layout = UnrollLayout(
        unroll_length=method.rows_before + config.training.unroll_length,
        frame_stack=config.environment.frame_stack,
        observation=spaces.observation,
        action_shape=distribution.action_shape,
        action_dtype=distribution.action_dtype,
        behaviour_size=distribution.parameters,
        state_shapes=state_shapes(network),
    )
    return Agent(config, spaces, devices, method, network, layout)


def _network(config: Config, spaces: Spaces, devices: Devices, method: Method) -> Network:
    """One network, in the scope of the strategy; all that are made are equal."""
    precision = choose_precision(config.network.precision, devices.replicas)
    if config.network.precision != "float32":
        log.info("the network's torso computes in %s", precision)
    settings = config.network.model_copy(update={"precision": precision})
    stack = config.environment.frame_stack
    return build_network(spaces, method.distribution, settings, stack, config.run.seed, head=method.head)


class Restored(NamedTuple):
    """A policy from a checkpoint, warmed up.

    Attributes:
        policy: Acts.
        spaces: What it was trained on.
        version: Its version.
        exploration: How much its environments explore.
    """

    policy: Acting
    spaces: Spaces
    version: int
    exploration: Exploration


def load_policy(config: Config, checkpoints: Path, slots: int, stream: Stream) -> Restored:
    """The policy of the newest good checkpoint, for evaluation.

    Raises:
        CheckpointError: there is no usable checkpoint, or it is of another network.
    """
    found = load_latest(checkpoints)
    if found is None:
        raise CheckpointError(f"no checkpoint in {checkpoints}")
    spaces = Spaces.from_wire(found.meta["spaces"])
    agent = build_agent(config, spaces, prepare_devices(config))
    for name, variable in named_variables(agent.network):
        array = found.arrays.get(NETWORK + name)
        if array is None or tuple(array.shape) != tuple(variable.shape):
            got = "nothing" if array is None else f"shape {tuple(array.shape)}"
            raise CheckpointError(f"{found.path}: {name} of shape {tuple(variable.shape)} here, {got} there")
        variable.assign(array)
    policy = agent.policy(slots, stream)
    policy.warm_up()
    return Restored(policy, spaces, int(found.meta["version"]), agent.exploration)
