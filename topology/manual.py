"""Every option of a run file with its values, its default and its meaning, drawn from the types themselves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import msgspec.inspect as inspect

from topology.spec import bare, file_type, kinds
from topology.values import wanted


@dataclass(frozen=True)
class Option:
    """One line of the manual."""

    #: from the file's top, or from that of a learner
    key: str
    #: what may be given, in words
    value: str
    #: as YAML; `required`, or `-` where it is none or follows from others, as the meaning says
    default: str
    meaning: str
    #: of the learners that take it; () outside of learners
    kinds: tuple[str, ...] = ()


def options() -> list[Option]:
    """All of them: those of the file first, then those of a learner, each once, with the kinds that take it."""
    learners: dict[tuple[str, str, str, str], Option] = {}
    (entry,) = [field for field in file_type().fields if field.name == "learners"]
    for struct in kinds(_inside(entry.type)):
        for one in _of(struct):
            known = learners.setdefault((one.key, one.value, one.default, one.meaning), one)
            learners[(one.key, one.value, one.default, one.meaning)] = replace(
                known, kinds=(*known.kinds, str(struct.tag))
            )
    return [*_of(file_type(), whole=("defaults", "learners")), *learners.values()]


def _inside(info: inspect.Type) -> inspect.Type:
    mapping = bare(info)
    assert isinstance(mapping, inspect.DictType)
    return mapping.value_type


def _of(struct: inspect.StructType, prefix: str = "", whole: Sequence[str] = ()) -> Iterator[Option]:
    """The options of a mapping and of those in it, but for what is in `whole`."""
    for field in struct.fields:
        key, parts = prefix + field.encode_name, kinds(field.type)
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if not parts or key in whole or not isinstance(default, msgspec.Struct):
            yield Option(key, wanted(field.type), _default(field), _meaning(field.type))
        if key not in whole:
            for part in parts:
                yield from _of(part, f"{key}.")


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    if field.default_factory is not msgspec.NODEFAULT:
        return _yaml(field.default_factory())
    return _yaml(field.default)


def _yaml(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_yaml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "{}" if isinstance(value, (dict, msgspec.Struct)) else str(value)


def _meaning(info: inspect.Type) -> str:
    schema = info.extra_json_schema if isinstance(info, inspect.Metadata) else None
    return str((schema or {}).get("description", ""))


# ---------------------------------------------------------------- for people

_BASES = {"rbd", "fpd", "nes", "sgd", "local"}

HEAD = """# Options

Every key of a run file. `machworks options --md` prints this page, `machworks options residual` the lines of one word,
`machworks validate --schema` the same for editors. A default of `-` is none, or follows from other options as the line
says; [random-bases.md](random-bases.md) has the rules, and the run's `chain.yaml` what was chosen.
"""


def markdown() -> str:
    """docs/options.md."""
    found = options()
    parts = [
        ("The file", "", [one for one in found if not one.kinds]),
        (
            "A learner of kind mach",
            "In `learners.NAME`, or in `defaults` for all that do not give their own (but for `child` and `children`).",
            [one for one in found if "mach" in one.kinds],
        ),
        (
            "A learner of kind rbd, fpd, nes, sgd or local",
            "In `learners.NAME`. Of `defaults` they take `batch_size`, `steps` and `resources`.",
            [one for one in found if _BASES.intersection(one.kinds)],
        ),
    ]
    return "\n".join([HEAD, *(_section(*part) for part in parts)])


def _section(title: str, about: str, found: Sequence[Option]) -> str:
    with_kinds = any(_BASES.intersection(one.kinds) for one in found)
    heads = ["key", "value", "default", *(["kinds"] if with_kinds else []), "what it is"]
    lines = [f"## {title}", *([about, ""] if about else []), _row(heads), "|" + "---|" * len(heads)]
    for one in found:
        taken = ["all" if set(one.kinds) >= _BASES else ", ".join(one.kinds)] if with_kinds else []
        lines.append(_row([f"`{one.key}`", one.value, f"`{one.default}`", *taken, one.meaning]))
    return "\n".join([*lines, ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def text(word: str = "") -> str:
    """The options whose key holds `word`, for a terminal.

    Raises:
        ValueError: there is none.
    """
    found = [one for one in options() if word in one.key]
    if not found:
        raise ValueError(f"options: no key holds {word!r}; machworks options lists all")
    return "\n".join(_paragraph(one) for one in found)


def _paragraph(one: Option) -> str:
    of = f"  ({', '.join(one.kinds)})" if one.kinds else ""
    lines = [
        f"{one.key}{of}",
        f"    {one.value}; default {one.default}",
        *([f"    {one.meaning}"] if one.meaning else []),
    ]
    return "\n".join(lines)
