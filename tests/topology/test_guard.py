"""Whoever carries the mark ends with whoever set it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
DRIVER = """
import subprocess, sys, time
from topology import guard
with guard.watching() as mark:
    with guard.marked(mark):
        ours = subprocess.Popen(["sleep", "600"], start_new_session=True)
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(ours.pid, other.pid, flush=True)
    if sys.argv[1] == "killed":
        time.sleep(600)
"""


def lives(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_what_is_marked_ends_with_the_driver_and_nothing_else(how):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, how], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    ours, other = map(int, driver.stdout.readline().split())
    try:
        if how == "killed":
            assert lives(ours)
            driver.kill()
        driver.wait(20)
        deadline = time.monotonic() + 20
        while lives(ours):
            assert time.monotonic() < deadline
        assert lives(other)
    finally:
        for process in (ours, other):
            if lives(process):
                os.kill(process, signal.SIGKILL)
        driver.stdout.close()
