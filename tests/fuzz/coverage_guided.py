"""Looks for inputs of one target that reach new branches: ``python -m tests.fuzz.coverage_guided TARGET SECONDS``.

Begins from ``tests/fuzz/corpus/TARGET``. An input that fails is written to ``fuzz-TARGET-...`` in the working directory
and ends it with an exit code above 0: fix what failed, then keep the input in the corpus.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["pipeline", "learner.requests", "learner.slots", "tests.fuzz", "yaml"]):
    from tests.fuzz.targets import TARGETS

LARGEST = 20_000
"""Bytes of an input."""


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1] not in TARGETS:
        raise SystemExit(f"usage: python -m tests.fuzz.coverage_guided {{{','.join(TARGETS)}}} SECONDS")
    target = TARGETS[sys.argv[1]]

    def once(data: bytes) -> None:
        target(data)

    corpus = Path(__file__).parent / "corpus" / sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as found:
        options = [f"-max_total_time={sys.argv[2]}", f"-max_len={LARGEST}", "-rss_limit_mb=1000", "-timeout=120"]
        options += [f"-artifact_prefix=fuzz-{sys.argv[1]}-", "-print_final_stats=1", "-verbosity=1"]
        atheris.Setup([sys.argv[0], *options, found, str(corpus)], once)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
