"""How many files a process may have open at once (RLIMIT_NOFILE, ``ulimit -n``): it bounds its connections.

Each role raises its soft limit to the hard one and refuses to begin with less than it needs.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - names of hosts need it: loaded before there is no descriptor left to load it with
import resource

from pipeline.config.tree import Config
from pipeline.errors import ConfigError

OWN_FILES = 64
"""What a process needs beside connections: libraries, sockets, logs. A broker has 20 open, a learner on CPUs 40."""
MOST_OWN_FILES = 256
"""What is kept for that where there is enough, as for the drivers of GPUs."""
OTHERS = 8
"""Connections to the broker that are no worker's: the learner's, those of ``seedmq status``."""
HIGHEST = 2**20
"""Where the hard limit is "unlimited"."""
_HOW = "raise the hard limit: ulimit -Hn in the shell, LimitNOFILE= for systemd, --ulimit nofile= for Docker"


def raise_limit() -> int:
    """Asks for as many as the process may have; how many files it may have open from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HIGHEST if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted


def own(limit: int) -> int:
    """Of ``limit`` files, those that are kept from connections."""
    return min(MOST_OWN_FILES, max(OWN_FILES, limit // 4))


def require(role: str) -> int:
    """Raises the limit of a process that has but a few connections; how many files it may have open.

    Raises:
        ConfigError: too few.
    """
    limit = raise_limit()
    if limit < OWN_FILES:
        raise ConfigError(f"a {role} needs {OWN_FILES} open files, the limit (ulimit -Hn) is {limit}: {_HOW}")
    return limit


def require_for_workers(role: str, config: Config) -> int:
    """The same for one that workers connect to.

    Raises:
        ConfigError: too few for the configured workers; the message has the arithmetic.
    """
    limit = raise_limit()
    workers = config.workers.count + config.evaluation.workers
    if limit < own(limit) + workers + OTHERS:
        raise ConfigError(
            f"a {role} needs {own(limit)} open files of its own, {workers} for connections of workers (workers.count + "
            f"evaluation.workers) and {OTHERS} for others, in all {own(limit) + workers + OTHERS}; "
            f"the limit (ulimit -Hn) is {limit}: {_HOW}"
        )
    return limit
