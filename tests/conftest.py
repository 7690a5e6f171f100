"""What a test may need of the machine, and what happens where it is missing.

`@pytest.mark.needs("fashion")` leaves a test out, with the reason, where the machine lacks it.
`MACHWORKS_REQUIRE`, a list of such words with commas between, turns the omission into a failure; `.ci/run` sets it.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FASHION = Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")


def find_python38() -> str | None:
    """The path of a Python 3.8 that runs: on the search path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which("python3.8"), *map(str, sorted(pyenv.glob("3.8.*/bin/python")))]
    for candidate in filter(None, candidates):
        # pyenv's shims are there for versions that are not
        if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None


def find_browser() -> str | None:
    """The path of a Chromium."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


#: word -> (is it here?, what to do where it is not)
NEEDS = {
    "fashion": (FASHION.exists, "no Fashion-MNIST here: apt-get install dataset-fashion-mnist (Debian, Ubuntu)"),
    "browser": (find_browser, "no Chromium here: apt-get install chromium (Debian)"),
    "py38": (find_python38, "no Python 3.8 here: put a python3.8 on PATH, or `pyenv install 3.8`"),
}


def pytest_configure(config):
    unknown = required() - NEEDS.keys()
    if unknown:
        raise pytest.UsageError(
            f"MACHWORKS_REQUIRE: {', '.join(sorted(unknown))}: not among {', '.join(sorted(NEEDS))}"
        )


def pytest_runtest_setup(item):
    for mark in item.iter_markers("needs"):
        for word in mark.args:
            here, advice = NEEDS[word]
            if not here():
                (pytest.fail if word in required() else pytest.skip)(f"{word}: {advice}")


def required() -> set[str]:
    return set(filter(None, os.environ.get("MACHWORKS_REQUIRE", "").replace(" ", "").split(",")))


@pytest.fixture
def python38() -> str:
    """Path of a Python 3.8; the test that takes it carries `needs("py38")`."""
    path = find_python38()
    assert path is not None
    return path


@pytest.fixture(scope="session")
def ray_here():
    """A local Ray with 4 logical CPUs, started once for all tests that take it."""
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()
