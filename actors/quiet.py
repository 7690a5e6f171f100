"""TensorFlow without the lines that its C++ writes about itself: devices that are not there, instructions that it uses.

The one place for it. Whoever sets TF_CPP_MIN_LOG_LEVEL hears TensorFlow as it is. As a program, with the name of a
module and its arguments, it runs that one in a process that has loaded TensorFlow so.
"""

import importlib
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_LINES = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"  # what begins them
    rb"|[IWE]\d{4} \d\d:\d\d:\d\d\.|[IWE]0000 00:00:\d+\."  # with the time of day, and before it is known
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "  # as older ones begin
    rb"|To enable the following instructions: "  # the second line of one
)


def load(name: str = "tensorflow") -> None:
    """Import TensorFlow, or Keras with it, unheard; before anything else of this process does."""
    if LEVEL in os.environ or "tensorflow" in sys.modules:
        importlib.import_module(name)
        return
    os.environ[LEVEL] = "3"  # nothing but what ends the process
    with _filtered():  # the level counts only once it is loaded
        importlib.import_module(name)


@contextmanager
def _filtered() -> Iterator[None]:
    """What is written to standard error in the block comes at its end, but for TensorFlow's lines about itself."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    try:
        heard = os.dup(2)
    except OSError:  # closed by the caller
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            with suppress(OSError, ValueError, AttributeError):
                sys.stderr.flush()
            os.dup2(heard, 2)
            os.close(heard)
            held.seek(0)
            with suppress(OSError):  # nobody listens
                os.write(2, b"".join(line for line in held if not _LINES.match(line)))


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]  # modules of ours are not meant
    del sys.argv[0]
    load()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
