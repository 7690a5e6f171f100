"""TensorFlow's lines about itself are kept back, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
CHATTER = """WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1796104089.179232    2689 port.cc:153] oneDNN custom operations are on.
I0000 00:00:1796104148.989209    3537 cpu_feature_guard.cc:227] This TensorFlow binary is optimized
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow
E1201 05:49:11.731598    3537 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error
2024-05-01 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:182] This TensorFlow binary
"""
WORDS = "ours: a warning\nIt has I0000 in it\n"


def python(*arguments, folder=None, **environment):
    """What it says on standard error, and on standard output."""
    inherited = {key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"}
    path = os.pathsep.join(map(str, [*([folder] if folder else []), CHECKOUT]))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder or CHECKOUT,
        env={**inherited, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stderr, done.stdout


@pytest.fixture
def talkative(tmp_path):
    """A folder with a TensorFlow that talks when it is loaded, and fails if asked to."""
    lines = "".join(f"{a}\n{b}\n" for a, b in zip(CHATTER.splitlines(), [*WORDS.splitlines(), *[""] * 4], strict=True))
    (tmp_path / "tensorflow.py").write_text(
        f"import os, sys\nos.write(2, {lines.encode()!r})\nprint('and Python', file=sys.stderr)\n"
        "if 'FAIL' in os.environ: raise ImportError('no such library')\n"
    )
    return tmp_path


LOAD = "import sys; from actors import quiet; quiet.load(); print('after', file=sys.stderr)"


def test_lines_of_others_come_through_in_their_order(talkative):
    heard = python("-c", LOAD, folder=talkative)[0]
    assert [line for line in heard.splitlines() if line] == [*WORDS.splitlines(), "and Python", "after"]


def test_a_library_that_fails_is_told(talkative):
    heard = python("-c", LOAD, folder=talkative, FAIL="1")[0]
    assert "ours: a warning" in heard and heard.endswith("ImportError: no such library\n") and "port.cc" not in heard


def test_who_sets_the_level_hears_all(talkative):
    heard = python("-c", LOAD, folder=talkative, TF_CPP_MIN_LOG_LEVEL="0")[0]
    assert all(line in heard for line in (CHATTER + WORDS).splitlines())


def test_a_program_is_run_as_if_by_its_name_without_our_modules_in_front(talkative):
    (talkative / "data.py").write_text("import sys, log; print(__name__, sys.argv[1:], log.NAME)")
    (talkative / "log.py").write_text("NAME = 'theirs'")
    heard, said = python(str(CHECKOUT / "actors" / "quiet.py"), "data", "--port", "1", folder=talkative)
    assert said == "__main__ ['--port', '1'] theirs\n" and "port.cc" not in heard


def test_the_real_one_says_nothing():
    work = "import tensorflow as tf; tf.config.list_physical_devices(); tf.function(lambda x: x, jit_compile=True)(1.0)"
    assert python("-c", f"{LOAD}; {work}")[0] == "after\n"
