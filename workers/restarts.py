"""How often and how soon a worker's child is started anew. Pure: the caller brings time and chance."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 600.0
FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 30.0


class RestartBudget:
    """Faults within a sliding window; delays double with each of them.

    Args:
        budget: Faults within ``WINDOW_SECONDS`` that are survived.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._faults: deque[float] = deque(maxlen=budget + 1)

    def fault(self, now: float, chance: float) -> float | None:
        """Books a fault.

        Args:
            now: Monotonic seconds.
            chance: Uniform in [0, 1): spreads the delays of many workers.

        Returns:
            Seconds to wait before the restart, between half and one and a half times the nominal delay; None when the
            budget is spent.
        """
        while self._faults and self._faults[0] <= now - WINDOW_SECONDS:
            self._faults.popleft()
        self._faults.append(now)
        count = len(self._faults)
        if count > self._budget:
            return None
        return min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** (count - 1)) * (0.5 + chance)
