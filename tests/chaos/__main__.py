"""``python -m tests.chaos``: see ``--help``."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from tests.chaos.commands import PRESETS, VTRACE
from tests.chaos.faults import FAULTS
from tests.chaos.kills import learner_kills
from tests.chaos.run import random_faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="of their order and moments")
    parser.add_argument("--least", type=int, default=0, help="faults, however long they take on a slow machine")
    parser.add_argument("--once", action="store_true", help="instead of --seconds: each fault once")
    parser.add_argument(
        "--preset", choices=PRESETS, default=VTRACE, help="what is trained; kills of the learner: V-trace"
    )
    parser.add_argument("--faults", default="", help="names with commas between; default all")
    parser.add_argument(
        "--learner-kills", type=int, default=0, help="instead: kills of the learner until so many were resumed"
    )
    parser.add_argument(
        "--while-saving", action="store_true", help="with that: each hits a checkpoint, of which there is one a second"
    )
    parser.add_argument("--redis-server", type=Path, help="another server than the bundled one")
    parser.add_argument("--list", action="store_true", help="print the faults and their bounds")
    arguments = parser.parse_args()
    if arguments.list:
        for fault in FAULTS.values():
            print(f"{fault.name:32} {fault.recovery_seconds:4.0f} s")
        return 0
    if arguments.learner_kills:
        number, seed, redis_server = arguments.learner_kills, arguments.seed, arguments.redis_server
        return learner_kills(number, seed, redis_server, arguments.while_saving)
    names = [name for name in arguments.faults.split(",") if name]
    seconds = None if arguments.once else arguments.seconds
    return random_faults(
        seconds, arguments.seed, names, arguments.redis_server, arguments.preset, least=arguments.least
    )


if __name__ == "__main__":
    sys.exit(main())
