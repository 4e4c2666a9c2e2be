"""The store is this run's alone, for as long as its learner runs: ``pipeline.store.ownership``."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import UnreachableError
from pipeline.stopping import OwnedThread, StopToken
from pipeline.store.backends import Stores
from pipeline.store.ownership import Ownership

log = logging.getLogger(__name__)

RENEWALS = 3  # within one lease
JOIN_SECONDS = 3.0


@contextmanager
def owned(stores: Stores, run: str, directory: Path, stop: StopToken) -> Iterator[None]:
    """Takes the store, renews its lease from a thread of its own while the block runs, and gives it back.

    Args:
        stores: What is taken; in memory there is nothing to take.
        run: Id of the run.
        directory: Of the run, for whoever is refused.
        stop: Stopped with the error when the lease is lost.

    Raises:
        ConfigError: another run has the store.
        UnreachableError: the store stayed away.
        StoreError: it refused.
    """
    name = f"the run in {directory.resolve()} (process {os.getpid()} on {socket.gethostname()})"
    ownership = stores.ownership(run, name, stop)
    if ownership is None:
        yield
        return
    ownership.take()
    ended = StopToken()
    thread = OwnedThread("lease", lambda: _renew(ownership, ended), stop)
    thread.start()
    try:
        yield
    finally:
        ended.stop("end")
        thread.join(JOIN_SECONDS)


def _renew(ownership: Ownership, ended: StopToken) -> None:
    """The thread's body."""
    try:
        while not ended.wait(ownership.lease_seconds / RENEWALS):
            ownership.renew()
        ownership.release()
    except UnreachableError as error:
        if not ended.stopped:
            raise
        log.warning("the lease of the store ends by itself in %g s: %s", ownership.lease_seconds, error)
    finally:
        ownership.close()
