"""The section `replay`: what is kept of an off-policy algorithm's experience, and how it is sampled."""

from __future__ import annotations

from pydantic import Field, model_validator

from pipeline.config.section import LIVE, Section


class ReplaySection(Section):
    capacity: int = Field(100_000, gt=0)
    """Unrolls kept; the oldest make room for new ones."""
    capacity_bytes: int | None = Field(None, gt=0)
    """Bytes of encoded unrolls kept, whichever bound comes first; none means no such bound."""
    min_size: int = Field(5000, gt=0)
    """Unrolls that must have been inserted before sampling begins."""
    samples_per_insert: float = Field(1.5, gt=0, json_schema_extra=LIVE)
    """How often an unroll is sampled per unroll inserted, in the long run; what comes too early waits for the other.
    Changed while a run goes on, it counts for what is inserted from then on."""
    tolerance: float | None = Field(None, gt=0)
    """Samples by which either side may be ahead, at least half of `training.batch_size`; default twice
    `training.batch_size`."""
    hold_inserts: bool = True
    """Environments wait for a learner that is behind `samples_per_insert`; else only the learner waits."""
    priority_exponent: float = Field(0.9, ge=0, le=2)
    """Unrolls are sampled in proportion to their priority to this power; 0 samples uniformly."""
    importance_exponent: float = Field(0.6, ge=0, le=1)
    """Importance weights are (1 / (N p)) to this power; 0 means none."""

    @model_validator(mode="after")
    def _can_begin(self) -> ReplaySection:
        if self.min_size > self.capacity:
            raise ValueError(f"min_size = {self.min_size} is never there in capacity = {self.capacity} unrolls")
        return self
