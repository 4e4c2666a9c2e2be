"""How often and how soon a worker's child is started anew. Pure: the caller brings time and chance."""

from __future__ import annotations

import re
from collections import deque

TRIES = 3
FIRST_STEPS = 100
_VARYING = re.compile(r"0x[0-9a-fA-F]+|-?\d+(\.\d+)?(e-?\d+)?|\[[^\]]*\]")

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


class FirstSteps:
    """Whether what is started again and again is broken, rather than unlucky.

    It is where ``TRIES`` faults in a row are the same, up to numbers and lists in the message, and no environment has
    ended an episode or taken more than ``FIRST_STEPS`` steps in any try so far.
    """

    def __init__(self) -> None:
        self._far = False
        self._fault = ""
        self._times = 0

    def fault(self, message: str, episodes: int, steps: float) -> bool:
        """Books a fault; whether another try would end in the same one.

        Args:
            message: Type, place and words of the fault.
            episodes: That ended in this try.
            steps: Of an environment, in this try, on average.
        """
        self._far = self._far or episodes > 0 or steps > FIRST_STEPS
        fault = _VARYING.sub("#", message)
        self._times = self._times + 1 if fault == self._fault else 1
        self._fault = fault
        return not self._far and self._times >= TRIES
