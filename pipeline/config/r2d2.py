"""The section `r2d2`: what is learnt from replayed unrolls, and how environments explore."""

from __future__ import annotations

from pydantic import Field

from pipeline.config.section import Section


class R2d2Section(Section):
    burn_in: int = Field(40, ge=0)
    """Rows before the learnt ones that only bring the recurrent state up to date; unrolls overlap by so many more."""
    n_steps: int = Field(5, ge=1)
    """n of the n-step targets."""
    discount: float = Field(0.997, ge=0, le=1)
    """gamma."""
    target_update_period: int = Field(2500, ge=1)
    """Updates between two copies of the network to the target network."""
    eta: float = Field(0.9, ge=0, le=1)
    """Priority of an unroll: `eta` times the largest plus 1 - `eta` times the mean absolute TD error."""
    rescale_epsilon: float | None = Field(1e-3, ge=0)
    """epsilon of the value rescaling h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x; 0 or none learns plain values."""
    double_q: bool = True
    """Bootstrap from the action that the network itself prefers, not the target network."""
    dueling_hidden: int = Field(512, ge=0)
    """Units of the hidden layer of value and of advantage each; 0 means none."""
    epsilon_base: float = Field(0.4, ge=0, le=1)
    """Environment i of K that train explores with epsilon `epsilon_base` ** (1 + `epsilon_alpha` i / (K - 1))."""
    epsilon_alpha: float = Field(7.0, ge=0)
    """See `epsilon_base`."""
    epsilon_count: int | None = Field(None, ge=1)
    """K; default the configured environments, `workers.count` times `workers.envs`."""
    eval_epsilon: float = Field(0.0, ge=0, le=1)
    """epsilon of evaluation environments and of greedy evaluation."""
    reward_scale: float = Field(1.0, gt=0)
    """Rewards are multiplied by this in the loss (before clipping)."""
    reward_clip: float | None = Field(None, gt=0)
    """Rewards are clipped to +- this in the loss."""
