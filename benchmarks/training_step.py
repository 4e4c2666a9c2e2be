"""What an update and an inference batch cost: python -m benchmarks.training_step [--preset P] [--rounds N] [--json]

Variants of one preset take turns in one process, so that they share the machine's noise: ``wall`` is what a run feels,
``cpu`` (all threads) is what a busy machine changes least. The batch is one that the policy itself acted out on the
preset's environment; ``log-prob`` is how far the update's log-probabilities of those actions are from the policy's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.workloads import SPACES, acted_batch, frames_of, inference_of, policy_of, update_of
from learner import frame_stack
from learner.agent import Agent, build_agent, prepare_devices
from learner.inputs import unroll_inputs, unroll_state
from pipeline.config.load import load
from pipeline.config.tree import Config

INFERENCE_ROWS = (16, 32)


class Variant(NamedTuple):
    name: str
    overrides: tuple[str, ...]
    words: bool = True  # frames stacked as words; else by tf.stack


PLAIN = Variant("float32, tf.stack", ("network.precision=float32",), words=False)
FLOAT = Variant("float32", ("network.precision=float32",))
HALF = Variant("bfloat16", ("network.precision=bfloat16",))
XLA = Variant("float32, XLA", ("network.precision=float32", "learner.jit_compile=true"))
HALF_XLA = Variant("bfloat16, XLA", ("network.precision=bfloat16", "learner.jit_compile=true"))


class Work(NamedTuple):
    """One figure of one variant: ``run`` waits for its result."""

    variant: str
    figure: str
    run: Callable[[], Any]


@contextmanager
def stacking(variant: Variant) -> Iterator[None]:
    """Traces made inside stack frames as the variant says."""
    words = dict(frame_stack._WORDS)
    if not variant.words:
        frame_stack._WORDS.clear()
    try:
        yield
    finally:
        frame_stack._WORDS.update(words)


def log_prob_errors(agent: Agent, batch: dict[str, Any]) -> np.ndarray[Any, Any]:
    """|log pi of the update - log pi of acting| of every row, the weights being the same."""
    environment = agent.config.environment

    def difference(tensors: dict[str, tf.Tensor]) -> tf.Tensor:
        inputs = unroll_inputs(tensors, environment.frame_stack, environment.stack_padding, agent.rewards)
        outputs, _ = agent.network.unroll(inputs, unroll_state(tensors))
        acted, action = tensors["behaviour"], tensors["action"]
        return tf.abs(agent.distribution.log_prob(outputs.policy, action) - agent.distribution.log_prob(acted, action))

    compiled = tf.function(difference, jit_compile=agent.config.learner.jit_compile, autograph=False)
    errors: np.ndarray[Any, Any] = compiled({name: tf.constant(x) for name, x in batch.items()}).numpy()
    return errors


def works_of(variant: Variant, config: Config, frames: np.ndarray[Any, Any], kind: str) -> tuple[list[Work], Any]:
    """What to measure of a variant, traced and run once; and its ``log_prob_errors``."""
    agent = build_agent(config, SPACES[kind], prepare_devices(config))
    # The first weights make every action nearly as likely as the next: sharpened, as after training, errors show.
    agent.network.head.policy.kernel.assign(agent.network.head.policy.kernel * 100.0)
    with stacking(variant):
        batch = acted_batch(agent, frames[:, : config.training.batch_size], INFERENCE_ROWS[0])
        errors = log_prob_errors(agent, batch)
        policy = policy_of(agent, max(INFERENCE_ROWS), INFERENCE_ROWS)
        works = [Work(variant.name, "update", update_of(agent, batch))]
        works += [Work(variant.name, f"inference of {n}", inference_of(policy, frames[0, :n])) for n in INFERENCE_ROWS]
        for work in works:
            work.run()
    return works, errors


def measure(works: list[Work], rounds: int) -> list[dict[str, Any]]:
    """Every work in turn, ``rounds`` times; an inference batch is a mean of 20, being short."""
    wall: dict[Work, list[float]] = {work: [] for work in works}
    cpu: dict[Work, list[float]] = {work: [] for work in works}
    for _ in range(rounds):
        for work in works:
            repeats = 1 if work.figure == "update" else 20
            wall_begun, cpu_begun = time.perf_counter(), time.process_time()
            for _ in range(repeats):
                work.run()
            wall[work].append(1e3 * (time.perf_counter() - wall_begun) / repeats)
            cpu[work].append(1e3 * (time.process_time() - cpu_begun) / repeats)
    return [
        {
            "variant": work.variant,
            "figure": work.figure,
            "wall_ms_min": min(wall[work]),
            "wall_ms_median": statistics.median(wall[work]),
            "wall_ms_max": max(wall[work]),
            "cpu_ms_min": min(cpu[work]),
            "cpu_ms_median": statistics.median(cpu[work]),
        }
        for work in works
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="atari_pong_vtrace", help="a preset of Atari, or of CartPole")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all variants")
    parser.add_argument("--xla", action="store_true", help="add the variants that XLA compiles")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("--rounds must be at least 3")
    kind = "cartpole" if "cartpole" in options.preset else "atari"
    training = load(options.preset, options.set).config.training
    frames = frames_of(kind, max(training.batch_size, *INFERENCE_ROWS), training.unroll_length + 1)
    works: list[Work] = []
    errors = {}
    for variant in variants(kind, xla=options.xla):
        config = load(options.preset, (*options.set, *variant.overrides)).config
        own, errors[variant.name] = works_of(variant, config, frames, kind)
        works += own
    report(measure(works, options.rounds), errors, as_json=options.json)


def variants(kind: str, *, xla: bool) -> tuple[Variant, ...]:
    if kind == "cartpole":
        return (FLOAT, *([XLA] if xla else []))
    return (PLAIN, FLOAT, HALF, *([XLA, HALF_XLA] if xla else []))


def report(rows: list[dict[str, Any]], errors: dict[str, Any], *, as_json: bool) -> None:
    baseline = {row["figure"]: row["wall_ms_min"] for row in reversed(rows)}
    for row in rows:
        row["ratio"] = baseline[row["figure"]] / row["wall_ms_min"]
    differences = {name: {"mean": float(x.mean()), "max": float(x.max())} for name, x in errors.items()}
    if as_json:
        print(json.dumps({"rows": rows, "log_prob_difference": differences}))
        return
    print(f"{os.cpu_count()} CPUs, TensorFlow {tf.__version__}; ratio of the fastest walls to the first variant's\n")
    print("| figure | variant | wall ms min | median | max | cpu ms min | median | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in sorted(rows, key=lambda row: str(row["figure"]), reverse=True):
        wall = f"{row['wall_ms_min']:.1f} | {row['wall_ms_median']:.1f} | {row['wall_ms_max']:.1f}"
        cpu = f"{row['cpu_ms_min']:.1f} | {row['cpu_ms_median']:.1f}"
        print(f"| {row['figure']} | {row['variant']} | {wall} | {cpu} | {row['ratio']:.2f} |")
    print("\n| variant | log-prob difference, mean | max |")
    print("| --- | --- | --- |")
    for name, found in differences.items():
        print(f"| {name} | {found['mean']:.1e} | {found['max']:.1e} |")


if __name__ == "__main__":
    main()
