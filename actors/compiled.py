"""What XLA has compiled, kept in the user's cache folder for the next process that takes the same step.

Entries give the bits of a fresh compilation. They hold machine code, hence a folder of its own for every TensorFlow and
every kind of processor. Only for the CPU. What can't be read is removed and made anew.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from shutil import disk_usage
from typing import TypeVar

Network = TypeVar("Network")

KEPT_SECONDS = 30 * 24 * 3600.0
"""Entries that are older are removed."""
ROOM = 200e6
"""Bytes that must be free: an entry takes a megabyte or so, and TensorFlow fails where it can't write one."""


def folder() -> Path:
    """Where this host's compiled functions are kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    info = Path("/proc/cpuinfo")
    kinds = {line for line in info.read_text().splitlines() if line.startswith(("model name", "flags", "Features"))}
    key = blake2b("\n".join([version("tensorflow"), *sorted(kinds)]).encode(), digest_size=8).hexdigest()
    return cache / "machworks" / "compiled" / key


def keep() -> None:
    """Let this process keep what it compiles, where that is possible; before TensorFlow is loaded."""
    if "tensorflow" in sys.modules:
        return
    with suppress(OSError, RuntimeError):  # no home, no room, not ours: compiled anew every time, as ever
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        for entry in place.iterdir():
            if time.time() - entry.stat().st_mtime > KEPT_SECONDS:
                entry.unlink()
        if os.access(place, os.W_OK) and disk_usage(place).free > ROOM:
            flag = f"--tf_xla_persistent_cache_directory={place}"
            os.environ["TF_XLA_FLAGS"] = f"{os.environ.get('TF_XLA_FLAGS', '')} {flag}".strip()


def made(build: Callable[[], Network]) -> Network:
    """What `build` makes and compiles; built once more, without what was kept, if that can't be read."""
    import tensorflow as tf

    try:
        return build()
    except tf.errors.OpError:
        for entry in folder().glob("*"):
            entry.unlink(missing_ok=True)
        return build()  # anew, because XLA remembers of a function that it could not be had
