"""Noticing that the store lost its data, or some of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pipeline.ledger import STORE_LOST, Ledger

log = logging.getLogger(__name__)


class Epochs:
    """Remembers the store's epoch and what it lost within it, and books what is gone. Call it under the ledger's gate.

    A put is the first to know, or a checkpoint that comes before it.

    Args:
        ledger: Books.
        begin_again: Called when all is lost.
    """

    def __init__(self, ledger: Ledger, begin_again: Callable[[], None] = lambda: None) -> None:
        self._ledger = ledger
        self._begin_again = begin_again
        self._epoch = ""
        self._lost_total = 0

    def notice(self, epoch: str, lost_total: int) -> None:
        """Compares with what was known before.

        Args:
            epoch: Another one than before: all that was there is lost. Empty says nothing.
            lost_total: Of a replay's own books: a larger one than before: it came back with older data.
        """
        if not epoch:
            return
        if epoch != self._epoch and self._epoch:
            lost = self._ledger.lost("store", STORE_LOST)
            log.warning("the store lost its data, and with it %d transitions that waited there", lost)
            self._begin_again()
        elif epoch == self._epoch and lost_total > self._lost_total:
            lost = self._ledger.lost("store", STORE_LOST, lost_total - self._lost_total)
            log.warning("the store came back with older data: %d transitions are gone", lost)
        self._epoch, self._lost_total = epoch, lost_total
