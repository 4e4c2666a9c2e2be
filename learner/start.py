"""What comes before TensorFlow is loaded (seconds): refusals that need none of it, and the loading itself."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline import files, logs
from pipeline.config.tree import Config
from pipeline.store.redis_client import RedisServer

FILTER_SECONDS = 1.0

# While TensorFlow is loaded its log knows no level yet, so TF_CPP_MIN_LOG_LEVEL does not hold. A process of its own, so
# that what a library says before it aborts (a CPU without the instructions that it was built for) still comes through.
_FILTER = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
for line in sys.stdin.buffer:
    if not line.startswith((b"I0000 ", b"WARNING: All log messages before absl::InitializeLog()")):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


def prepare(config: Config) -> None:
    """Refuses what no learner can begin with, then loads TensorFlow.

    Raises:
        ConfigError: no ``store.url``, a password file that cannot be read, or too few files may be open.
        ModuleNotFoundError: TensorFlow is not installed.
    """
    if config.broker.placement == "embedded":
        files.require_for_workers("learner", config)
    else:
        files.require("learner")
    if config.store.backend == "redis":
        RedisServer.from_settings(config.store)
    load_tensorflow()


def load_tensorflow() -> None:
    """Imports TensorFlow, without its notes unless this process is asked for them (-vv).

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    if logs.current().verbosity > 1:
        importlib.import_module("tensorflow")
        return
    with _without_notes():
        importlib.import_module("tensorflow")


@contextmanager
def _without_notes() -> Iterator[None]:
    """Lines of C++ code that are mere information do not reach stderr."""
    sys.stderr.flush()
    kept = os.dup(2)
    command = [sys.executable, "-I", "-S", "-c", _FILTER]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            assert process.stdin is not None
            try:
                os.dup2(process.stdin.fileno(), 2)
                process.stdin.close()  # descriptor 2 is the only end that is left: restored, it ends the filter
                yield
            finally:
                sys.stderr.flush()
                os.dup2(kept, 2)
                try:
                    process.wait(FILTER_SECONDS)
                except subprocess.TimeoutExpired:  # something that was started meanwhile holds the other end
                    process.kill()
    finally:
        os.close(kept)
