"""Ends what a run's own Ray leaves behind when the driver is killed, or interrupted while Ray starts.

Ray's processes end with the driver, but for its agents: they find their raylet dead, and then try for a minute to tell
the control service, which is dead too. So all that Ray starts carries a mark in its environment, and a process of its
own, which waits for the driver's end, kills what still has the mark some seconds later.

Run as a program it is that process; it must not need more than Python.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "MACHWORKS_MARK"
GRACE_SECONDS = 3.0
"""How long processes may take to end by themselves."""


@contextmanager
def watching() -> Iterator[str]:
    """A guard over what is started with the mark that is given; it goes when the block ends, or this process."""
    mark = secrets.token_hex(16)
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark], stdin=subprocess.PIPE, start_new_session=True
    )
    assert guard.stdin is not None
    try:
        yield mark
    finally:
        guard.stdin.close()


@contextmanager
def marked(mark: str) -> Iterator[None]:
    """Processes that are started in this block carry the mark, and so do those that they start."""
    os.environ[MARK] = mark
    try:
        yield
    finally:
        os.environ.pop(MARK, None)


def _with(mark: str) -> list[int]:
    """Living processes that carry the mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile, or is another user's
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _main(mark: str) -> None:
    sys.stdin.read()  # until the driver closes it, or is gone
    deadline = time.monotonic() + GRACE_SECONDS
    while found := _with(mark):
        if time.monotonic() > deadline:
            for process in found:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    _main(sys.argv[1])
