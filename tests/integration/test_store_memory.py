"""What is printed at the start is what Redis takes, within 15 %: FIFO and replay filled to their capacity.

Without compression by the line of ``check``; with it by the line that follows the first unrolls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import redis

from pipeline.spaces import Leaf
from pipeline.store.codec import Codec, encode
from pipeline.store.embedded import EmbeddedServer
from pipeline.store.interface import Insert, Put
from pipeline.store.redis_replay import RedisReplay
from pipeline.store.redis_store import RedisFifo
from pipeline.unrolls import UnrollLayout

pytestmark = pytest.mark.integration

ServerFactory = Callable[..., EmbeddedServer]
FifoFactory = Callable[..., RedisFifo]
ReplayFactory = Callable[..., RedisReplay]

UNIT = {"MiB": 2**20, "GiB": 2**30}
WITHIN = 0.15
SMALLEST = UnrollLayout(5, 0, (Leaf("observation", "box", "float32", (4,)),), (), "int32", 2, ())
CARTPOLE_R2D2 = UnrollLayout(30, 0, (Leaf("observation", "box", "float32", (4,)),), (), "int32", 2, ((64,), (64,)))
IMAGE = UnrollLayout(20, 3, (Leaf("observation", "box", "uint8", (84, 84)),), (), "int32", 6, ((256,), (256,)))
SEVERAL = [(SMALLEST, 3000), (CARTPOLE_R2D2, 3000), (IMAGE, 400)]


def payloads(layout: UnrollLayout, count: int, codec: Codec, most: int) -> Iterator[bytes]:
    """Records of random bytes below ``most``: 256 cannot be compressed."""
    rng = np.random.default_rng(0)
    for row in range(count):
        record = rng.integers(0, most, layout.nbytes, np.uint16).astype(np.uint8)
        names = layout.view(record)
        names["environment"][...], names["run"][...], names["row"][...] = 1, 2, row
        yield encode(record, layout, codec)


def fill(server: EmbeddedServer, store: RedisFifo | RedisReplay, found: Iterator[bytes]) -> int:
    """How many bytes more Redis takes than with one item, when it has its scripts and buffers (half a MiB)."""
    before = 0
    for row, payload in enumerate(found):
        if isinstance(store, RedisFifo):
            assert store.put([Put(1, 2, row, row + 1, 1, payload)]).stored == 1
        else:
            assert store.insert([Insert(1, 2, row, row + 1, 1, payload, 1.0)]).evicted == []
        before = before or used(server)
    return used(server) - before


def used(server: EmbeddedServer) -> int:
    with redis.Redis(unix_socket_path=str(server.socket_path), driver_info=None) as client:
        return int(client.info("memory")["used_memory"])


def printed(text: str, begin: str) -> float:
    """Bytes in the one line of the log that has ``begin``."""
    (line,) = [line for line in text.splitlines() if begin in line]
    found = re.search(r"= ([\d.]+) (MiB|GiB)", line)
    assert found, line
    return float(found[1]) * UNIT[found[2]]


@pytest.fixture(params=["fifo", "replay"])
def make_store(
    request: pytest.FixtureRequest, make_redis_fifo: FifoFactory, make_redis_replay: ReplayFactory
) -> Callable[..., RedisFifo | RedisReplay]:
    return make_redis_fifo if request.param == "fifo" else make_redis_replay


@pytest.mark.parametrize(("layout", "count"), SEVERAL)
def test_memory_is_what_is_printed_at_the_start(
    make_redis: ServerFactory,
    make_store: Callable[..., RedisFifo | RedisReplay],
    layout: UnrollLayout,
    count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = make_redis()
    store = make_store(server, capacity=count)
    with caplog.at_level("INFO"):
        store.check(layout.nbytes)
    taken = fill(server, store, payloads(layout, count, Codec.NONE, 256))
    total = printed(caplog.text, "before compression")
    print(f"{type(store).__name__} {layout.nbytes} bytes: printed {total:.0f}, measured {taken}")
    assert taken == pytest.approx(total, rel=WITHIN)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_memory_of_compressed_unrolls_is_what_is_told_by_the_first(
    make_redis: ServerFactory,
    make_store: Callable[..., RedisFifo | RedisReplay],
    codec: Codec,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, count = make_redis(), 1000
    store = make_store(server, capacity=count)
    with caplog.at_level("INFO"):
        taken = fill(server, store, payloads(IMAGE, count, codec, 4))
    total = printed(caplog.text, "measured: ")
    print(f"{type(store).__name__} {codec.name}: printed {total:.0f}, measured {taken}")
    assert taken == pytest.approx(total, rel=WITHIN)
    assert total < 0.8 * count * IMAGE.nbytes
