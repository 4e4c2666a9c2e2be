"""The worker's socket, and the messages that wait until it takes them.

Few calls into pyzmq, as each costs more than what it does: a wait is the receive itself, whose time limit is an option
of the socket, and nothing asks whether a message is there.
"""

from __future__ import annotations

import zmq

from pipeline import sockets
from pipeline.config.tree import BrokerSection, Config, SecuritySection
from workers.actions import Send

SNDMORE = int(zmq.SNDMORE)  # the enumeration's own operators are slow
LARGE_BYTES = 2**16  # from here on a copy costs more than pyzmq's bookkeeping of what it does not own
GRAIN_MILLISECONDS = 20  # waits are rounded up to these, so that their option is seldom set


class Connection:
    """Belongs to the thread that made it.

    Args:
        broker: Endpoint and limits.
        security: Keys.

    Raises:
        ConfigError: the endpoint is malformed, or off the loopback without keys.
    """

    def __init__(self, broker: BrokerSection, security: SecuritySection) -> None:
        self._broker, self._security = broker, security
        self._context: sockets.Context = zmq.Context()
        self._outbox: dict[str, Send] = {}  # bounded: a key per group, and hello, heartbeat, bye
        self._patience = 0  # milliseconds that the socket's receive waits at most
        self._socket = self._made()

    def receive(self, seconds: float) -> list[bytes] | None:
        """The next message; None if none comes within these seconds, or before there is room for what waits."""
        if self._outbox:
            self._socket.poll(_milliseconds(seconds), zmq.POLLIN | zmq.POLLOUT)
            self._flush()
            seconds = 0.0
        milliseconds = _milliseconds(seconds)
        if milliseconds != self._patience:
            self._socket.setsockopt(zmq.RCVTIMEO, milliseconds)
            self._patience = milliseconds
        receive = self._socket.recv
        try:
            frame = receive(copy=False)
        except zmq.Again:
            return None
        frames = [frame.bytes]
        while frame.more:
            frame = receive(copy=False)
            frames.append(frame.bytes)
        return frames

    def send(self, message: Send) -> None:
        """Sends a message, or keeps it until the socket takes it, in the place of an older one with its key."""
        if self._outbox:
            self._outbox[message.key] = message
            self._flush()
        elif not self._sent(message):
            self._outbox[message.key] = message

    def renew(self) -> None:
        """Forgets what waits, and connects anew."""
        self._outbox.clear()
        self._socket.close(linger=0)
        self._socket = self._made()

    def close(self) -> None:
        """Closes the socket, which lingers shortly: what it has taken may still get through. No message is kept."""
        self._socket.close()

    def term(self) -> None:
        """Ends the context: waits at most for the linger time."""
        self._context.term()

    def _made(self) -> sockets.Socket:
        socket = sockets.worker_socket(self._context, self._broker, self._security)
        socket.setsockopt(zmq.RCVTIMEO, self._patience)
        return socket

    def _flush(self) -> None:
        """Sends what waits, in order, until the socket takes no more."""
        while self._outbox:
            key = next(iter(self._outbox))
            if not self._sent(self._outbox[key]):
                return
            del self._outbox[key]

    def _sent(self, message: Send) -> bool:
        """Whether the socket took the message whole."""
        buffers, again, send = message.buffers, message.again, self._socket.send
        left = len(buffers)
        try:
            send(message.head, SNDMORE if left else 0)
        except zmq.Again:
            return False
        whole = True
        for buffer in buffers:
            left -= 1
            # Large ones may be read, and stay as they are, until their ACTIONS come.
            try:
                send(buffer, SNDMORE if left else 0, copy=again or buffer.nbytes < LARGE_BYTES)
            except zmq.Again:  # the connection went in the midst of it: ZeroMQ drops the rest, which must follow
                whole = False
        return whole


def _milliseconds(seconds: float) -> int:
    """Not before they are over, and at most a grain after it."""
    return GRAIN_MILLISECONDS * (1 + int(seconds * 1000) // GRAIN_MILLISECONDS) if seconds > 0.0 else 0


def silence(config: Config) -> str:
    """What it may mean that no broker answers: one with keys says nothing to those that it does not admit."""
    endpoint = config.broker.connect or config.broker.bind
    if config.security.keys is not None:
        return (
            f" at {endpoint}: either none is there, or it does not admit the keys in security.keys = "
            f"{config.security.keys}, being of another fleet, revoked (authorized/workers) or without keys itself; "
            "its log tells"
        )
    if endpoint.startswith("ipc:"):
        return ""
    return (
        f" at {endpoint}: either none is there, or it has keys and answers only workers that have some too: for those "
        "set security.keys (seedmq keys DIR --client NAME, where the broker's keys are)"
    )
