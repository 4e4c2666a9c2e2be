"""What a chaos run ends with: lines for people, then one line of JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

UNDELIVERED = "undelivered"


@dataclass
class Report:
    """Filled while faults go on.

    Attributes:
        recoveries: (fault, seconds that recovery took).
        failures: Bounds that did not hold, in words.
        explained: What the faults so far may have cost: reason of the ledger, or ``UNDELIVERED`` -> transitions.
        ledger: The last one.
    """

    solved: bool = False
    recoveries: list[tuple[str, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    explained: dict[str, float] = field(default_factory=dict)
    by_kind: Counter[str] = field(default_factory=Counter)
    ledger: dict[str, Any] = field(default_factory=dict)

    def injected(self, name: str, explains: Mapping[str, float]) -> None:
        """A fault is about to be injected."""
        self.by_kind[name] += 1
        for reason, most in explains.items():
            self.explained[reason] = self.explained.get(reason, 0.0) + most

    @property
    def unexplained(self) -> dict[str, int]:
        """What was dropped, or taken and not delivered, beyond what the faults explain."""
        lost = {UNDELIVERED: self.ledger.get("undelivered", 0), **self.ledger.get("dropped", {})}
        beyond = {reason: number - self.explained.get(reason, 0.0) for reason, number in lost.items()}
        return {reason: int(number) for reason, number in beyond.items() if number > 0}

    @property
    def steps_lost(self) -> int:
        """|error|, and what no injected fault explains."""
        return abs(int(self.ledger.get("error", 0))) + sum(self.unexplained.values())

    @property
    def ledger_closes(self) -> bool:
        return bool(self.ledger) and self.ledger["error"] == 0

    def fail(self, words: str) -> None:
        self.failures.append(words)
        print(f"FAILED: {words}", flush=True)

    def close(self) -> int:
        """Prints it; the exit code."""
        if not self.ledger_closes:
            self.fail(f"the ledger does not close: {self.ledger}")
        elif self.steps_lost:
            explained = ", ".join(f"{most:g} {reason}" for reason, most in sorted(self.explained.items())) or "nothing"
            self.fail(
                f"steps lost that no fault explains: {self.unexplained}; the faults explain {explained}: {self.ledger}"
            )
        slowest: dict[str, float] = {}
        for name, seconds in self.recoveries:
            slowest[name] = max(seconds, slowest.get(name, 0.0))
        for name, number in sorted(self.by_kind.items()):
            print(f"{name:32} {number:4} times, recovered within {slowest.get(name, float('nan')):6.1f} s")
        print(f"ledger: {json.dumps(self.ledger)}")
        print(f"{len(self.failures)} bounds did not hold" if self.failures else "all bounds held")
        line = {
            "faults": sum(self.by_kind.values()),
            "by_kind": dict(sorted(self.by_kind.items())),
            "steps_lost": self.steps_lost,
            "ledger_closes": self.ledger_closes,
            "solved": self.solved,
            "longest_recovery_seconds": round(max((s for _, s in self.recoveries), default=0.0), 2),
        }
        print(json.dumps(line), flush=True)
        return 1 if self.failures else 0
