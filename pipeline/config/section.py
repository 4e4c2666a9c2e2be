"""What every section of the configuration tree is made from."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

LIVE: Final[JsonDict] = {"live": True}
"""``Field(..., json_schema_extra=LIVE)`` marks a setting that `seedmq adjust` changes while a run goes on; the learner
takes it where ``learner.live`` finds a setter for it."""

LONGEST_SECONDS = 1_000_000  # 11 days; poll, socket and lock timeouts end at 24
Seconds = Annotated[float, Field(le=LONGEST_SECONDS)]
"""Of a wait: no operating system waits for as long as a float can say."""


class Section(BaseModel):
    """A section: unknown keys, NaN and infinities are errors, values are frozen after validation."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )
