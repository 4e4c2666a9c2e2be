"""The samples-per-insert limiter: holds back whoever is ahead, inserts or samples. A pure state machine.

Its terms, in unrolls, with k = ``samples_per_insert``::

    credit = k x (inserts beyond the first min_size) - samples

    sampling n waits while  inserts < min_size,  or credit - n < -tolerance
    inserting waits while   credit > tolerance,  unless inserts < min_size

So -tolerance <= credit <= tolerance + k x (the largest insert). Sampling n and inserting can never both wait: then
inserts >= min_size and tolerance < credit < n - tolerance, which no credit is where n <= 2 tolerance; a larger n is an
error. (After Reverb's rate limiter; its error buffer is the tolerance.)
"""

from __future__ import annotations


class Limiter:
    """Counts inserts and samples; not thread-safe.

    Args:
        samples_per_insert: k, above 0.
        min_size: Unrolls inserted before sampling begins; they give no credit.
        tolerance: Samples by which either side may be ahead; above 0.
        hold_inserts: Whether inserts wait at all.

    Raises:
        ValueError: a setting out of bounds.
    """

    def __init__(
        self, *, samples_per_insert: float, min_size: int, tolerance: float, hold_inserts: bool = True
    ) -> None:
        if not (samples_per_insert > 0 and tolerance > 0 and min_size >= 0):
            raise ValueError(
                f"samples_per_insert {samples_per_insert} and tolerance {tolerance} must be above 0, "
                f"min_size {min_size} not below"
            )
        self.samples_per_insert = samples_per_insert
        self.min_size = min_size
        self.tolerance = tolerance
        self.hold_inserts = hold_inserts
        self.inserts = 0
        self.samples = 0
        self.credit = 0.0
        self._from_inserts = min_size  # of the ratio, as is the next
        self._from_samples = 0

    @property
    def ratio(self) -> float | None:
        """Samples per insert since sampling may begin, or since the last ``set_samples_per_insert`` or ``restore``.

        None while nothing was inserted since.
        """
        inserts = self.inserts - self._from_inserts
        return (self.samples - self._from_samples) / inserts if inserts > 0 else None

    def may_insert(self) -> bool:
        """Whether the next insert, of any size, may go on."""
        return not self.hold_inserts or self.inserts < self.min_size or self.credit <= self.tolerance

    def may_sample(self, count: int) -> bool:
        """Whether a batch of ``count`` samples may be taken.

        Raises:
            ValueError: more than twice the tolerance, which could dead-lock.
        """
        if count > 2 * self.tolerance:
            raise ValueError(f"a batch of {count} samples needs a tolerance of {count / 2:g}, not {self.tolerance:g}")
        return self.inserts >= self.min_size and self.credit - count >= -self.tolerance

    def inserted(self, count: int) -> None:
        """Books ``count`` inserted unrolls."""
        before = max(self.inserts, self.min_size)
        self.inserts += count
        self.credit += self.samples_per_insert * max(0, self.inserts - before)

    def sampled(self, count: int) -> None:
        """Books ``count`` samples."""
        self.samples += count
        self.credit -= count

    def set_samples_per_insert(self, samples_per_insert: float) -> None:
        """Changes k for what is inserted from now on; the credit stays, so neither side makes up for the past.

        A higher k does not make a run without inserts sample on: there is nothing that k is a multiple of.

        Raises:
            ValueError: not above 0.
        """
        if not samples_per_insert > 0:
            raise ValueError(f"samples_per_insert {samples_per_insert} must be above 0")
        self.samples_per_insert = samples_per_insert
        self._begin_ratio()

    def restore(self, inserts: int, samples: int) -> None:
        """Goes on from a predecessor's counters; ``restore(0, 0)`` after the store lost its data.

        Credit beyond the tolerance, either way, is forgiven: counters of a predecessor with another k, or one whose
        last updates are lost, must not keep a side waiting for long.
        """
        self.inserts, self.samples = inserts, samples
        credit = self.samples_per_insert * max(0, inserts - self.min_size) - samples
        self.credit = min(max(credit, -self.tolerance), self.tolerance)
        self._begin_ratio()

    def why_no_sample(self, count: int) -> str | None:
        """In words, why ``may_sample(count)`` is false; None when it is true."""
        if self.may_sample(count):
            return None
        if self.inserts < self.min_size:
            return f"waits for inserts: {self.inserts} of the {self.min_size} unrolls before sampling begins"
        return f"waits for inserts: {self._ratio_in_words()}"

    def why_no_insert(self) -> str | None:
        """In words, why ``may_insert()`` is false; None when it is true."""
        return None if self.may_insert() else f"waits for samples: {self._ratio_in_words()}"

    def _ratio_in_words(self) -> str:
        if self.ratio is None:
            samples = self.samples - self._from_samples
            return f"{samples} samples on no insert, of {self.samples_per_insert:.2f} samples per insert"
        return f"{self.ratio:.2f} samples per insert of {self.samples_per_insert:.2f}"

    def _begin_ratio(self) -> None:
        self._from_inserts, self._from_samples = max(self.inserts, self.min_size), self.samples
