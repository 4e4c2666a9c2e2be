"""Without the extras everything but the learner imports whole, and TensorFlow stays away."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

SCRIPT = """
import importlib, importlib.abc, pkgutil, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {"tensorflow", "keras", "tensorboard", "ale_py"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
count = 0
for role in ("pipeline", "broker", "workers"):
    package = importlib.import_module(role)
    for module in pkgutil.walk_packages(package.__path__, role + "."):
        importlib.import_module(module.name)
        count += 1
assert not {"tensorflow", "keras", "learner.service"} & set(sys.modules)
print(count)
"""


def test_all_but_the_learner_import_without_tensorflow() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 40
