"""The section `evaluation`: environments that only evaluate, and when a run is solved by them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.config.section import Section


class EvaluationSection(Section):
    workers: int = Field(0, ge=0)
    """Evaluation worker processes under `seedmq run`: they feed nothing into the store."""
    envs: int = Field(20, gt=0)
    """Environments of each, in one group."""
    episodes: int = Field(20, gt=0)
    """Episodes of a round, all played with one fixed copy of the weights; each environment plays its even share."""
    mode: Literal["greedy", "sample"] = "greedy"
    """How evaluation environments act: `greedy` takes the best action (R2D2: but for `r2d2.eval_epsilon`), `sample`
    explores as training does."""
    solved_return: float | None = None
    """Stop where the mean return of a round reaches this, and that of a second round of the same weights too; save the
    weights that played them."""
    max_steps: int = Field(100_000, gt=0)
    """Steps of one episode; a longer one voids its round, which is said. `seedmq eval` has its own `--max-steps`."""
