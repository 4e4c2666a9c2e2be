"""A rate over a window after a warm-up; the standard library alone, as peers' environments import it too."""

from __future__ import annotations


class Window:
    """Trained steps per second from readings of a counter.

    The warm-up begins with the first reading. The window begins with the first reading at or after the warm-up's end
    and ends with the first that is at least ``seconds`` later, so it always holds whole updates.

    Args:
        warm_up_seconds: Not counted.
        seconds: At least this long.
    """

    def __init__(self, warm_up_seconds: float, seconds: float) -> None:
        self._warm_up = warm_up_seconds
        self._seconds = seconds
        self._first: float | None = None
        self._begin: tuple[float, int] | None = None
        self._end: tuple[float, int] | None = None

    def add(self, now: float, steps: int) -> bool:
        """A reading: ``steps`` trained on until ``now`` seconds; whether the window is over. Later ones are ignored."""
        if self._end is not None:
            return True
        if self._first is None:
            self._first = now
        if self._begin is None:
            if now - self._first >= self._warm_up:
                self._begin = now, steps
        elif now - self._begin[0] >= self._seconds:
            self._end = now, steps
        return self._end is not None

    @property
    def over(self) -> bool:
        return self._end is not None

    @property
    def open(self) -> bool:
        """Whether the warm-up is over and the window is not."""
        return self._begin is not None and self._end is None

    def result(self) -> dict[str, float]:
        """``agent_steps_per_second``, ``agent_steps`` and ``seconds`` of the window.

        Raises:
            RuntimeError: it is not over.
        """
        if self._begin is None or self._end is None:
            raise RuntimeError("training ended before the window was over")
        seconds, steps = self._end[0] - self._begin[0], self._end[1] - self._begin[1]
        return {"agent_steps_per_second": steps / seconds, "agent_steps": steps, "seconds": seconds}
