"""From acted rows to unrolls: episodes, ledger and assembly after the actions are sent. Inference thread only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from learner.assembler import Acted, Appended, Assembler
from learner.episodes import Episodes
from learner.evaluation import Evaluation
from learner.policy import PolicyRows
from learner.requests import Finals, StepBatch
from learner.writer import UnrollWriter
from pipeline.ledger import LEARNER_RESTART, SEAM, Ledger
from pipeline.rows import row_number

Array = npt.NDArray[Any]


class Collector:
    """Books and assembles one acted batch at a time.

    Args:
        assembler: Open unrolls.
        writer: Takes finished ones.
        ledger: Books arrivals.
        episodes: Finished training episodes.
        evaluations: Finished episodes of eval workers, which feed nothing into the store.
        inherited: By slot: what is known of the environment is a predecessor's word. Transitions between that and its
            next row are dropped as ``learner_restart``, after a run that was away and is back as ``seam``.
        evaluation: Told of eval workers' rows.
    """

    def __init__(
        self,
        *,
        assembler: Assembler,
        writer: UnrollWriter,
        ledger: Ledger,
        episodes: Episodes,
        evaluations: Episodes,
        inherited: npt.NDArray[np.bool_],
        evaluation: Evaluation | None = None,
    ) -> None:
        self._assembler = assembler
        self._writer = writer
        self._ledger = ledger
        self._episodes = episodes
        self._evaluations = evaluations
        self._inherited = inherited
        self._evaluation = evaluation

    def collect(self, batch: StepBatch, acted: PolicyRows, version: int) -> None:
        """Episodes, then the final rows that needed no reply, then the replied rows, in order."""
        if batch.finals is not None:
            self._collect_finals(batch, batch.finals, acted, version)
        self._record(batch.slots, batch.rows, batch.evaluation)
        training = _training(batch.evaluation)
        slots = batch.slots[training]
        if len(slots):
            numbers = batch.by_row([row_number(part.request.sequence, no_reply=False) for part in batch.parts])
            state = [leaf[training] for leaf in acted.state]
            rows = Acted(acted.action[training], acted.behaviour[training], state, version)
            observation = [leaf[training] for leaf in batch.observation]
            self._append(slots, numbers[training], batch.rows[training], observation, rows)

    def _collect_finals(self, batch: StepBatch, finals: Finals, acted: PolicyRows, version: int) -> None:
        evaluation = batch.evaluation if isinstance(batch.evaluation, bool) else batch.evaluation[finals.at]
        self._record(batch.slots[finals.at], finals.rows, evaluation)
        training = _training(evaluation)
        at = finals.at[training]
        if len(at):
            numbers = batch.by_row([row_number(part.request.sequence, no_reply=True) for part in batch.parts])
            zeros = Acted(
                action=np.zeros_like(acted.action[at]),
                behaviour=np.zeros_like(acted.behaviour[at]),
                state=[leaf[at] for leaf in acted.state],
                version=version,
            )
            observation = [leaf[training] for leaf in finals.observation]
            self._append(batch.slots[at], numbers[at], finals.rows[training], observation, zeros)

    def _record(self, slots: Array, rows: Array, evaluation: Array | bool) -> None:
        """The episodes that end with one of ``rows``, and what ``evaluation`` is told of its workers' rows."""
        training = _training(evaluation)
        self._episodes.observe(slots[training], rows[training])
        if not isinstance(evaluation, bool):
            self._evaluations.observe(slots[evaluation], rows[evaluation])
            if self._evaluation is not None:
                self._evaluation.observe(slots[evaluation], rows[evaluation])

    def _append(self, slots: Array, numbers: Array, rows: Array, observation: list[Array], acted: Acted) -> None:
        delta = rows["index"] - self._assembler.last_index(slots)
        fresh = self._assembler.fresh(slots)
        missed = self._missed(slots[fresh], delta[fresh]) if fresh.any() else 0
        appended: Appended = self._assembler.append(slots, numbers, rows, observation, acted)
        self._ledger.arrived(int(delta.sum()) - missed, appended.accepted, appended.masked)
        if appended.unrolls:
            self._writer.submit(appended.unrolls)

    def _missed(self, slots: Array, gaps: Array) -> int:
        """Books the transitions that slots' first rows tell of; how many."""
        inherited = self._inherited[slots]
        self._inherited[slots] = False
        lost, missed = int(gaps[inherited].sum()), int(gaps.sum())
        if lost:
            self._ledger.missed(lost, LEARNER_RESTART)
        if missed != lost:
            self._ledger.missed(missed - lost, SEAM)
        return missed


def _training(evaluation: Array | bool) -> Array | slice:
    """Which rows are not of an eval worker."""
    return slice(None) if isinstance(evaluation, bool) else np.flatnonzero(~evaluation)
