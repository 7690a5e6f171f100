"""Functions of the user's, named `module:function` in a run file: found beside it, in the working directory or on
Python's path.

They are called where they are needed, and do not travel: every host whose processes call one has its module.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from actors.formats import DataError, fault


def called(where: str, place: str, folder: Path, *arguments: Any, takes: str, expected: str) -> Any:
    """What `place` (module:function) returns for these arguments.

    Args:
        where: what messages begin with.
        folder: of the run file.
        takes, expected: what the function is given and must return, in words.

    Raises:
        DataError: there is no such function, or it raised something.
    """
    module_name, _, function_name = place.partition(":")
    with _user_path(folder):
        try:
            function = getattr(importlib.import_module(module_name), function_name, None)
            if not callable(function):
                raise fault(where, f"no function {function_name!r} in it", f"a function {takes}", "define it")
            return function(*arguments)
        except DataError:
            raise
        except ModuleNotFoundError as error:
            looked = f"a module in {folder}, {Path.cwd()} or Python's path"
            raise fault(where, str(error), looked, "correct the name or install it") from error
        except (Exception, SystemExit) as error:
            found = f"{type(error).__name__}: {error}"
            raise fault(where, found, expected, "call it by itself to see where") from error


@contextmanager
def _user_path(folder: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path[:0] = [str(folder), str(Path.cwd())]
    try:
        yield
    finally:
        sys.path[:] = before
