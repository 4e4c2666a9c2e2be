"""The section `network`: which network, and what it is made of."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.config.section import Section

NETWORKS = ("auto", "mlp", "nature_cnn", "impala_deep")
"""Networks that seedmq brings; any other is a class by import path."""
PositiveInt = Annotated[int, Field(gt=0)]


class NetworkSection(Section):
    name: str = "auto"
    """`auto`: `nature_cnn` where all pictures among the observations (one at least) have 36x36 pixels or more, else
    `mlp`. Or one of `mlp`, `nature_cnn`, `impala_deep`, or a class by import path, `package.module:Class`."""
    hidden: list[PositiveInt] | None = None
    """Units of the dense layers (`mlp`: all of them; `nature_cnn`, `impala_deep`: after the convolutions). Default:
    [64, 64] for `mlp`, [512] for `nature_cnn`, [256] for `impala_deep`."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Activation of the `mlp`."""
    lstm: int = Field(0, ge=0)
    """Units of the LSTM core; 0 means none."""
    previous_action: bool = False
    """Feed the previous action (one-hot where discrete) to the core."""
    previous_reward: bool = False
    """Feed the previous reward, clipped as in the loss, to the core."""
    separate_value: bool | None = None
    """Give the value its own torso (`mlp`). Default: where there is no LSTM, which policy and value share."""
    normalize_observations: bool = True
    """Feed observations in units of their own spread: less their running mean, divided by their running standard
    deviation, clipped to +- 10. Not for pictures that are convolved, `Discrete` and `MultiBinary`, nor in a class by
    import path, which may hold a `learner.networks.normalizer` itself."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """What the torso of `nature_cnn` and `impala_deep` computes in, acting and training alike; weights and all the rest
    stay float32. `auto`: bfloat16 where every device has instructions for it (CPUs with AVX512_BF16 or AMX_BF16, GPUs
    from compute capability 8.0), else float32. In bfloat16, log-probabilities of batches of other sizes may differ by
    3e-4."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of a class by import path."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in NETWORKS and not re.fullmatch(r"[\w.]+:[\w.]+", name):
            raise ValueError(f"not one of {', '.join(NETWORKS)}, nor a class of yours, package.module:Class")
        return name

    @model_validator(mode="after")
    def _fits_its_kind(self) -> NetworkSection:
        if self.kwargs and self.name in NETWORKS:
            raise ValueError(f"network.kwargs are for a class by import path, not for network.name = {self.name}")
        if self.separate_value and self.name in ("nature_cnn", "impala_deep"):
            raise ValueError(f"network.separate_value = true is for mlp, not for network.name = {self.name}")
        if self.separate_value and self.lstm and self.name in NETWORKS:
            raise ValueError(
                f"network.lstm = {self.lstm} is shared by policy and value, which network.separate_value = true parts: "
                f"set one of the two"
            )
        return self

    @model_validator(mode="after")
    def _has_convolutions_to_speed_up(self) -> NetworkSection:
        if self.precision != "float32" and self.name not in ("auto", "nature_cnn", "impala_deep"):
            raise ValueError(f"precision = {self.precision} is for nature_cnn and impala_deep, not for {self.name}")
        return self
