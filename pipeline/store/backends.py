"""Which backend holds the unrolls: ``store.backend``."""

from __future__ import annotations

from typing import Protocol

from pipeline.stopping import StopToken
from pipeline.store.interface import Fifo, Replay
from pipeline.store.memory import FifoState, MemoryFifo, MemoryReplay, ReplayState
from pipeline.store.ownership import Claim, Ownership
from pipeline.store.redis_client import RedisServer, StoreSettings
from pipeline.store.redis_replay import RedisReplay, ReplaySettings
from pipeline.store.redis_store import RedisFifo
from pipeline.store.trouble import Trouble


class BackendSettings(StoreSettings, Protocol):
    """``StoreSettings`` and which backend they are for."""

    @property
    def backend(self) -> str: ...


class Stores:
    """Opens stores: ``fifo`` and ``replay`` make an instance for the calling thread. Thread-safe.

    With ``store.backend: memory`` this object holds the data: a process has one, and what it holds ends with it.

    Args:
        store: The section ``store`` of the configuration.
        replay: The section ``replay``.

    Attributes:
        trouble: What keeps these stores' connections from Redis.
    """

    def __init__(self, store: BackendSettings, replay: ReplaySettings) -> None:
        self._store = store
        self._replay = replay
        self._in_memory = store.backend == "memory"
        self._claim = Claim()
        self.trouble = Trouble()
        self._fifo_state = FifoState(store.capacity, store.when_full)
        self._replay_state = ReplayState(replay.capacity, replay.capacity_bytes)

    def fifo(self, consumer: str, stop: StopToken) -> Fifo:
        """The FIFO; ``consumer`` as in ``RedisFifo``.

        Raises:
            ConfigError: Redis' settings are wrong.
        """
        if self._in_memory:
            return MemoryFifo(self._fifo_state, consumer, stop)
        return RedisFifo.from_settings(self._store, consumer, stop, claim=self._claim, trouble=self.trouble)

    def replay(self, producer: str, stop: StopToken) -> Replay:
        """The replay; ``producer`` as in ``RedisReplay``.

        Raises:
            ConfigError: Redis' settings are wrong.
        """
        if self._in_memory:
            return MemoryReplay(self._replay_state)
        return RedisReplay.from_settings(
            self._store, self._replay, producer, stop, claim=self._claim, trouble=self.trouble
        )

    def ownership(self, run: str, name: str, stop: StopToken) -> Ownership | None:
        """The lease of the store, for the calling thread; None in memory, which nobody shares.

        Raises:
            ConfigError: Redis' settings are wrong.
        """
        if self._in_memory:
            return None
        section = self._store
        return Ownership(
            RedisServer.from_settings(section, self.trouble),
            prefix=section.prefix,
            run=run,
            name=name,
            lease_seconds=section.lease_seconds,
            claim=self._claim,
            stop=stop,
        )
