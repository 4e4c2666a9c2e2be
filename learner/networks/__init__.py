"""Networks: policy and value from observations, previous action, previous reward and recurrent state."""

from learner.networks.build import build_network
from learner.networks.network import Network, named_variables, state_shapes

__all__ = ["Network", "build_network", "named_variables", "state_shapes"]
