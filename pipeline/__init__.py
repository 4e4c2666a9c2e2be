"""seedmq: the SEED RL architecture as a message-queue pipeline.

``pipeline`` holds what every role shares: configuration, the wire protocol, the pure state machines, the
unroll layout and the stores. It imports none of the roles (``broker``, ``workers``, ``learner``).
"""

__version__ = "0.1.0"
