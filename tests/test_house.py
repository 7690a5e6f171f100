"""What README, Makefile and `.ci/run` promise holds together, and the rooms import one way."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from topology import cli

CHECKOUT = Path(__file__).parents[1]
README = (CHECKOUT / "README.md").read_text()


def test_every_command_is_in_the_readme_once():
    table = re.findall(r"^\| `machworks (\w+)", README, re.MULTILINE)
    commands = next(iter(cli._parser()._subparsers._group_actions)).choices
    assert sorted(table) == sorted(commands)


def test_the_rooms_import_one_way():
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run(['--no-cache'])"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ci_runs_exactly_readmes_test_command():
    (command,) = re.findall(r"^(make test\S*)$", README, re.MULTILINE)
    script = (CHECKOUT / ".ci/run").read_text()
    (line,) = re.findall(r"^MACHWORKS_REQUIRE=\S+ (.*)$", script, re.MULTILINE)
    assert line == command == "make test"


def test_the_words_that_ci_requires_are_explained():
    script = (CHECKOUT / ".ci/run").read_text()
    (words,) = re.findall(r"^MACHWORKS_REQUIRE=(\S+)", script, re.MULTILINE)
    explained = (CHECKOUT / "CONTRIBUTING.md").read_text()
    assert all(f"| `{word}` |" in explained for word in words.split(","))


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_test_runs_the_suite():
    # `make test-oldest` may be what runs this, and its variables would be handed down
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "--dry-run", "test"], cwd=CHECKOUT, env=plain, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1].strip() == ".venv/bin/python -m pytest"


def paths_in_readme():
    linked = re.findall(r"\]\(([^)#]+)\)", README)
    quoted = re.findall(r"`([\w./*-]+)`", README)
    rooted = [name for name in quoted if "/" in name and not name.startswith(("runs/", "/", ".venv", "~", "."))]
    return sorted({name for name in linked + rooted if "://" not in name})


@pytest.mark.parametrize("name", paths_in_readme())
def test_a_path_in_readme_exists(name):
    assert list(CHECKOUT.glob(name.rstrip("/"))), name


def test_readme_names_some_paths():
    assert len(paths_in_readme()) > 10


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-oldest.txt"])
def test_every_dependency_is_pinned_and_no_registry_is_named(name):
    lines = [line for line in (CHECKOUT / name).read_text().splitlines() if not line.startswith("#")]
    assert all(re.match(r"^[a-z0-9-]+==[\w.+!-]+( ; .+)?$", line) for line in lines)
    pinned = {line.split("==")[0] for line in lines}
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    wanted = setup["options"]["install_requires"] + setup["options.extras_require"]["dev"]
    assert {re.sub(r"[._]", "-", want).lower() for want in re.findall(r"^([\w.-]+)", wanted, re.MULTILINE)} <= pinned


def test_pyproject_holds_only_the_build_system_and_ruff():
    tables = re.findall(r"^\[([\w.-]+)\]", (CHECKOUT / "pyproject.toml").read_text(), re.MULTILINE)
    assert {table.split(".lint")[0] for table in tables} == {"build-system", "tool.ruff"}


PROBE = """
import pytest
@pytest.mark.needs("py38")
def test_probe(python38): assert python38
"""


@pytest.mark.parametrize(
    ("required", "status", "said"),
    [("", 0, "1 skipped"), ("py38", 1, "no Python 3.8 here"), ("py39,py38", 4, "MACHWORKS_REQUIRE: py39: not among")],
)
def test_what_is_required_and_missing_fails_with_words(tmp_path, required, status, said):
    shutil.copy(CHECKOUT / "tests/conftest.py", tmp_path)
    (tmp_path / "test_probe.py").write_text(PROBE)
    bare = {"PATH": str(tmp_path), "PYENV_ROOT": str(tmp_path), "MACHWORKS_REQUIRE": required}
    pytest_here = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", str(tmp_path)]
    done = subprocess.run(pytest_here, env=bare, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
