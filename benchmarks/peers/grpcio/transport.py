"""Requests per second over grpcio's bidirectional streams, each client with one request outstanding.

    python transport.py --request BYTES --reply BYTES [--clients N] [--seconds S] [--server {threads,async}]

Runs in an environment of its own (``requirements.txt``), imports nothing of seedmq and prints one JSON object. Server
and clients are a process each, on a unix socket. Messages are bytes that nothing serializes or looks into: the server
answers each with the same reply, which is the least that a server can do. Clients are asyncio's, which were the faster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

SERVICE, METHOD = "transport", "act"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
START_SECONDS = 60.0
WARM_UP_SECONDS = 1.0
IDLE_SECONDS = 0.01


class Count:
    """Requests so far: written by one thread for each stream."""

    def __init__(self) -> None:
        self._streams: list[list[int]] = []

    def stream(self) -> list[int]:
        self._streams.append([0])
        return self._streams[-1]

    @property
    def streams(self) -> int:
        """How many have answered something."""
        return sum(one[0] > 0 for one in list(self._streams))

    @property
    def requests(self) -> int:
        return sum(one[0] for one in list(self._streams))


def handlers(handler: Any) -> Any:
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: grpc.stream_stream_rpc_method_handler(handler)})


def measured(count: Count, clients: int, seconds: float, pause: Callable[[float], None]) -> float:
    """Requests per second once every client is served."""
    deadline = time.monotonic() + START_SECONDS
    while count.streams < clients:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count.streams} of {clients} clients came within {START_SECONDS:g} s")
        pause(IDLE_SECONDS)
    pause(WARM_UP_SECONDS)
    begun, before = time.monotonic(), count.requests
    pause(seconds)
    return (count.requests - before) / (time.monotonic() - begun)


def serve_threads(address: str, reply: bytes, clients: int, seconds: float) -> float:
    count = Count()

    def act(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        mine = count.stream()
        for _ in requests:
            mine[0] += 1
            yield reply

    server = grpc.server(futures.ThreadPoolExecutor(clients), options=OPTIONS)
    server.add_generic_rpc_handlers((handlers(act),))
    server.add_insecure_port(address)
    server.start()
    try:
        return measured(count, clients, seconds, time.sleep)
    finally:
        server.stop(0)


def serve_async(address: str, reply: bytes, clients: int, seconds: float) -> float:
    count = Count()

    async def act(stream: Any, context: Any) -> None:
        mine = count.stream()
        while await context.read() is not grpc.aio.EOF:
            mine[0] += 1
            await context.write(reply)

    async def serve() -> float:
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((handlers(act),))
        server.add_insecure_port(address)
        await server.start()
        # The clock runs on a thread of its own: the loop has nothing to do but serve.
        rate = await asyncio.get_running_loop().run_in_executor(None, measured, count, clients, seconds, time.sleep)
        await server.stop(0)
        return rate

    return asyncio.run(serve())


def ask(address: str, request: bytes) -> None:
    """Until it is killed."""

    async def go() -> None:
        async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
            await asyncio.wait_for(channel.channel_ready(), START_SECONDS)
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            while True:
                await call.write(request)
                await call.read()

    asyncio.run(go())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--request", type=int, required=True, metavar="BYTES")
    parser.add_argument("--reply", type=int, required=True, metavar="BYTES")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--server", choices=("threads", "async"), default="threads")
    options = parser.parse_args()
    serve = {"threads": serve_threads, "async": serve_async}[options.server]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="grpcio-") as folder:
        address = f"unix:{folder}/socket"
        clients = [
            context.Process(target=ask, args=(address, bytes(options.request)), daemon=True)
            for _ in range(options.clients)
        ]
        for client in clients:
            client.start()
        try:
            rate = serve(address, bytes(options.reply), options.clients, options.seconds)
        finally:
            for client in clients:
                client.kill()
                client.join()
    print(json.dumps({"requests_per_second": rate}))


if __name__ == "__main__":
    main()
