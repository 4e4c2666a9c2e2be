"""Which of the run's learner processes this is, and how many environments the run has had: kept in the run's directory.

Each start of a learner takes the next incarnation before anything is drawn, and environments are numbered on where the
processes before may have come to (blocks of numbers are reserved in the file before they are used). So no stream of
``pipeline.streams`` is drawn from twice, whatever died: broker and workers know nothing of it, and the store neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from learner.overwritten import overwrite
from pipeline.config.tree import Config
from pipeline.errors import CheckpointError, UnwrittenError
from pipeline.run_dir import read_json
from pipeline.streams import Lane, Role, Stream, environment_seed

RESERVED_NUMBERS = 4096
FILE_BYTES = 128  # of the file: it never grows
_LANES = {Lane.TRAINING: "training", Lane.EVALUATION: "evaluation"}


class Incarnation:
    """One learner process of a run.

    Attributes:
        number: Learner processes of the run that have begun before this one.

    Args:
        path: The file; before the run's first learner begins there is none.
        seed: ``run.seed``.

    Raises:
        ConfigError: the file cannot be read.
        CheckpointError: it does not say what it should.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._seed = path, seed
        found = read_json(path)
        self.number, self._next = (0, dict.fromkeys(_LANES, 0)) if found is None else _opened(path, found)
        self._reserved = self._next

    def begin(self) -> None:
        """Takes the incarnation, for good: from now on may be drawn.

        Raises:
            UnwrittenError: the file system refuses.
        """
        self._reserve()

    def stream(self, role: Role) -> Stream:
        """What this process draws from for a role."""
        return Stream(self._seed, role, self.number)

    def environments(self, lane: Lane, count: int) -> int:
        """The seed of the first of ``count`` new environments; ``environment_seeds`` gives the others'. One thread.

        Raises:
            UnwrittenError: no more numbers can be reserved now: the file system refuses.
        """
        first = self._next[lane]
        if first + count > self._reserved[lane]:
            self._reserve({lane: count})
        self._next[lane] = first + count
        return environment_seed(self._seed, lane, first)

    def _reserve(self, wanted: dict[Lane, int] | None = None) -> None:
        """Writes how far numbers may be given: ``RESERVED_NUMBERS`` beyond what is ``wanted``."""
        reserved = {lane: at + (wanted or {}).get(lane, 0) + RESERVED_NUMBERS for lane, at in self._next.items()}
        try:
            numbers = {_LANES[lane]: upto for lane, upto in reserved.items()}
            overwrite(self._path, {"learners": self.number + 1, "environments": numbers}, FILE_BYTES)
        except OSError as error:
            raise UnwrittenError(f"counting the run's random streams in {self._path} failed: {error}") from error
        self._reserved = reserved


def incarnation_of(config: Config, checkpoints: Path) -> Incarnation:
    """Of the run whose checkpoints stand there; raises as ``Incarnation``."""
    return Incarnation(checkpoints / "streams.json", config.run.seed)


def _opened(path: Path, found: dict[str, Any]) -> tuple[int, dict[Lane, int]]:
    """What the processes before have left: how many they were, and the next number of each lane."""
    try:
        numbers = [found["learners"], *(found["environments"][name] for name in _LANES.values())]
    except (KeyError, TypeError):
        numbers = []
    if not numbers or not all(type(n) is int and n >= 0 for n in numbers):
        raise CheckpointError(
            f"{path} does not say how many learners and environments the run has had: put back a copy of it, or remove "
            "it; without it environments and policies draw the same random numbers again as at the run's start"
        )
    return numbers[0], dict(zip(_LANES, numbers[1:], strict=True))
