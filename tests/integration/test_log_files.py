"""Logs of components are bounded, whoever writes how much into them, and nobody waits or dies for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.launch.children import Child
from pipeline.launch.log_files import LogFile
from tests.integration.peers import PATIENCE, pause, until

pytestmark = pytest.mark.integration
MOST = 2**16
LINE = "x" * 99 + "\n"


def sizes(log: Path) -> tuple[int, int]:
    older = log.with_name("a.log.1")
    return log.stat().st_size, older.stat().st_size if older.exists() else 0


def test_a_child_and_what_it_starts_print_without_end(tmp_path: Path) -> None:
    """From Python, and from another program that has the same descriptor."""
    log = tmp_path / "a.log"
    script = f"import os\nos.system('yes {LINE.strip()} | head -c 4000000')\nprint({LINE!r} * 40000, flush=True)\n"
    child = Child([sys.executable, "-c", f"{script}print('the last')"], os.environ, log, MOST)
    looked: list[int] = []

    def ended() -> bool:
        child.bound_log()
        looked.append(sizes(log)[1])
        return child.poll() is not None

    until(ended, pause)
    assert child.poll() == 0 and "the last" in child.tail(2), "what was left out may be said behind"
    assert 0 < max(looked) <= MOST, "what is kept is never above the bound"
    assert any(os.path.exists(f"{log}{end}") for end in ("", ".1"))


def test_what_is_left_out_is_said_and_counted(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log", MOST)
    written = 0
    for number in range(1, 8):
        block = f"{number}\n".encode() + LINE.encode() * (number * MOST // 200)
        written += len(block)
        subprocess.run(["cat"], input=block, stdout=log.descriptor, check=True, timeout=PATIENCE)
        log.bound()
    said = (tmp_path / "a.log").read_bytes() + LINE.encode()
    note = said.splitlines()[0].decode()
    assert note.endswith("bytes of older output were left out so far")
    left_out, kept = int(note.split()[0].replace(",", "")), sizes(tmp_path / "a.log")
    told = left_out + sum(kept) - written
    assert 0 <= told <= 8 * (len(note) + 1), "all but these notes themselves"
    assert kept[1] <= MOST and log.tail(2) == [LINE.strip(), note]
    log.close()


def test_a_log_that_stays_within_its_bound_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("before\n")
    log = LogFile(tmp_path / "a.log", MOST)
    os.write(log.descriptor, b"one\ntwo\n")
    log.bound()
    assert log.tail(9) == ["one", "two"] and (tmp_path / "a.log").read_text() == "before\none\ntwo\n"
    assert sizes(tmp_path / "a.log")[1] == 0
    log.close()
