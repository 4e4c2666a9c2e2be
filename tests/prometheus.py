"""Debian's `prometheus` and `promtool`: a test that needs a missing one is skipped with its name, but under CI fails."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str) -> str:
    """The path of a program of Debian's package `prometheus`."""
    path = shutil.which(name)
    if path is None:
        missing = f"{name} is not installed (Debian: prometheus)"
        if os.environ.get("CI"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    return path


def promtool() -> str:
    return program("promtool")
