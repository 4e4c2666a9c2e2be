"""Which TCP ports of some addresses accept a connection, tried from where this runs: a line `ADDRESS PORT` each.

python open_ports.py ADDRESS... [--ports 1-65535 | 80,443,8000-8010] [--seconds 3]

`--seconds` is how long a connection may take until its port counts as closed. Needs the standard library alone.
"""

import argparse
import selectors
import socket
import sys
import time
from collections.abc import Iterable, Iterator

AT_ONCE = 2048


def open_ports(addresses: Iterable[str], ports: Iterable[int], seconds: float) -> Iterator[tuple[str, int]]:
    """Addresses and ports that accept within ``seconds``; at most ``AT_ONCE`` are tried at a time.

    Raises:
        OSError: an address that is none, or no more sockets.
    """
    left = iter([(address, port) for port in ports for address in addresses])
    with selectors.DefaultSelector() as tried:
        while True:
            for target in left:
                found = _begin(target)
                if found is not None:
                    tried.register(found, selectors.EVENT_WRITE, (target, time.monotonic() + seconds))
                if len(tried.get_map()) >= AT_ONCE:
                    break
            if not tried.get_map():
                return
            decided = [key for key, _ in tried.select(0.1)]
            for key in decided:
                if _end(tried, key):
                    yield key.data[0]
            now = time.monotonic()
            for key in [key for key in tried.get_map().values() if key.data[1] < now]:
                _end(tried, key)


def _begin(target: tuple[str, int]) -> socket.socket | None:
    """A connection under way; None where it was refused at once."""
    made = socket.socket(socket.AF_INET6 if ":" in target[0] else socket.AF_INET, socket.SOCK_STREAM)
    made.setblocking(False)
    try:
        made.connect(target)
    except BlockingIOError:
        return made
    except ConnectionError:
        made.close()
        return None
    return made


def _end(tried: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
    """Whether that connection stands; closes it."""
    tried.unregister(key.fileobj)
    assert isinstance(key.fileobj, socket.socket)
    with key.fileobj as made:
        if made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return False
        try:
            return bool(made.getpeername() != made.getsockname())  # on its own host it may have met itself
        except OSError:  # nothing came back
            return False


def _ports(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--ports", type=_ports, default="1-65535")
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    for address, port in open_ports(arguments.addresses, arguments.ports, arguments.seconds):
        sys.stdout.write(f"{address} {port}\n")


if __name__ == "__main__":
    main()
