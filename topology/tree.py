"""YAML text as a tree of nodes that know where they stand, and the problems that people are told about.

Our own small tree, because a decoder that stops at the first fault, or forgets lines, cannot report all at once.
Scalars stay text: what a word means depends on what is wanted there, and parse.py decides it by YAML 1.2's rules.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.nodes import Node as _Composed

_TAGS = {f"tag:yaml.org,2002:{tag}" for tag in "str int float bool null timestamp merge value map seq".split()}


class Where(NamedTuple):
    """Where something was written."""

    #: as the user named it, or the whole `--set key=value`
    file: str
    #: counted from 1; None: the place has no lines (an override, a file that cannot be read)
    line: int | None = None
    #: counted from 0; tells two faults of one line apart
    column: int = 0


@dataclass(frozen=True)
class Problem:
    """One fault of a run file: where, at which key, and what to do."""

    #: as the user named it, or the whole `--set key=value`
    file: str
    #: counted from 1; None: the place has no lines
    line: int | None
    #: as in `learners.top.optimizer.learning_rate`; empty: the file as a whole
    path: str
    #: what came, what was wanted, what to do
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


class Problems(ValueError):
    """All problems of a run file, in the order of its lines."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


@dataclass(frozen=True)
class Scalar:
    """A single value, as written."""

    text: str
    #: written without quotes: may be a number, a boolean, null
    plain: bool
    where: Where


@dataclass(frozen=True)
class Items:
    """A list."""

    values: tuple["Node", ...]
    where: Where


class Entry(NamedTuple):
    """A key of a mapping and its value."""

    key: str
    #: of the key
    where: Where
    value: "Node"


@dataclass(frozen=True)
class Mapping:
    """Keys and values in the order of the file; merge keys are already spread out, repeated keys are kept."""

    entries: tuple[Entry, ...]
    where: Where


Node = Scalar | Items | Mapping


def at(path: str, key: str) -> str:
    """The path of `key` under `path`."""
    return f"{path}.{key}" if path else key


def read(text: str, source: str, problems: list[Problem]) -> Node | None:
    """The tree of `text`; None where it is empty or not YAML. What is wrong is appended to `problems`."""
    try:
        composed = YAML(typ="safe", pure=True).compose(text)
        return None if composed is None else _Tree(source, problems).node(composed, "")
    except MarkedYAMLError as error:
        line, what = _to_mend(error, text.splitlines())
        problems.append(Problem(source, line, "", f"not valid YAML: {what}"))
    except YAMLError as error:
        what = str(error).splitlines()[0]
        line = text.count("\n", 0, error.position) + 1 if hasattr(error, "position") else None
        problems.append(Problem(source, line, "", f"not valid YAML: {what}"))
    except RecursionError:
        problems.append(Problem(source, None, "", "not a run file: lists or mappings are nested hundreds deep"))
    return None


def _to_mend(error: MarkedYAMLError, lines: Sequence[str]) -> tuple[int | None, str]:
    """The line to mend, from 1, and what is wrong with it; the parser stops where it notices, often a line later."""
    what = ", ".join(part for part in (error.context, error.problem) if part)
    began, met = error.context_mark, error.problem_mark or error.context_mark
    if met is None:
        return None, what
    if began and "simple key" in what:
        return began.line + 1, _NO_COLON
    if began and "quoted scalar" in what:
        return began.line + 1, "the quote that begins here does not end"
    if began and what.endswith("got '<stream end>'"):
        return began.line + 1, "the bracket that begins here does not end"
    written = [n for n, line in enumerate(lines[: met.line]) if line.strip() and not line.lstrip().startswith("#")]
    in_front = lines[met.line][: met.column] if met.line < len(lines) else ""
    if what.endswith("got ':'") and ":" not in in_front and written:
        return written[-1] + 1, f"{what} in line {met.line + 1}: something is missing at the end of this line"
    if "mapping values" in what and ":" in in_front:
        return met.line + 1, "a second ': ' in one line; put the value in quotes"
    if "mapping values" in what and written:
        inside = ": " in lines[written[-1]]
        return (met.line + 1, _INDENTED) if inside else (written[-1] + 1, _NO_COLON)
    return met.line + 1, _INDENTED if "<block mapping start>" in what else what


_NO_COLON = "no ': ' behind the key, a colon and a space"
_INDENTED = "indented unlike the lines around it"


class _Tree:
    """Turns composed nodes into ours, once each: aliases share, and one that holds itself is refused."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        self.done: dict[int, Node | None] = {}

    def where(self, node: _Composed) -> Where:
        return Where(self.source, node.start_mark.line + 1, node.start_mark.column)

    def refuse(self, where: Where, path: str, message: str) -> None:
        self.problems.append(Problem(where.file, where.line, path, message))

    def node(self, node: _Composed, path: str) -> Node:
        if id(node) in self.done:
            known = self.done[id(node)]
            if known is None:
                self.refuse(self.where(node), path, f"the anchor &{node.anchor} holds an alias of itself")
            return known or Mapping((), self.where(node))
        self.done[id(node)] = None
        self.done[id(node)] = made = self.make(node, path)
        return made

    def make(self, node: _Composed, path: str) -> Node:
        where = self.where(node)
        if str(node.tag) not in _TAGS:
            self.refuse(where, path, f"the tag {node.tag} has no meaning here; remove it")
        if isinstance(node, SequenceNode):
            return Items(tuple(self.node(item, f"{path}[{i}]") for i, item in enumerate(node.value)), where)
        if isinstance(node, MappingNode):
            return Mapping(tuple(self.entries(node, path)), where)
        assert isinstance(node, ScalarNode)
        return Scalar(node.value, node.style is None, where)

    def entries(self, node: MappingNode, path: str) -> Iterator[Entry]:
        own: dict[str, Where] = {}
        merged: list[Entry] = []
        for key_node, value_node in node.value:
            where = self.where(key_node)
            if not isinstance(key_node, ScalarNode):
                self.refuse(where, path, "a key must be a single word")
                continue
            key = key_node.value
            if key in own:
                self.refuse(where, at(path, key), _repeated(key, path, own[key]))
            own.setdefault(key, where)
            if key == "<<" and key_node.style is None:
                merged += self.merged(value_node, path)
            else:
                value = self.node(value_node, at(path, key))
                if isinstance(value, Scalar) and value.plain and not value.text:
                    value = replace(value, where=where)  # the parser puts nothing where the next thing begins
                yield Entry(key, where, value)
        for entry in merged:
            if entry.key not in own:
                own[entry.key] = entry.where
                yield entry

    def merged(self, node: _Composed, path: str) -> list[Entry]:
        """The entries of a merge key's mapping or list of mappings; of two with one key the first is taken."""
        tree = self.node(node, at(path, "<<"))
        entries: list[Entry] = []
        for part in tree.values if isinstance(tree, Items) else (tree,):
            if not isinstance(part, Mapping):
                self.refuse(
                    part.where, at(path, "<<"), "only mappings can be merged: <<: *anchor or <<: [*one, *other]"
                )
                continue
            entries += part.entries
        return entries


def _repeated(key: str, path: str, first: Where) -> str:
    if path == "learners":
        return f"two learners are named '{key}', the first in line {first.line}; rename one"
    return f"'{key}' is given twice, first in line {first.line}; keep one"
