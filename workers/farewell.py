"""The last words of runs whose process is gone: without them the learner cannot know what they took."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import zmq

from pipeline import protocol, sockets
from pipeline.config.tree import Config
from pipeline.errors import ProtocolError, SeedmqError
from pipeline.protocol import Kind, Report

log = logging.getLogger(__name__)

SECONDS = 1.0


def say_bye(config: Config, reports: Mapping[int, Report]) -> None:
    """Sends BYE for each run and waits up to a second for the answers; a broker that is gone is only logged."""
    waiting = {run: report for run, report in reports.items() if report != Report()}
    if not waiting:
        return
    context: sockets.Context = zmq.Context()
    try:
        with sockets.worker_socket(context, config.broker, config.security) as socket:
            _exchange(socket, waiting)
            socket.close(linger=0)
    except SeedmqError as error:
        log.warning("last words were not delivered: %s", error)
    finally:
        context.term()
    if any(report.taken for report in waiting.values()):
        log.warning("last words of runs %s were not confirmed", sorted(waiting))


def _exchange(socket: sockets.Socket, waiting: dict[int, Report]) -> None:
    """Removes from ``waiting`` what the broker answered."""
    unsent, deadline = list(waiting), time.monotonic() + SECONDS
    while waiting and (left := deadline - time.monotonic()) > 0:
        events = socket.poll(max(1, int(left * 1000)), zmq.POLLIN | (zmq.POLLOUT if unsent else 0))
        if events & zmq.POLLOUT:
            run = unsent.pop()
            socket.send(protocol.encode(Kind.BYE, run, waiting[run].to_wire()))
        if events & zmq.POLLIN:
            _take(socket.recv_multipart(), waiting)


def _take(frames: list[bytes], waiting: dict[int, Report]) -> None:
    try:
        message = protocol.decode(frames)
    except ProtocolError as error:
        log.warning("ignored a message that is not of the protocol: %s", error)
        return
    if message.kind in (Kind.GOODBYE, Kind.UNKNOWN) and message.fields:
        report = waiting.pop(message.fields[0], None)
        if report is not None and message.kind is Kind.UNKNOWN and report.taken:
            log.warning(
                "the broker does not know run %d any more: its last %r is in no book", message.fields[0], report
            )
