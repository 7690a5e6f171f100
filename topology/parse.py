"""A run file read whole: every problem at once with its line, or a `Topology` that can run.

Read (tree.py), override, walk by the types of learners/options.py (spec.py, values.py), merge the defaults, check the
whole (check.py). Each stage goes on past a fault, so that one look at a file finds everything.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect as inspect

from learners.options import Topology
from topology import check
from topology.findings import Finding
from topology.spec import COMMON, bare, did_you_mean, file_type, keys_of, kinds, meant, nearest, schema
from topology.tree import Entry, Items, Mapping, Node, Problem, Problems, Scalar, Where, at, read
from topology.values import FAULTY, Faulty, accept, remedy, shown, wanted

__all__ = ["Problem", "Problems", "load", "loads", "resolved", "schema"]


def load(path: str | Path, overrides: Sequence[str] = ()) -> Topology:
    """The run that the file at `path` describes, with `overrides` (`learners.top.steps=10`) in place of what it says.

    Raises:
        Problems: everything that is wrong with the file and the overrides.
    """
    return loads(_text(path), str(path), overrides)


def _text(path: str | Path) -> str:
    name = str(path)
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8 text (byte 0x{error.object[error.start]:02x}); save the file as UTF-8"
        raise Problems((Problem(name, line, "", message),)) from None
    except OSError as error:
        what = "is a folder; name a YAML file" if Path(path).is_dir() else error.strerror or str(error)
        raise Problems((Problem(name, None, "", what),)) from None


def loads(text: str, source: str = "<string>", overrides: Sequence[str] = ()) -> Topology:
    """As `load`, for a text; `source` is what problems call it. The defaults are merged into the learners."""
    decoder, plain = _decoded(text, source, overrides)
    problems = decoder.problems
    topology = _build(plain, decoder)
    if topology is not None:
        decoder.check(topology)
    if problems:
        raise Problems(tuple(sorted(dict.fromkeys(problems), key=lambda p: (p.file != source, p.line or 0))))
    assert topology is not None
    return topology


def located(path: str | Path, overrides: Sequence[str], findings: Iterable[Finding]) -> Problems:
    """What was found out later of a file that `load` took, by key path, at its lines."""
    decoder, _ = _decoded(_text(path), str(path), overrides)
    for key, message in findings:
        decoder.refuse(decoder.place(key), key, message)
    return Problems(tuple(decoder.problems))


def _decoded(text: str, source: str, overrides: Sequence[str]) -> "tuple[_Decoder, dict[str, Any]]":
    """Plain values, and who knows where each stands."""
    problems: list[Problem] = []
    root = read(text, source, problems)
    if root is None or not isinstance(root, Mapping):
        if not problems:
            what = "is empty" if root is None else f"holds {shown(root)} where keys are wanted"
            problems.append(
                Problem(source, None if root is None else root.where.line, "", f"{what}; start with version: 1")
            )
        raise Problems(tuple(problems))
    for override in overrides:
        root = _override(root, override, problems)
    decoder = _Decoder(problems)
    return decoder, decoder.struct(file_type(), root, "")


def resolved(topology: Topology) -> str:
    """The run as YAML with every value in it and no defaults; loads back to an equal run."""
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedSeq
    from ruamel.yaml.compat import StringIO

    def pure(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: pure(inner) for key, inner in value.items() if inner is not None}
        if isinstance(value, (list, tuple)):
            made = CommentedSeq(value)
            made.fa.set_flow_style()
            return made
        return value

    plain = pure(msgspec.to_builtins(topology))
    del plain["defaults"]
    for learner in plain["learners"].values():
        if learner.get("child"):
            del learner["children"]
    yaml, out = YAML(), StringIO()
    yaml.width = 2**31
    yaml.dump(plain, out)
    return str(out.getvalue())


def _override(root: Mapping, override: str, problems: list[Problem]) -> Mapping:
    """`root` with `learners.top.steps=10` in place of what it says there."""
    where = Where(f"--set {override}")
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        problems.append(Problem(where.file, None, "", "write key=value, as in learners.top.steps=10"))
        return root
    if keys[0] == "learners" and len(keys) > 1:
        learners = next((entry.value for entry in root.entries if entry.key == "learners"), None)
        known = [entry.key for entry in learners.entries] if isinstance(learners, Mapping) else []
        if keys[1] not in known:
            message = f"'{keys[1]}' is not a learner{did_you_mean(keys[1], known) or _known(known)}"
            problems.append(Problem(where.file, None, f"learners.{keys[1]}", message))
            return root
    before = len(problems)
    value = read(text, where.file, problems) or Scalar("", True, where)
    problems[before:] = [replace(problem, line=None) for problem in problems[before:]]
    return root if len(problems) > before else _replaced(root, keys, _moved(value, where), where)


def _replaced(node: Node, keys: Sequence[str], value: Node, where: Where) -> Mapping:
    entries = list(node.entries) if isinstance(node, Mapping) else []
    place = next((i for i, entry in reversed(list(enumerate(entries))) if entry.key == keys[0]), None)
    old = entries[place].value if place is not None else Mapping((), where)
    new = value if len(keys) == 1 else _replaced(old, keys[1:], value, where)
    if place is None:
        entries.append(Entry(keys[0], where, new))
    else:
        entries[place] = Entry(keys[0], where if len(keys) == 1 else entries[place].where, new)
    return Mapping(tuple(entries), node.where if isinstance(node, Mapping) else where)


def _moved(node: Node, where: Where) -> Node:
    """The node, said to stand at `where`: the lines of an override mean nothing to its user."""
    if isinstance(node, Scalar):
        return Scalar(node.text, node.plain, where)
    if isinstance(node, Items):
        return Items(tuple(_moved(value, where) for value in node.values), where)
    return Mapping(tuple(Entry(entry.key, where, _moved(entry.value, where)) for entry in node.entries), where)


def _build(plain: dict[str, Any], decoder: "_Decoder") -> Topology | None:
    """The run that is left when faulty values are left out, so that references are checked all the same."""
    defaults = plain.pop("defaults", {})
    learners = {name: _merged(_taken(defaults, own), own) for name, own in plain.get("learners", {}).items()}
    if learners and all(own["kind"] != "mach" for own in learners.values()):
        for key in defaults.keys() - COMMON:
            path, takers = f"defaults.{key}", f"kinds other than mach take {', '.join(sorted(COMMON))}"
            decoder.refuse(decoder.place(path), path, f"no learner of this file takes it: {takers}; give it to each")
    try:
        return msgspec.convert({"version": 1, "name": "x", **plain, "learners": learners}, Topology)
    except msgspec.ValidationError as error:
        if not decoder.problems:
            decoder.problems.append(Problem(decoder.where[""].file, None, "", str(error)))
        return None


def _taken(defaults: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Those of the defaults that a learner of this kind takes."""
    return defaults if own["kind"] == "mach" else {key: defaults[key] for key in defaults.keys() & COMMON}


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` with what only `below` says; mappings within are merged in the same way."""
    both = {key: _merged(below[key], above[key]) for key in below.keys() & above.keys() if isinstance(below[key], dict)}
    return {**below, **above, **both}


class _Decoder:
    """Walks a tree by the types wanted, notes every problem and where each value stands, and returns plain values."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self.where: dict[str, Where] = {}
        #: of the learners, by path
        self.kinds: dict[str, str] = {}
        #: faults already told, by place, with their path: an anchor used by three learners is told of once
        self.told: dict[tuple[Where, str], str] = {}
        #: paths of what is not in the run as it was meant
        self.faulty: set[str] = set()

    def refuse(self, where: Where, path: str, message: str, meant: Iterable[str] = ()) -> Faulty:
        """Tell a fault.

        Args:
            meant: what `path` may have been meant to be, if it is a key that there is not.
        """
        self.faulty.update(meant or (path,))
        if (where, message) not in self.told:
            self.told[where, message] = path
            self.problems.append(Problem(where.file, where.line, path, message))
        return FAULTY

    def value(self, info: inspect.Type, node: Node, path: str) -> Any:
        self.where[path] = node.where
        info = bare(info)
        if isinstance(node, Mapping) and (structs := kinds(info)):
            return self.part(structs[0], node, path) if not structs[0].tag_field else self.tagged(structs, node, path)
        if isinstance(node, Mapping) and isinstance(info, inspect.DictType):
            return self.mapping(info, node, path)
        if isinstance(node, Items) and isinstance(info, inspect.VarTupleType):
            return self.items(info, node, path)
        if isinstance(node, Scalar) and (value := accept(info, node)) is not FAULTY:
            return value
        return self.refuse(node.where, path, f"{shown(node)} is not {wanted(info)}{remedy(info, node)}")

    def tagged(self, structs: Sequence[inspect.StructType], node: Mapping, path: str) -> Any:
        """A struct that its `kind` chooses."""
        field = structs[0].tag_field or ""
        known = [str(struct.tag) for struct in structs]
        entry = next((entry for entry in reversed(node.entries) if entry.key == field), None)
        if entry is None:
            self.refuse(node.where, path, f"its {field} is missing; add {field}: {' or '.join(known)}")
            return self.untagged(structs, node, path)
        text = entry.value.text if isinstance(entry.value, Scalar) else ""
        if text not in known:
            what = f"{shown(entry.value)} is not a kind of learner{did_you_mean(text, known)}{_known(known)}"
            self.refuse(entry.value.where, at(path, field), what)
            near = nearest(text, known)
            return self.untagged([struct for struct in structs if struct.tag in near] or structs, node, path)
        self.kinds[path] = text
        return {**self.struct(structs[known.index(text)], node, path), field: text}

    def untagged(self, structs: Sequence[inspect.StructType], node: Mapping, path: str) -> dict[str, Any]:
        """A learner that may be any of these: it is told what is wrong in each that has the most of its keys.

        It counts as one that has an embedding, so that what refers to it is not at fault.
        """
        given = {entry.key for entry in node.entries}
        most = max(len(given.intersection(keys_of(struct))) for struct in structs)
        tries = []
        for struct in structs:
            if len(given.intersection(keys_of(struct))) == most:
                one = _Decoder([])
                one.kinds = {path: str(struct.tag)}
                tries.append((one, {**one.struct(struct, node, path), "kind": struct.tag}))
        first, made = tries[0]
        everywhere = set.intersection(*({where for where, _ in one.told} for one, _ in tries))
        for (where, message), place in first.told.items():
            if where in everywhere:
                self.refuse(where, place, message)
        self.where.update(first.where)
        self.kinds[path] = str(made["kind"])
        return made if made["kind"] == "mach" else {"kind": "mach"}

    def part(self, info: inspect.StructType, node: Mapping, path: str) -> Any:
        """A struct, if all is there that it needs."""
        made = self.struct(info, node, path)
        whole = all(field.encode_name in made for field in info.fields if field.required)
        return made if whole else FAULTY

    def struct(self, info: inspect.StructType, node: Mapping, path: str) -> dict[str, Any]:
        self.where[path] = node.where
        fields = {field.encode_name: field for field in info.fields}
        made: dict[str, Any] = {}
        for key, where, inner in node.entries:
            if key == info.tag_field:
                continue
            if key not in fields:
                parts = tuple(path.split(".")) if path else ()
                hint, instead = meant(key, parts, keys_of(info), self.kinds.get(".".join(parts[:2]), ""))
                self.refuse(where, at(path, key), f"unknown key '{key}'; {hint}", instead)
            elif (value := self.value(fields[key].type, inner, at(path, key))) is not FAULTY:
                made[key] = value
        given = {entry.key for entry in node.entries}
        for key, field in fields.items():
            if field.required and key not in given:
                self.refuse(node.where, at(path, key), f"it is missing; wanted: {wanted(field.type)}")
        return made

    def mapping(self, info: inspect.DictType, node: Mapping, path: str) -> Any:
        if len(node.entries) < (info.min_length or 0):
            return self.refuse(node.where, path, f"nothing is in it; at least {info.min_length} is wanted")
        made = {}
        for key, where, inner in node.entries:
            value = self.value(info.value_type, inner, at(path, key))
            if accept(info.key_type, Scalar(key, False, where)) is FAULTY:
                self.faulty.add(path)
                self.refuse(where, at(path, key), f"'{key}' is not {wanted(info.key_type)}")
            elif value is not FAULTY:
                made[key] = value
            elif structs := kinds(info.value_type):
                made[key] = {structs[0].tag_field or "": structs[0].tag}  # what refers to it is not at fault
        return made

    def items(self, info: inspect.VarTupleType, node: Items, path: str) -> Any:
        if len(node.values) < (info.min_length or 0):
            return self.refuse(node.where, path, f"the list is empty; at least {info.min_length} value is wanted")
        made = [self.value(info.item_type, value, f"{path}[{i}]") for i, value in enumerate(node.values)]
        return FAULTY if any(value is FAULTY for value in made) else made

    def check(self, topology: Topology) -> None:
        """Adds what check.py finds, save what may follow from values that were faulty themselves."""
        early = {
            "" if one.file.startswith("--set ") else one.path for one in self.problems if one.path not in self.faulty
        }
        faulty = _sections(self.faulty | early, topology.learners)
        for path, message in check.check(topology, faulty):
            self.refuse(self.place(path), path, message)

    def place(self, path: str) -> Where:
        """Where a value was written: at its path, as a default, or else around it."""
        parts = re.sub(r"\[\d+\]$", "", path).split(".")
        if path in self.where:
            return self.where[path]
        while parts:
            default = ".".join(("defaults", *parts[2:]))
            for candidate in (".".join(parts), default if len(parts) > 2 else ""):
                if candidate and candidate in self.where:
                    return self.where[candidate]
            parts.pop()
        return self.where[""]


def _sections(paths: Iterable[str], learners: Iterable[str]) -> set[str]:
    """What `check.check` calls faulty, for the paths of what is."""
    found = set()
    for path in paths:
        place, *rest = re.sub(r"\[\d+\]", "", path).split(".")
        if place == "defaults":
            found |= {f"learners.{name}.{(rest or ['kind'])[0]}" for name in learners}
        elif place == "learners" and rest:
            found.add(f"learners.{rest[0]}.{(rest[1:] or ['kind'])[0]}")
        else:
            found.add(place)
    return found


def _known(known: Sequence[str]) -> str:
    return f"; known are {', '.join(known)}" if known else ""
