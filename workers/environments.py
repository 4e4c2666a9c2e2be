"""Makes the vector environment of one env group: its own vectorized version where there is one, else gymnasium's."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from pipeline.config.tree import EnvironmentSection
from pipeline.errors import ConfigError, MissingExtraError
from workers.group import Group
from workers.native import Native
from workers.singles import OnFault, Singles, fail
from workers.vector import Vector
from workers.watched import Mark, Watched

ATARI_INSTALL = 'pip install "seedmq[atari]"'
ATARI_VECTOR = "ale_py.vector_env:AtariVectorEnv"
ATARI_SINGLE = "ale_py.env:AtariEnv"
LIFE_WRAPPER = "terminal_on_life_loss"  # of gymnasium's AtariPreprocessing
LIVES = (
    "makes episodes, and their returns, of single lives: set environment.life_loss = terminal instead, so that a lost "
    "life ends what is learnt and nothing else"
)


def make_group(
    section: EnvironmentSection,
    n: int,
    threads: int = 1,
    mark: Mark | None = None,
    on_fault: OnFault = fail,
) -> Group:
    """A group of ``n`` environments, not yet reset.

    Args:
        section: The environment's settings.
        n: Environments.
        threads: Most threads of a natively vectorized environment that has its own.
        mark: Called with the index of the single environment that is about to be reset or stepped, where known.
        on_fault: Decides whether a single environment that failed is made anew.

    Raises:
        ConfigError: an unknown id, module or wrapper, arguments that the environment does not take, or a vectorization
            that it does not have. MissingExtraError: a package is missing; the message has the install line.
        SpaceError: spaces that seedmq does not support.
    """
    spec = _spec(section.id)
    vector: Vector
    try:
        native = _is_native(section, spec)
        vector = _native(section, spec, n, threads) if native else _singles(section, spec, n, mark, on_fault)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"{section.id} cannot be made with environment.kwargs = {section.kwargs}, "
            f"environment.wrappers = {section.wrappers}: {error}"
        ) from error
    except gymnasium.error.Error as error:
        raise ConfigError(f"environment.id = {section.id}: {error}") from error
    return Group(vector, drop_non_finite=section.non_finite == "drop")


def load(path: str, key: str) -> Any:
    """What ``package.module:name`` names.

    Raises:
        ConfigError: no such module or name.
    """
    module, separator, attribute = path.partition(":")
    if not separator:
        raise ConfigError(f"{key} = {path}: not an import path (package.module:name)")
    value = _import(module, key, path)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ConfigError(f"{key} = {path}: module {module} has no {attribute}")
        value = getattr(value, part)
    return value


def _import(module: str, key: str, value: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "ale_py":
            raise MissingExtraError(f"{key} = {value} needs ale-py: {ATARI_INSTALL}") from error
        raise ConfigError(f"{key} = {value}: module {error.name} cannot be imported ({error})") from error


def _spec(environment: str) -> Any:
    module, separator, bare = environment.rpartition(":")
    if separator:
        _import(module, "environment.id", environment)
    if bare.startswith("ALE/"):
        _import("ale_py", "environment.id", environment)
    try:
        return gymnasium.spec(bare)
    except gymnasium.error.Error as error:
        raise ConfigError(f"environment.id = {environment}: {error}") from error


def _is_native(section: EnvironmentSection, spec: Any) -> bool:
    has_one = spec.vector_entry_point is not None
    if section.vectorization == "native":
        if section.wrappers:
            raise ConfigError("environment.wrappers cannot be applied to environment.vectorization = native")
        if not has_one:
            raise ConfigError(f"environment.vectorization = native: {section.id} has no vector version")
        return True
    if section.vectorization == "sync" or section.wrappers:
        return False
    return has_one and (_importable(spec.vector_entry_point) or spec.entry_point is None)


def _importable(entry_point: Any) -> bool:
    """Some ids name a vector version that needs a package (jax) which is not there: the single version will do."""
    if callable(entry_point):
        return True
    try:
        importlib.import_module(str(entry_point).partition(":")[0])
    except ImportError:
        return False
    return True


def _native(section: EnvironmentSection, spec: Any, n: int, threads: int) -> Native:
    counts_lives = section.life_loss == "terminal"
    if spec.vector_entry_point == ATARI_VECTOR:
        return _atari(section, spec, n, threads, counts_lives)
    vector = gymnasium.make_vec(spec, num_envs=n, vectorization_mode="vector_entry_point", **section.kwargs)
    resets_some = vector.metadata.get("autoreset_mode") == AutoresetMode.DISABLED
    return Native(vector, seed_style="int", resets_some=resets_some, counts_lives=counts_lives)


def _atari(section: EnvironmentSection, spec: Any, n: int, threads: int, counts_lives: bool) -> Native:
    """ALE's C++ version: grey 84 x 84 single frames, true rewards, no FIRE pressed, unless ``kwargs`` say otherwise."""
    for name, instead in (("stack_num", "frame_stack"), ("frameskip", "frame_skip")):
        if name in section.kwargs:
            raise ConfigError(f"environment.kwargs.{name}: set environment.{instead}, or it would be applied twice")
    for name in ("episodic_life", "life_loss_info"):
        if section.kwargs.get(name):
            raise ConfigError(f"environment.kwargs.{name} {LIVES}")
    defaults: dict[str, Any] = {
        "reward_clipping": False,
        "use_fire_reset": False,
        "max_num_frames_per_episode": spec.kwargs["max_num_frames_per_episode"],
        "full_action_space": spec.kwargs["full_action_space"],
        "num_threads": max(1, min(n, threads)),
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }
    vector = load(ATARI_VECTOR, "environment.id")(
        spec.kwargs["game"], n, stack_num=1, frameskip=section.frame_skip, **(defaults | section.kwargs)
    )
    shape = vector.single_observation_space.shape[1:]  # no stack axis
    space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    return Native(vector, seed_style="array", resets_some=True, observation_space=space, counts_lives=counts_lives)


def _singles(section: EnvironmentSection, spec: Any, n: int, mark: Mark | None, on_fault: OnFault) -> Singles:
    kwargs = {"disable_env_checker": True, **section.kwargs}  # what we read is checked by us, at every step
    mode = AutoresetMode(kwargs.pop("autoreset_mode", AutoresetMode.NEXT_STEP))
    if spec.entry_point == ATARI_SINGLE:
        kwargs.setdefault("frameskip", section.frame_skip)
    elif "frame_skip" in spec.kwargs:  # an environment of ours, or one that names it the same
        kwargs.setdefault("frame_skip", section.frame_skip)
    wrappers = [load(path, "environment.wrappers") for path in section.wrappers]

    def make(index: int) -> Watched:
        if mark is not None:
            mark(index, True)
        environment = gymnasium.make(spec, **kwargs)
        for wrapper in wrappers:
            environment = wrapper(environment)
        if environment.has_wrapper_attr(LIFE_WRAPPER) and environment.get_wrapper_attr(LIFE_WRAPPER):
            raise ConfigError(f"{LIFE_WRAPPER}, of a wrapper, {LIVES}")
        return Watched(environment, index, mark, counts_lives=section.life_loss == "terminal")

    return Singles(make, n, mode, on_fault)
