"""Noticing that the store lost its data."""

from __future__ import annotations

import logging

from pipeline.ledger import STORE_LOST, Ledger

log = logging.getLogger(__name__)


class Epochs:
    """Remembers the store's epoch and books what waited there when it changes. Call it under the ledger's gate.

    A put is the first to know, or a checkpoint that comes before it.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._epoch = ""

    def notice(self, epoch: str) -> bool:
        """Whether ``epoch`` is another one than before; empty says nothing."""
        if not epoch or epoch == self._epoch:
            return False
        known, self._epoch = self._epoch, epoch
        if known:
            lost = self._ledger.lost("store", STORE_LOST)
            log.warning("the store lost its data, and with it %d transitions that waited there", lost)
        return bool(known)
