"""Whole runs, training on: valid trained agent steps per second, beside other systems and beside the machine's limit.

seedmq is a ``seedmq run`` of a preset with all its processes: ``cartpole_throughput`` and ``atari_pong_vtrace``. Its
figure is the growth of ``agent_steps`` (transitions that an update has trained on; reset rows and padding are none)
over the growth of ``seconds`` in its ``summary.json``, read in a window after a warm-up. The run must stop in
order, and its ledger must close.

Every side has the same environment and the same network (an MLP of 2 x 64; the Nature CNN on 84x84x4), a warm-up of
the same length, counts what was trained on and has the machine to itself. What a peer runs with stands in
``benchmarks/peers/<its folder>/train.py``.

    sample_factory             APPO by its recipe for the environment
    sample_factory_vectorized  APPO with vectorized environments: gymnasium's CartPole, EnvPool's Pong
    sample_factory_large       the same with as many environments and as large batches as seedmq has; CartPole
    rllib_impala               RLlib's IMPALA by its recipe for the environment
    rllib_impala_vectorized    IMPALA with gymnasium's vectorized CartPole, ALE's vectorized Pong
    torchbeast                 MonoBeast of the checkout that the variable TORCHBEAST names; Pong
    limit                      1 / (1 / environment + 1 / policy + 1 / training), each alone on all CPUs with the run's
                               batch shapes; ``limits.pong.agent_steps_per_second`` of ``seedmq bench limits``; Pong
    float32                    seedmq in float32, as the peers are: the preset takes bfloat16 where that is faster; Pong

``training.wait_share`` is the share of the window in which the training loop was not busy: it waited for a batch, for
the store's answer or for a checkpoint. Of the Pong run with so many environments that there is always a batch
(``SUFFICIENT``): with those of the preset all three share the CPUs, and training has what is left.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Measure, Metric, Peer
from benchmarks.peers.window import Window
from benchmarks.runs import command
from pipeline.stages import BUSY

SECONDS = 30.0
"""Of each measurement, warm-up apart."""
WARM_UP_SECONDS = 10.0
START_SECONDS = 240.0
"""Longest from a start to the first update: imports, traced functions, Ray's processes."""
END_SECONDS = 60.0
LOOK_SECONDS = 0.1
STOPPED = 130
"""The exit code of a run that a signal has stopped, after all that it took was accounted for."""
SUFFICIENT = ("workers.envs=64", "store.capacity=128")
CARTPOLE, PONG = "cartpole_throughput", "atari_pong_vtrace"
TORCHBEAST = "TORCHBEAST"


class Readings:
    """What the summaries of a run say of the window, given in the order of their times."""

    def __init__(self, seconds: float) -> None:
        self._window = Window(WARM_UP_SECONDS, seconds)
        self._last: float | None = None
        self._waits: list[float] = []

    def add(self, summary: Mapping[str, Any]) -> bool:
        """Whether the window is over. A summary from before the first update does not count, nor one read twice."""
        if summary["updates"] and summary["seconds"] != self._last:
            self._last = summary["seconds"]
            if self._window.open:  # the shares in a summary are those of the interval that ends with it
                self._waits.append(1.0 - summary["stages"]["training"].get(BUSY, 0.0))
            self._window.add(summary["seconds"], summary["agent_steps"])
        return self._window.over

    @property
    def rate(self) -> float:
        """Valid trained transitions per second."""
        return self._window.result()["agent_steps_per_second"]

    @property
    def wait_share(self) -> float:
        """Of the training loop's time, 0 to 1, in which it was not busy."""
        return statistics.fmean(self._waits)


@contextmanager
def metrics() -> Iterator[list[Metric]]:
    yield [
        Metric(
            "end_to_end.cartpole.agent_steps_per_second",
            "steps/s",
            partial(_rate, CARTPOLE),
            _peers("cartpole")
            | {"sample_factory_large": Peer("sample_factory", partial(_peer, "sample_factory", "cartpole_large"))},
        ),
        Metric(
            "end_to_end.pong.agent_steps_per_second",
            "steps/s",
            partial(_rate, PONG),
            _peers("pong")
            | {"torchbeast": Peer("torchbeast", _torchbeast, TORCHBEAST), "limit": _limit, "float32": _float32},
        ),
        Metric("training.wait_share", "of time", lambda seconds: run(PONG, seconds, *SUFFICIENT).wait_share),
    ]


def _rate(preset: str, seconds: float) -> float:
    return run(preset, seconds).rate


def _float32(seconds: float) -> float:
    return run(PONG, seconds, "network.precision=float32").rate


def run(preset: str, seconds: float, *settings: str) -> Readings:
    """A run of the preset, with these settings, until the window is over; it is then told to stop.

    Raises:
        RuntimeError: it failed, or the ledger does not close.
        TimeoutError: the window was not over in time, or the run did not stop.
    """
    longest = START_SECONDS + WARM_UP_SECONDS + 2 * seconds
    readings = Readings(seconds)
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary, tempfile.TemporaryFile() as output:
        folder = Path(temporary) / "run"
        words = command(preset, [f"run.max_seconds={longest}", *settings], folder)
        with harness.group(words, output, output, cwd=harness.ROOT) as process:
            try:
                _read(process, folder / "summary.json", readings, longest)
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    code = process.wait(END_SECONDS)
                except subprocess.TimeoutExpired as error:
                    raise TimeoutError(f"{preset} did not stop within {END_SECONDS:g} s") from error
        if code != STOPPED:
            raise RuntimeError(f"{preset} ended with {code}: {harness.text(output)[-2000:]}")
        if off := json.loads((folder / "summary.json").read_text())["ledger"]["error"]:
            raise RuntimeError(f"{preset}: the ledger is off by {off}")
    return readings


def _read(process: subprocess.Popen[bytes], summary: Path, readings: Readings, timeout_seconds: float) -> None:
    """Until the window is over, or the run has ended."""
    deadline = time.monotonic() + timeout_seconds
    while process.poll() is None and not (summary.exists() and readings.add(json.loads(summary.read_text()))):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run did not train through the window within {timeout_seconds:g} s")
        time.sleep(LOOK_SECONDS)


def _peers(environment: str) -> dict[str, Measure]:
    """Sample Factory and RLlib, as they are documented and vectorized."""
    return {
        peer + suffix: Peer(peer, partial(_peer, peer, environment + suffix))
        for peer in ("sample_factory", "rllib_impala")
        for suffix in ("", "_vectorized")
    }


def _peer(peer: str, argument: str, seconds: float) -> float:
    words = [argument, "--seconds", str(seconds), "--warm-up", str(WARM_UP_SECONDS)]
    longest = START_SECONDS + 2 * (WARM_UP_SECONDS + seconds) + END_SECONDS
    return float(harness.run_peer(peer, "train.py", words, longest)["agent_steps_per_second"])


def _torchbeast(seconds: float) -> float:
    return _peer("torchbeast", str(Path(os.environ[TORCHBEAST]).resolve()), seconds)


def _limit(seconds: float) -> float:
    """In a process of its own, so that no TensorFlow of it stays beside the next measurement."""
    words = ["bench", "limits", "--metric", "limits.pong.agent_steps_per_second", "--repeats", "1"]
    words = [sys.executable, "-m", "pipeline.cli", *words, "--seconds", str(seconds), "--json"]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        code = harness.run_group(words, output, errors, START_SECONDS + 3 * seconds, cwd=harness.ROOT)
        if code:
            raise RuntimeError(f"limits failed with {code}: {harness.text(errors)[-2000:]}")
        return float(json.loads(harness.text(output))["rows"][0]["value"])
