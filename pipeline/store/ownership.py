"""Who writes to a store in Redis: one learner at a time, by a lease.

A learner **takes** the store before it touches it, **renews** its lease while it runs and **releases** it at the end.
The key ``<prefix>:owner`` (a hash) holds the owner's token, run, name, since (Unix time) and the end of the lease
(milliseconds, by Redis' clock). While the lease lasts, another run is refused; the same run, started again after its
learner died, gets the store at once (that only one of it runs is the run directory's lock's concern).

Tokens grow from taking to taking, and every script that writes carries its learner's (``guard.lua``): one that was
stopped for longer than its lease, while another took the store over, writes nothing any more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError
from pipeline.stopping import StopToken
from pipeline.store.redis_client import RedisLink, RedisServer, utc
from pipeline.store.redis_limits import check_single
from pipeline.store.scripts import script


@dataclass
class Claim:
    """What the instances of one process on one store share.

    Attributes:
        token: The owner's; empty: nobody asks whose store it is.
        mark: How far the store's books had come at the last change that was answered (``fifo_mark.lua``,
            ``replay_mark.lua``): what Redis holds must not be older.
    """

    token: str = ""
    mark: str = ""


class Ownership:
    """One learner's lease of a store. Belongs to one thread.

    Args:
        server: Where Redis is.
        prefix: Of the store's keys.
        run: Stable id of the run.
        name: For whoever is refused: the run's directory, host and process, on one line.
        lease_seconds: How long a learner that is not heard of keeps the store.
        claim: Gets the token.
        stop: Ends waiting early.
    """

    def __init__(
        self,
        server: RedisServer,
        *,
        prefix: str,
        run: str,
        name: str,
        lease_seconds: float,
        claim: Claim,
        stop: StopToken | None = None,
    ) -> None:
        self.lease_seconds = lease_seconds
        self._link = RedisLink(server, f"{prefix}:owner", stop or StopToken())
        self._take = self._link.client.register_script(script("own"))
        self._renew = self._link.client.register_script(script("renew"))
        self._prefix = prefix
        self._run = run
        self._name = name
        self._claim = claim
        self._since = ""

    def take(self) -> None:
        """Takes the store.

        Raises:
            ConfigError: another run has it; says which, since when, and what to do. Or it is a Redis Cluster.
            UnreachableError: Redis stayed away.
            StoreError: Redis refused.
        """
        check_single(self._link)
        arguments: list[Any] = [self._run, self._name, int(self.lease_seconds * 1000)]
        reply: Any = self._link.call(lambda client: self._take([self._key], arguments, client))
        token, *rest = (word.decode() for word in reply)
        if not token:
            name, since, left = rest
            raise ConfigError(
                f"store.prefix = {self._prefix}: {name} writes there since {utc(since)}; choose another store.prefix, "
                f"or end that run, or, if it is dead, wait {math.ceil(int(left) / 1000)} s until its lease ends"
            )
        self._claim.token, self._since = token, rest[0]

    def renew(self) -> None:
        """Goes on with the lease; made anew where Redis lost it.

        Raises:
            StoreError: another learner took the store over.
            UnreachableError: Redis stayed away.
        """
        self._hold(self.lease_seconds)

    def release(self) -> None:
        """Ends the lease. Raises as ``renew``."""
        self._hold(0.0)

    def close(self) -> None:
        """Closes the connection."""
        self._link.close()

    @property
    def _key(self) -> str:
        return f"{self._prefix}:owner"

    def _hold(self, seconds: float) -> None:
        arguments: list[Any] = [self._claim.token, self._run, self._name, self._since, int(seconds * 1000)]
        self._link.call(lambda client: self._renew([self._key], arguments, client))
