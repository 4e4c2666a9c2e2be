"""Payloads of the store that do not open: left out, counted, and said once a minute. Training goes on without them.

The learner itself writes what is stored, so there are none in ordinary operation: somebody else wrote, or memory or
disk flipped a bit. A run must not end for it, and must not end again and again for the same payload.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pipeline.errors import StoreError
from pipeline.store.codec import Records, decode_whole
from pipeline.unrolls import UnrollLayout

log = logging.getLogger(__name__)

DAMAGED = "damaged"
"""Why transitions are dropped whose payload does not open."""
COMPLAINT_SECONDS = 60.0


class Damage:
    """Opens payloads and keeps the count. Belongs to the prefetch thread; ``unrolls`` may be read by any.

    Args:
        layout: The record.
        clock: Monotonic seconds.

    Attributes:
        unrolls: Payloads that did not open, so far.
    """

    def __init__(self, layout: UnrollLayout, clock: Callable[[], float]) -> None:
        self.unrolls = 0
        self._layout = layout
        self._clock = clock
        self._silent_until = float("-inf")

    def open(
        self,
        payloads: Sequence[bytes],
        out: Records,
        valid: Sequence[int] | None = None,
        ids: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.bool_]:
        """The records of those that open, in order, to the front of ``out``.

        Args:
            payloads: B payloads.
            out: uint8 ``[B, layout.nbytes]``.
            valid: Valid transitions of each, as the store's books have them; a record that holds another number is
                none of theirs.
            ids: Of each, where one may stand here twice: it counts once.

        Returns:
            Which are whole, bool ``[B]``.
        """
        errors = decode_whole(payloads, self._layout, out)
        if valid is not None:
            held = np.count_nonzero(self._layout.view(out)["valid"], axis=1)
            for i, (here, there) in enumerate(zip(held, valid, strict=True)):
                if errors[i] is None and here != there:
                    errors[i] = StoreError(f"an unroll of {here} valid transitions where the store has {there} booked")
        whole = np.array([error is None for error in errors], np.bool_)
        if not whole.all():
            number = np.count_nonzero(~whole) if ids is None else len(np.unique(ids[~whole]))
            self._note(int(number), next(error for error in errors if error is not None))
            out[: np.count_nonzero(whole)] = out[whole]
        return whole

    def _note(self, number: int, first: StoreError) -> None:
        self.unrolls += number
        now = self._clock()
        if now >= self._silent_until:
            self._silent_until = now + COMPLAINT_SECONDS
            log.error(
                "left out what does not open in the store, %d unrolls so far, and went on; the first of these: %s",
                self.unrolls,
                first,
            )
