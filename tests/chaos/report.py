"""What a chaos run ends with: lines for people, then one line of JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Report:
    """Filled while faults go on.

    Attributes:
        recoveries: (fault, seconds that recovery took).
        failures: Bounds that did not hold, in words.
        explained: Reasons of the ledger under which the faults so far may have cost transitions.
        ledger: The last one.
    """

    solved: bool = False
    recoveries: list[tuple[str, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    explained: set[str] = field(default_factory=set)
    by_kind: Counter[str] = field(default_factory=Counter)
    ledger: dict[str, Any] = field(default_factory=dict)

    @property
    def steps_lost(self) -> int:
        """|error|, and drops under reasons that no injected fault explains."""
        dropped = self.ledger.get("dropped", {})
        unexplained = {reason: number for reason, number in dropped.items() if reason not in self.explained}
        return abs(int(self.ledger.get("error", 0))) + sum(unexplained.values())

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
            self.fail(f"{self.steps_lost} steps lost that no fault explains: {self.ledger}")
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
