"""What keeps a process's connections from the store, by name, while it lasts: for its status."""

from __future__ import annotations

import threading


class Trouble:
    """Shared by a process's connections. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, str] = {}  # bounded: one entry per connection name

    def begins(self, connection: str, state: str) -> None:
        """A command of this connection failed for a reason that passes by itself."""
        with self._lock:
            self._states[connection] = state

    def ends(self, connection: str) -> None:
        """A command of it worked."""
        if self._states:  # seldom: not a lock for every command
            with self._lock:
                self._states.pop(connection, None)

    def words(self) -> str:
        """The states; empty where every connection works."""
        with self._lock:
            return ", ".join(sorted(set(self._states.values())))
