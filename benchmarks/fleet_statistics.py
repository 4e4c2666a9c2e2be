"""What a fleet of clients has done."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Statistics:
    """What a fleet has done.

    Attributes:
        joined: Clients that were welcomed.
        together: Most that held a lease at the same time, each with an index of its own.
        steps: Valid transitions taken.
        replies: Answers, one to each message of observations.
        repeated: Messages that were sent again.
        reconnects: Sockets made anew.
        join_seconds: Since all began: the last WELCOME.
        first_action_seconds: Since all began: median and last.
        latency_seconds: Of answers: median and 99th percentile.
        left: Clients whose BYE was answered.
        failures: What clients ended with otherwise -> how many.
    """

    clients: int = 0
    joined: int = 0
    together: int = 0
    steps: int = 0
    replies: int = 0
    repeated: int = 0
    reconnects: int = 0
    join_seconds: float = 0.0
    first_action_seconds: tuple[float, float] = (0.0, 0.0)
    latency_seconds: tuple[float, float] = (0.0, 0.0)
    left: int = 0
    failures: dict[str, int] = field(default_factory=dict)
