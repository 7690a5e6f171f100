"""Puts a run's own Ray apart, and ends what is left of it when the driver is killed, or interrupted while Ray starts.

Ray's processes end with the driver, but for its agents: they find their raylet dead, and then try for a minute to tell
the control service, which is dead too. So each process that the driver starts for Ray leads a session of its own,
which all that it starts belong to, and a process that waits for the driver's end kills what still belongs to one of
these some seconds later. (A mark in the environment would not do: Ray's processes write their titles over it.)
Sessions apart have a second use: a signal to the driver's process group, as `timeout` sends it, reaches the driver
alone, which can then save before Ray ends.

Run as a program it is that process; it must not need more than Python.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Optional

GRACE_SECONDS = 3.0
"""How long processes may take to end by themselves."""


@contextmanager
def watching() -> Iterator[int]:
    """A guard over the sessions whose leaders are written to the pipe that is given, one a line.

    It goes when the block ends, or this process.
    """
    guard = subprocess.Popen([sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, start_new_session=True)
    assert guard.stdin is not None
    try:
        yield guard.stdin.fileno()
    finally:
        guard.stdin.close()


def apart(popen: type[subprocess.Popen[Any]], pipe: int) -> type[subprocess.Popen[Any]]:
    """A `Popen` like `popen` whose processes lead sessions of their own, and are told to the guard."""

    class Apart(popen):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, preexec_fn: Optional[Callable[[], object]] = None, **options: Any) -> None:
            def told() -> None:  # in the child, so that no interrupt comes between its start and the telling
                os.write(pipe, f"{os.getpid()}\n".encode())
                if preexec_fn is not None:
                    preexec_fn()

            super().__init__(*arguments, preexec_fn=told, start_new_session=True, **options)

    return Apart


def _of(sessions: set[int]) -> list[int]:
    """Living processes that belong to one of the sessions."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z" and int(session) in sessions:
                found.append(int(folder.name))
    return found


def _main() -> None:
    sessions = {int(line) for line in sys.stdin}  # until the driver closes it, or is gone
    deadline = time.monotonic() + GRACE_SECONDS
    while found := _of(sessions):
        if time.monotonic() > deadline:
            for process in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    _main()
