"""``seedmq status``: asks a broker who waits for whom, or says how a run ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import zmq
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from pipeline.config.tree import BrokerSection, SecuritySection
from pipeline.errors import EXIT_FINISHED, ConfigError, ProtocolError, UnreachableError
from pipeline.launch import status_text
from pipeline.launch.status_watch import Watched, plain_line, screen
from pipeline.protocol import Kind, decode, encode, fields_of
from pipeline.run_dir import RunDirectory
from pipeline.sockets import check_endpoint, worker_socket
from pipeline.stopping import StopToken, install_signal_handlers

ANSWER_SECONDS = 5.0
WATCH_SECONDS = 1.0
WATCHED_ANSWER_SECONDS = 2.0  # Ctrl-C waits for it
WIDTH = 200  # columns, where no terminal says how many it has

Status = dict[str, Any]


def show(run_dir: Path | None, broker: str | None, security: SecuritySection, watch: bool, as_json: bool) -> int:
    """Prints the status of a run or a broker.

    Args:
        run_dir: of a run; without it and ``broker`` the newest run under ``runs/``.
        broker: worker-facing endpoint to ask instead.
        security: how to connect; its keys replace those of the run.
        watch: go on until interrupted, or until the run has ended.
        as_json: print the mapping as JSON, with ``watch`` a line each time.

    Returns:
        0, also where the run has ended: then its last summary is shown.

    Raises:
        ConfigError: no run there, a bad endpoint or keys.
        UnreachableError: nobody answers (without ``watch``).
    """
    timeout = WATCHED_ANSWER_SECONDS if watch else ANSWER_SECONDS
    raw = _broker_reader(broker, security, timeout) if broker else _run_reader(run_dir, security.keys, timeout)

    def read() -> Status:
        found: Status = status_text.plain(raw())
        return found

    if watch:
        return _watch(read, as_json)
    status = read()
    if as_json:
        click.echo(json.dumps(status))
    else:
        console = _console()
        console.print(status_text.render(status, console.width))
    return EXIT_FINISHED


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def ask(endpoint: str, security: SecuritySection, timeout_seconds: float = ANSWER_SECONDS) -> Status:
    """One STATUS and its reply.

    Raises:
        ConfigError: the endpoint is malformed, or off the loopback without keys.
        UnreachableError: no connection or no answer in time.
        ProtocolError: the answer is none.
    """
    deadline = time.monotonic() + timeout_seconds
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = worker_socket(context, BrokerSection(bind=endpoint), security)
        try:
            if not socket.poll(int(timeout_seconds * 1000), zmq.POLLOUT):
                keyless = security.keys is None and endpoint.startswith("tcp:")
                hint = "; one with keys answers only those: --keys DIR" if keyless else ""
                raise UnreachableError(f"no broker answers at {endpoint} within {timeout_seconds:g} s{hint}")
            socket.send(encode(Kind.STATUS))
            if not socket.poll(max(0, int((deadline - time.monotonic()) * 1000)), zmq.POLLIN):
                raise UnreachableError(f"the broker at {endpoint} took the question and gave no answer in time")
            message = decode(socket.recv_multipart())
        except zmq.Again as error:
            raise UnreachableError(f"the connection to {endpoint} was lost") from error
        finally:
            socket.close(linger=0)
    finally:
        context.term()
    if message.kind is not Kind.STATUS_REPLY:
        raise ProtocolError(f"{endpoint} answers STATUS with {message.kind.name}")
    status: Status = fields_of(message, dict)[0]
    return status


def _broker_reader(endpoint: str, security: SecuritySection, timeout_seconds: float) -> Callable[[], Status]:
    check_endpoint("--broker", endpoint, security)
    return lambda: ask(endpoint, security, timeout_seconds)


def _run_reader(run_dir: Path | None, keys: str | None, timeout_seconds: float) -> Callable[[], Status]:
    if run_dir is None:
        directory = RunDirectory.newest("name a run directory, or a broker by --broker ENDPOINT")
    else:
        directory = RunDirectory.open(run_dir)
    security = directory.read_config().security
    if keys is not None:
        security = security.model_copy(update={"keys": keys})

    def read() -> Status:
        ended = _ended(directory)
        if ended is not None:
            return ended
        endpoints = directory.read_endpoints()
        if endpoints is None or "broker" not in endpoints:
            raise ConfigError(f"{directory.path} names no broker to ask: give it with --broker")
        try:
            return {"run_directory": str(directory.path), **ask(str(endpoints["broker"]), security, timeout_seconds)}
        except UnreachableError:
            # It may have ended while we asked.
            ended = _ended(directory)
            if ended is not None:
                return ended
            if is_gone(endpoints):
                raise UnreachableError(
                    f"the run's process {endpoints['pid']} is gone, killed or with its machine, and did not end in "
                    f"order: go on with `seedmq run {directory.path} --resume`"
                ) from None
            if _starts(endpoints, directory):
                raise UnreachableError("the run starts: its broker does not answer yet") from None
            raise

    return read


def is_gone(endpoints: Mapping[str, Any]) -> bool:
    """Whether the process that started the run is no more; False where that cannot be told, as of another host's."""
    pid = endpoints.get("pid")
    if type(pid) is not int or not str(endpoints.get("broker")).startswith("ipc://"):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # none has such a number
        return True
    except PermissionError:  # somebody else's
        return False
    return False


def _starts(endpoints: Mapping[str, Any], directory: RunDirectory) -> bool:
    """Whether a run of this machine goes on that has not come to its first report."""
    local = str(endpoints["broker"]).startswith("ipc://")
    return local and type(endpoints.get("pid")) is int and directory.read_summary() is None


def _ended(directory: RunDirectory) -> Status | None:
    summary = directory.read_summary()
    if summary is None or summary.get("stop_reason") is None:
        return None
    return {
        "run_directory": str(directory.path),
        "ended": summary["stop_reason"],
        "bottleneck": summary.get("bottleneck"),
        "summary": summary,
    }


def _watch(read: Callable[[], Status], as_json: bool) -> int:
    stop = StopToken()
    install_signal_handlers(stop)
    console = _console()
    redrawn = console.is_terminal and not console.is_dumb_terminal and not as_json
    watched, status = Watched(), {}
    with Live(console=console, auto_refresh=False, screen=True) if redrawn else nullcontext() as live:
        while not stop.stopped and "ended" not in status:
            try:
                status = read()
                watched.observe(status, time.monotonic())
            except UnreachableError as error:
                status = {"error": str(error)}
            if live is not None:
                live.update(_screen(status, watched, console.size), refresh=True)
            elif as_json or "ended" not in status:
                click.echo(json.dumps(status) if as_json else status.get("error") or plain_line(status))
            stop.wait(0.0 if "ended" in status else WATCH_SECONDS)
    if "ended" in status and not as_json:  # stays when the screen is given back
        console.print(status_text.render(status, console.width))
    return EXIT_FINISHED


def _screen(status: Status, watched: Watched, size: tuple[int, int]) -> RenderableType:
    if "error" in status or "ended" in status:
        return Text(status.get("error") or "ended", style="red")
    return screen(status, watched, time.monotonic(), size)
