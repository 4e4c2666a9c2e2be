"""The account of one env group in the child's shared memory: what its steps came to, whatever becomes of them."""

from __future__ import annotations

from workers.block import Block
from workers.group import Group


class GroupBooks:
    """Written by the loop around each step of the group.

    Args:
        block: Shared memory.
        index: The group's.
        group: Its counters are read after each step.

    Attributes:
        steps: How often it was stepped or reset.
    """

    def __init__(self, block: Block, index: int, group: Group) -> None:
        self.steps = 0
        self._block, self._index, self._group = block, index, group
        self._rows = 0  # transitions in rows so far
        self._unsent = 0
        self._made, self._in_a_step = 0, False
        group.made = block.made
        self._write(0)

    def begins(self) -> None:
        """The group is about to be stepped or reset."""
        self._made, self._in_a_step = 0, False

    def marks(self, resets: bool) -> int:
        """A single environment is about to run; the transitions that those before it have made in this step."""
        self._made += self._in_a_step
        self._in_a_step = not resets
        return self._made

    def failed(self) -> None:
        """The single environment that ran has failed, and is made anew."""
        self._in_a_step = False

    def ended(self, late: bool) -> None:
        """It has come back: what its rows hold is on its way from now on, or (``late``) never will be."""
        self.steps += 1
        rows = self._group.rows
        last = rows.taken - rows.dropped - self._rows
        self._rows += last
        if late:
            self._unsent += last
        self._write(0 if late else last)

    def _write(self, last: int) -> None:
        group = self._group
        self._block.book(self._index, (group.n, self.steps, *group.counters(), self._unsent, last))
