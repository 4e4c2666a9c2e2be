"""From acted rows to unrolls: episodes, ledger and assembly after the actions are sent. Inference thread only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from learner.assembler import Acted, Appended, Assembler
from learner.episodes import Episodes
from learner.evaluation import Evaluation
from learner.policy import PolicyRows
from learner.requests import Opened, StepBatch
from learner.writer import UnrollWriter
from pipeline.ledger import Ledger
from pipeline.rows import TERMINATED, TRUNCATED, row_number

Array = npt.NDArray[Any]


class Collector:
    """Books and assembles one acted batch at a time.

    Args:
        assembler: Open unrolls.
        writer: Takes finished ones.
        ledger: Books arrivals.
        episodes: Finished training episodes.
        evaluations: Finished episodes of eval workers, which feed nothing into the store.
        gap_reason: Why transitions between a run's last known and its next row are dropped: ``seam``, or
            ``learner_restart`` where a predecessor's were restored.
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
        gap_reason: str,
        evaluation: Evaluation | None = None,
    ) -> None:
        self._assembler = assembler
        self._writer = writer
        self._ledger = ledger
        self._episodes = episodes
        self._evaluations = evaluations
        self._gap_reason = gap_reason
        self._evaluation = evaluation

    def collect(self, batch: StepBatch, acted: PolicyRows, version: int) -> None:
        """Episodes, then the final rows that needed no reply, then the replied rows, in order."""
        for part in batch.parts:
            self._record_episodes(part)
        offset = 0
        for part in batch.parts:
            if part.finals and not part.group.evaluation:
                self._append_finals(part, acted, offset, version)
            offset += len(part.group.slots)
        training = ~batch.evaluation
        if training.all():
            rows = Acted(acted.action, acted.behaviour, acted.state, version)
            self._append(batch.slots, _numbers(batch), batch.rows, batch.observation, rows)
        elif training.any():
            rows = Acted(acted.action[training], acted.behaviour[training], [x[training] for x in acted.state], version)
            observation = [leaf[training] for leaf in batch.observation]
            self._append(batch.slots[training], _numbers(batch)[training], batch.rows[training], observation, rows)

    def _record_episodes(self, part: Opened) -> None:
        final = (part.rows["flags"] & (TERMINATED | TRUNCATED)) != 0
        if final.any():
            rows = part.rows[final]
            episodes = self._evaluations if part.group.evaluation else self._episodes
            episodes.add(rows["episode_return"], rows["episode_length"])
        if part.group.evaluation and self._evaluation is not None:
            self._evaluation.observe(part.group.slots[part.rows["environment"]], part.rows)

    def _append_finals(self, part: Opened, acted: PolicyRows, offset: int, version: int) -> None:
        rows = part.rows[: part.finals]
        at = offset + rows["environment"].astype(np.int64)
        zeros = Acted(
            action=np.zeros_like(acted.action[at]),
            behaviour=np.zeros_like(acted.behaviour[at]),
            state=[leaf[at] for leaf in acted.state],
            version=version,
        )
        slots = part.group.slots[rows["environment"]]
        numbers = np.full(len(rows), row_number(part.request.sequence, no_reply=True))
        self._append(slots, numbers, rows, [leaf[: part.finals] for leaf in part.observation], zeros)

    def _append(self, slots: Array, numbers: Array, rows: Array, observation: list[Array], acted: Acted) -> None:
        delta = rows["index"] - self._assembler.last_index(slots)
        fresh = self._assembler.fresh(slots)
        missed = int(delta[fresh].sum()) if fresh.any() else 0
        appended: Appended = self._assembler.append(slots, numbers, rows, observation, acted)
        if missed:
            self._ledger.missed(missed, self._gap_reason)
        self._ledger.arrived(int(delta.sum()) - missed, appended.accepted, appended.masked)
        if appended.unrolls:
            self._writer.submit(appended.unrolls)


def _numbers(batch: StepBatch) -> Array:
    parts = [np.full(len(p.group.slots), row_number(p.request.sequence, no_reply=False)) for p in batch.parts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
