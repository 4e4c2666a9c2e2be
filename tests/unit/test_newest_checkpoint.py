"""What a learner goes on from, and what it does not begin over."""

from __future__ import annotations

from pathlib import Path

import pytest

from learner.saving import newest
from pipeline.config.load import load
from pipeline.errors import ConfigError
from pipeline.run_dir import RunDirectory, write_json

pytestmark = pytest.mark.unit


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", "mine", load("cartpole_vtrace", [], {}).config)


@pytest.mark.parametrize("summary", [None, {"updates": 0}, {"updates": None}])
@pytest.mark.parametrize("resume", [False, True])
def test_where_nothing_was_trained_a_learner_begins(directory: RunDirectory, summary: object, resume: bool) -> None:
    if summary is not None:
        write_json(directory.summary, summary)
    assert newest(directory, resume) is None


@pytest.mark.parametrize("resume", [False, True])
def test_a_trained_run_whose_checkpoints_are_gone_is_not_begun_over(directory: RunDirectory, resume: bool) -> None:
    write_json(directory.summary, {"updates": 7})
    with pytest.raises(ConfigError, match=r"made 7 updates, and its checkpoints are gone: .*, or start another run"):
        newest(directory, resume)
