"""The distribution holds exactly the four rooms and the shipped chains."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

CHECKOUT = Path(__file__).parents[1]
ROOMS = {"actors", "learners", "topology", "analysis"}
SOURCES = [*ROOMS, "tests", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with an sdist, and a wheel built from it, of a copy of this checkout."""
    copy = tmp_path_factory.mktemp("copy")
    for name in SOURCES:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(CHECKOUT / name, copy / name)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", str(copy)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "dist"


def names_in_wheel(built):
    (wheel,) = built.glob("*.whl")
    return wheel, [PurePosixPath(name) for name in zipfile.ZipFile(wheel).namelist()]


def test_the_wheel_holds_exactly_the_four_packages(built):
    wheel, names = names_in_wheel(built)
    assert wheel.name.startswith("machworks-")
    assert {name.parts[0] for name in names if not name.parts[0].endswith(".dist-info")} == ROOMS


def test_the_wheel_holds_every_module_and_chain_of_the_rooms(built):
    _, names = names_in_wheel(built)
    here = {
        path.relative_to(CHECKOUT).as_posix()
        for room in ROOMS
        for path in (CHECKOUT / room).rglob("*")
        if path.suffix in (".py", ".yaml", ".html")
    }
    assert here == {str(name) for name in names if not name.parts[0].endswith(".dist-info")}
    assert {"topology/chains/digits.yaml", "analysis/page.html"} <= here


def test_the_wheel_brings_the_command_and_the_licence(built):
    wheel, names = names_in_wheel(built)
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = (name for name in names if name.name == "entry_points.txt")
        assert "machworks = topology.cli:main" in archive.read(str(entry)).decode()
    assert any(name.name == "LICENSE" for name in names)


def test_the_sdist_holds_the_rooms_and_no_run(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {PurePosixPath(name).parts[1] for name in archive.getnames() if len(PurePosixPath(name).parts) > 1}
    assert tops >= ROOMS | {"setup.cfg", "LICENSE", "README.md"}
    assert "runs" not in tops
