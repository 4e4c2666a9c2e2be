"""Where an environment went wrong, of its own code."""

from __future__ import annotations

import inspect
import json

import gymnasium
import numpy as np
import pytest

from tests.counter_env import CounterEnv
from workers.place import place_of
from workers.watched import Watched

pytestmark = pytest.mark.unit


class Raises(CounterEnv):
    def step(self, action):
        return json.loads("nothing")


class Shapeless(CounterEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0][:1], {}


class Halved(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return observation[:1]


def place(environment, method):
    watched, rows = Watched(environment, 0, None), [np.zeros(3, np.float32)]
    with pytest.raises(Exception) as caught:
        watched.reset(rows) if method == "reset" else watched.step(0, rows)
    return place_of(caught.value)


def line(thing):
    return f"tests/unit/test_worker_place.py:{inspect.getsourcelines(thing)[1]}"


def test_the_innermost_line_of_its_own_where_a_library_raised():
    _, first = inspect.getsourcelines(Raises.step)
    assert place(Raises(), "step") == f"tests/unit/test_worker_place.py:{first + 1}, in step"


def test_the_method_that_returned_what_was_refused():
    assert place(Shapeless(), "reset") == f"{line(Shapeless.reset)}, Shapeless.reset"
    assert place(gymnasium.wrappers.TimeLimit(Shapeless(), 5), "reset") == f"{line(Shapeless.reset)}, Shapeless.reset"


def test_the_wrapper_that_returned_what_was_refused():
    assert place(Halved(CounterEnv()), "reset") == f"{line(Halved.observation)}, Halved.observation"


def test_a_file_that_is_no_python():
    with pytest.raises(SyntaxError) as caught:
        compile("a b", "corridor.py", "exec")
    assert place_of(caught.value) == "corridor.py:1"


def test_what_was_never_raised_has_no_place():
    assert place_of(ValueError("nothing")) == "an unknown place"
