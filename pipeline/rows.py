"""Rows as they travel: one packed record per row beside the observation leaves (see ``docs/protocol.md``).

A STEP message of a group holds m rows, m >= n environments, in order: first the final-observation rows that need
no reply (``NO_REPLY``: environments that autoreset in the same step), then exactly one row per environment, in
environment order. ``docs/architecture.md`` and SEMANTICS define what a row means.
"""

from __future__ import annotations

import numpy as np

TERMINATED = 1  # this row's observation ended the episode by the task's rules
TRUNCATED = 2  # ... or by a limit; both flags: treated as terminated
FIRST = 4  # this row's observation begins an episode (reward is 0)
NO_REPLY = 8  # a final-observation row whose reset row follows in the same message
LIFE_LOST = 16  # a life was lost in the step to this row: what is learnt ends here, the episode goes on
KNOWN_FLAGS = TERMINATED | TRUNCATED | FIRST | NO_REPLY | LIFE_LOST

ROW = np.dtype(
    [
        ("environment", "<u2"),  # index within the group
        ("flags", "<u2"),
        ("reward", "<f4"),  # arrived with the observation; raw, never scaled or clipped
        ("index", "<i8"),  # valid transitions that this environment has completed in this run, this row's included
        ("episode_return", "<f8"),  # raw undiscounted return; only on final rows, else 0
        ("episode_length", "<i8"),  # agent steps; only on final rows, else 0
    ]
)
assert ROW.itemsize == 32


def row_number(sequence: int, no_reply: bool) -> int:
    """A row's running number within its environment's run: grows with each row, survives a learner restart."""
    return 2 * sequence + (0 if no_reply else 1)


def environment_id(worker: int, offset: int) -> int:
    """An environment's name in ledger and store: leased worker index and offset within the worker."""
    return worker << 16 | offset


def worker_of(environment: int) -> int:
    """The leased worker index of an environment, from its id."""
    return environment >> 16


def offset_of(environment: int) -> int:
    """An environment's offset within its worker, from its id."""
    return environment & 0xFFFF
