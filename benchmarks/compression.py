"""What compressing unrolls costs and saves: python -m benchmarks.compression [--unrolls N] [--json]

Real unrolls: 84 x 84 grey ALE frames of three games under random play (T = 20, stack 4), and CartPole's floats.
Speeds are uncompressed MB per second of CPU time of one thread, so that they mean the same on a busy machine;
``none`` is the baseline: header, checksum and copy only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import blosc2
import gymnasium
import numpy as np

from benchmarks.unrolls import GAMES, atari_frames, fill, layout_of
from pipeline.spaces import Leaf
from pipeline.store.codec import Codec, decode_whole, encode
from pipeline.unrolls import UnrollLayout

UNROLL_LENGTH, STACK = 20, 4


class Method(NamedTuple):
    name: str
    encode: Callable[[Any, UnrollLayout], bytes]
    decode: Callable[[list[bytes], UnrollLayout], Any]


def ours(name: str, codec: Codec) -> Method:
    def open_all(payloads: list[bytes], layout: UnrollLayout) -> Any:
        records = np.empty((len(payloads), layout.nbytes), np.uint8)
        assert not any(decode_whole(payloads, layout, records))
        return records

    return Method(name, lambda record, layout: encode(record, layout, codec), open_all)


def blosc(name: str, codec: blosc2.Codec) -> Method:
    def pack(record: Any, layout: UnrollLayout) -> bytes:
        packed: bytes = blosc2.compress2(record, codec=codec, clevel=1, typesize=1, nthreads=1)
        return packed

    def unpack(payloads: list[bytes], layout: UnrollLayout) -> Any:
        records = np.empty((len(payloads), layout.nbytes), np.uint8)
        for record, payload in zip(records, payloads, strict=True):
            blosc2.decompress2(payload, dst=record, nthreads=1)
        return records

    return Method(name, pack, unpack)


METHODS = (
    ours("none", Codec.NONE),
    ours("lz4", Codec.LZ4),
    ours("zstd level 1", Codec.ZSTD),
    blosc("blosc2 lz4", blosc2.Codec.LZ4),
    blosc("blosc2 zstd", blosc2.Codec.ZSTD),
)


def atari(game: str, unrolls: int) -> tuple[UnrollLayout, Any]:
    layout = layout_of(Leaf("observation", "box", "uint8", (84, 84)), UNROLL_LENGTH, STACK)
    return layout, fill(layout, atari_frames(game, unrolls, UNROLL_LENGTH + STACK), np.random.default_rng(1))


def cartpole(unrolls: int) -> tuple[UnrollLayout, Any]:
    rng = np.random.default_rng(1)
    layout = layout_of(Leaf("observation", "box", "float32", (4,)), UNROLL_LENGTH, 1)
    vector = gymnasium.make_vec("CartPole-v1", num_envs=unrolls)
    vector.reset(seed=1)
    rows = [vector.step(rng.integers(0, 2, unrolls))[0] for _ in range(UNROLL_LENGTH + 1)]
    vector.close()
    return layout, fill(layout, np.stack(rows, 1), rng)


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU time of the fastest of three, and the result."""
    times = []
    for _ in range(3):
        begun = time.thread_time()
        result = work()
        times.append(time.thread_time() - begun)
    return min(times), result


def measure(method: Method, layout: UnrollLayout, records: Any) -> dict[str, float]:
    encode_seconds, payloads = seconds(lambda: [method.encode(record, layout) for record in records])
    decode_seconds, decoded = seconds(lambda: method.decode(payloads, layout))
    assert np.array_equal(decoded, records)
    return {
        "encode_mb_per_second": records.nbytes / 1e6 / encode_seconds,
        "decode_mb_per_second": records.nbytes / 1e6 / decode_seconds,
        "ratio": records.nbytes / sum(map(len, payloads)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unrolls", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    data = {game: atari(game, options.unrolls) for game in GAMES} | {"cartpole": cartpole(32 * options.unrolls)}
    rows: list[dict[str, Any]] = []
    for name, (layout, records) in data.items():
        for method in METHODS:
            row = {"data": name, "unroll_bytes": layout.nbytes, "method": method.name}
            rows.append(row | measure(method, layout, records))
    if options.json:
        print(json.dumps(rows))
        return
    print("| unrolls of | bytes | method | encode MB/s | decode MB/s | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        speeds = f"{row['encode_mb_per_second']:.0f} | {row['decode_mb_per_second']:.0f} | {row['ratio']:.2f}"
        print(f"| {row['data']} | {row['unroll_bytes']} | {row['method']} | {speeds} |")


if __name__ == "__main__":
    main()
