"""The exception tree. Every error that reaches a user is one of these, and carries the process exit code.

::

    SeedmqError                  3
    ├── ConfigError              2   bad key, value, combination or variable
    │   └── MissingExtraError    2   an optional dependency is not installed: the message has the install line
    ├── SpaceError               2   a space that seedmq does not support, or spaces that differ
    ├── ComponentError           3   a component failed for good (restart budget spent, environment broken)
    │   ├── EnvironmentFailure   3   the environment raised, hung or returned nonsense once too often
    │   └── CheckpointError      3   no usable checkpoint, or one of another network
    │       └── UnwrittenError   4   the file system refuses a checkpoint: the disk is full
    ├── ProtocolError            3   a message or payload that does not follow ``docs/protocol.md``
    ├── StoreError               3   the store refused an operation for good
    │   └── CapacityError        2   more is to be kept than there is room for: the message has the arithmetic
    └── UnreachableError         4   a dependency (broker, Redis) stayed out of reach
"""

EXIT_FINISHED = 0
EXIT_USAGE = 2
EXIT_FAILED = 3
EXIT_UNREACHABLE = 4
EXIT_SIGINT = 130
EXIT_SIGTERM = 143


class SeedmqError(Exception):
    """Root of the tree. ``exit_code`` is what the command line exits with."""

    exit_code: int = EXIT_FAILED


class ConfigError(SeedmqError):
    """Bad configuration or usage; the message names the key, the value and the reason."""

    exit_code = EXIT_USAGE


class MissingExtraError(ConfigError):
    """An optional dependency is missing; the message holds the exact install line."""


class SpaceError(SeedmqError):
    """A space that is not supported, or spaces of two workers that differ; the message names the leaf."""

    exit_code = EXIT_USAGE


class ComponentError(SeedmqError):
    """A component failed for good."""


class EnvironmentFailure(ComponentError):
    """An environment raised, hung or returned nonsense more often than its budget allows."""


class CheckpointError(ComponentError):
    """No usable checkpoint, or a checkpoint that belongs to another network."""


class UnwrittenError(CheckpointError):
    """A checkpoint that the file system refuses; another process on the same disk would fare no better."""

    exit_code = EXIT_UNREACHABLE


class ProtocolError(SeedmqError):
    """A message or payload that does not follow ``docs/protocol.md``."""


class StoreError(SeedmqError):
    """The store refused an operation for good (wrong eviction policy, unroll too large, damaged payload)."""


class CapacityError(StoreError):
    """The configured capacity fits neither the store, nor this host, nor one unroll."""

    exit_code = EXIT_USAGE


class UnreachableError(SeedmqError):
    """A dependency stayed out of reach beyond its deadline."""

    exit_code = EXIT_UNREACHABLE
