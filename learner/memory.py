"""Whether a learner's buffers fit its memory: they grow with the observation, which only workers know. Arithmetic.

Where ``learner.slots`` is not set and its default does not fit, there are twice as many as configured environments, or
as many as fit, down to those environments; more workers wait.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline import host
from pipeline.config.tree import Config
from pipeline.errors import CapacityError
from pipeline.unrolls import STATE, UnrollLayout

log = logging.getLogger(__name__)

BATCHES = 3  # beside those prefetched: one that is trained on, and one that is made, as records and by rows
PADDED = 2  # padded batches of all sizes together, in largest ones


@dataclass(frozen=True)
class Needs:
    """What is kept in memory, by what it is for.

    Attributes:
        config: The configuration.
        layout: Of an unroll.
        on_cpu: The policy's tables and batches are in the host's memory.
    """

    config: Config
    layout: UnrollLayout
    on_cpu: bool

    @property
    def observation(self) -> int:
        """Bytes of one observation, a single frame."""
        return sum(leaf.nbytes for leaf in self.layout.observation)

    def parts(self, slots: int) -> Iterator[tuple[str, int]]:
        """In words, and bytes."""
        config, layout = self.config, self.layout
        learner, training, stack = config.learner, config.training, config.environment.frame_stack
        policies = 1 + (config.evaluation.workers > 0)
        yield f"open unrolls, learner.slots = {slots} x {layout.nbytes:,}", slots * layout.nbytes
        if self.on_cpu:
            state = sum(field.nbytes for name, field in layout.fields.items() if name.startswith(STATE))
            carried = (stack - 1) * self.observation + state
            yield f"what slots carry, {slots} x {policies} x {carried:,}", slots * policies * carried
        rows = min(learner.inference_batch, slots)
        copies = policies * (PADDED + (1 + stack if self.on_cpu else 0))
        yield f"inference, learner.inference_batch of {rows} rows x {copies} copies", rows * copies * self.observation
        batches = training.prefetch_batches + BATCHES + 1  # the writer holds as many unrolls as a batch
        unrolls = batches * training.batch_size
        yield (
            f"batches, training.batch_size = {training.batch_size} unrolls x {batches} "
            f"(training.prefetch_batches = {training.prefetch_batches})",
            unrolls * layout.nbytes,
        )
        if config.store.backend == "memory":
            yield from self._stored()

    def _stored(self) -> Iterator[tuple[str, int]]:
        config, nbytes = self.config, self.layout.nbytes
        if config.training.algorithm == "r2d2":
            total = config.replay.capacity * nbytes
            most = total if config.replay.capacity_bytes is None else min(total, config.replay.capacity_bytes)
            yield f"store.backend = memory, replay.capacity = {config.replay.capacity} unrolls", most
        else:
            yield (
                f"store.backend = memory, store.capacity = {config.store.capacity} unrolls",
                config.store.capacity * nbytes,
            )

    def total(self, slots: int) -> int:
        """Bytes of all parts."""
        return sum(nbytes for _, nbytes in self.parts(slots))

    def most_slots(self, room: int, limit: int) -> int:
        """As many slots as ``room`` bytes hold, at most ``limit``; the sum grows with them."""
        low, high = 0, limit
        while low < high:
            middle = math.ceil((low + high) / 2)
            low, high = (middle, high) if self.total(middle) <= room else (low, middle - 1)
        return low


def fitted(config: Config, layout: UnrollLayout, on_cpu: bool, memory: host.Memory | None = None) -> Config:
    """The configuration with ``learner.slots`` as they fit.

    Args:
        config: The configuration.
        layout: Of an unroll.
        on_cpu: Inference is on the CPU.
        memory: Default: as it is here.

    Raises:
        CapacityError: ``learner.slots``, or where it is not set the configured environments, do not fit; the message
            has the arithmetic.
    """
    memory = memory or host.memory()
    needs, room = Needs(config, layout, on_cpu), int(host.MEMORY_SHARE * memory.nbytes)
    most = needs.most_slots(room, config.slots)
    if most == config.slots:
        return config
    least = max(1, config.environments)
    sum_ = _sum(needs, config.slots if config.learner.slots else least)
    bound = f"at most {host.MEMORY_SHARE:.0%} of {memory.whose} {_size(memory.nbytes)} are taken"
    if most < least:
        raise CapacityError(
            f"{sum_}; {bound}, which does not do for {least} environments: smaller observations, fewer of "
            "workers.envs, a shorter training.unroll_length or a smaller training.batch_size"
        )
    if config.learner.slots is not None:
        raise CapacityError(f"{sum_}; {bound}: set learner.slots to {most} or less, or leave it out")
    default, most = config.slots, min(most, 2 * least)
    log.info(
        "learner.slots = %d, as the default of %d does not fit: %s; %s", most, default, _sum(needs, default), bound
    )
    return config.model_copy(update={"learner": config.learner.model_copy(update={"slots": most})})


def _sum(needs: Needs, slots: int) -> str:
    parts = "; ".join(f"{words} = {_size(nbytes)}" for words, nbytes in needs.parts(slots))
    return (
        f"an observation has {needs.observation:,} bytes, an unroll of training.unroll_length = "
        f"{needs.config.training.unroll_length} {needs.layout.nbytes:,}: {parts}; in all {_size(needs.total(slots))}"
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"
