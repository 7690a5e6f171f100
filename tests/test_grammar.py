"""The step modules run under TensorFlow 2.6 and Python 3.8 too, on hosts with accelerators that have nothing newer.

Step modules are those of learners/ that import TensorFlow, and what these import from learners/.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
GENERIC = {"dict", "frozenset", "list", "set", "tuple", "type"}
NEW_IN_LIBRARY = {"graphlib", "zoneinfo", "tomllib"}


def imports(tree):
    """Full names of what a module imports when it runs: not what only type checkers see."""
    only_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in only_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(module):
    path = CHECKOUT / module.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def step_modules():
    trees = {path: ast.parse(path.read_text(), str(path)) for path in sorted((CHECKOUT / "learners").rglob("*.py"))}
    todo = [path for path, tree in trees.items() if any(name.split(".")[0] == "tensorflow" for name in imports(tree))]
    found = set()
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += filter(None, (file_of(name) for name in imports(trees[path]) if name.startswith("learners.")))
    return sorted(found)


def runtime_generics(tree):
    """Lines of `dict[...]`, `X | None` and the like that Python evaluates; 3.8 cannot."""
    lazy = any(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" and node.names[0].name == "annotations"
        for node in tree.body
    )
    unread = set()
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            note = getattr(node, field, None)
            if lazy and note is not None:
                unread |= {id(inner) for inner in ast.walk(note)}
    for node in ast.walk(tree):
        if id(node) in unread:
            continue
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in GENERIC:
            yield node.lineno
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and ast.unparse(node.right) == "None":
            yield node.lineno


STEP_MODULES = step_modules()
each_step_module = pytest.mark.parametrize(
    "path", STEP_MODULES, ids=[path.relative_to(CHECKOUT).as_posix() for path in STEP_MODULES]
)


@each_step_module
def test_parses_in_the_grammar_of_3_8(path):
    tree = ast.parse(path.read_text(), str(path), feature_version=(3, 8))
    assert list(runtime_generics(tree)) == [], "add `from __future__ import annotations`, or use typing's names"


@each_step_module
def test_imports_no_keras_and_nothing_that_an_old_host_lacks(path):
    tree = ast.parse(path.read_text(), str(path))
    allowed = (sys.stdlib_module_names - NEW_IN_LIBRARY) | {"numpy", "tensorflow", "learners"}
    names = set(imports(tree))
    assert {name.split(".")[0] for name in names} <= allowed
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert "keras" not in attributes | {part for name in names for part in name.split(".")}


def test_calls_nothing_of_the_library_that_3_8_lacks():
    vermin = [
        sys.executable,
        "-c",
        "import vermin; vermin.main()",
        "--quiet",
        "--no-tips",
        "--target=3.8-",
        "--violations",
    ]
    done = subprocess.run([*vermin, *map(str, STEP_MODULES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("py38")
def test_python_3_8_itself_compiles_them(python38):
    program = "import sys\nfor path in sys.argv[1:]: compile(open(path, encoding='utf-8').read(), path, 'exec')"
    done = subprocess.run([python38, "-c", program, *map(str, STEP_MODULES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("Alias = tuple[int, ...]", [1]),
        ("def f(x: dict[str, int]): ...", [1]),
        ("def f(x: 'dict[str, int]') -> int: ...", []),
        ("from __future__ import annotations\ndef f(x: dict[str, int] | None) -> list[int]: ...", []),
        ("from __future__ import annotations\nAlias = int | None", [2]),
        ("x = rows[0]", []),
    ],
)
def test_the_check_sees_what_3_8_would_evaluate(source, lines):
    assert list(runtime_generics(ast.parse(source))) == lines
