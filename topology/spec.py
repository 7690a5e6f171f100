"""What a run file may hold, drawn from learners/options.py: its types, its JSON Schema, and the key that was meant.

The file differs from the `Topology` it is decoded into in one point: its `defaults` are typed, as a learner without
its kind and its children.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated, Any, NamedTuple

import msgspec
import msgspec.inspect as inspect

from learners import fields, options

#: fields of a learner that no default can give
OWN = frozenset({"kind", "child", "children"})
#: defaults that learners of every kind take; the others are those of kind mach
COMMON = frozenset({"batch_size", "steps", "resources"})

#: words of other programs and of everyday speech -> ours
WORDS = {
    "lr": "learning_rate",
    "rate": "learning_rate",
    "learning_rate": "rate",
    "batch": "batch_size",
    "epochs": "steps",
    "iterations": "steps",
    "n_iterations": "steps",
    "layers": "hidden",
    "units": "hidden",
    "n_hidden": "hidden",
    "embedding_size": "embedding",
    "n_embedding": "embedding",
    "eps": "epsilon",
    "l2": "weight_decay",
    "timeout": "time_limit",
    "staleness": "max_staleness",
    "downstream": "child",
    "dataset": "data",
    "recording": "record",
}


def _fields(struct: type[msgspec.Struct]) -> list[tuple[str, Any, Any]]:
    """Name, annotation and default of every field, as msgspec.defstruct takes them."""
    made = []
    for field in msgspec.structs.fields(struct):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory)
        made.append((field.name, field.type, default))
    return made


Defaults = msgspec.defstruct(
    "Defaults",
    [field for field in _fields(options.Mach) if field[0] not in OWN],
    bases=(fields.Options,),
    namespace={"__doc__": "Values for every learner that does not give its own."},
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)
File = msgspec.defstruct(
    "File",
    [
        (name, Annotated[Defaults, kind.__metadata__[0]], msgspec.field(default_factory=Defaults))
        if name == "defaults"
        else (name, kind, default)
        for name, kind, default in _fields(options.Topology)
    ],
    bases=(fields.Options,),
    namespace={"__doc__": "A whole run file, version 1."},
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)


@cache
def file_type() -> inspect.StructType:
    """The type of the whole file, as msgspec describes it."""
    made = inspect.type_info(File)
    assert isinstance(made, inspect.StructType)
    return made


def schema() -> dict[str, Any]:
    """JSON Schema of a run file, for editors."""
    made = msgspec.json.schema(File)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "machworks run file, version 1", **made}


def bare(info: inspect.Type) -> inspect.Type:
    """The type without its description."""
    while isinstance(info, inspect.Metadata):
        info = info.type
    return info


def keys_of(struct: inspect.StructType) -> tuple[str, ...]:
    """Every key that a mapping of this type may hold."""
    tag = (struct.tag_field,) if struct.tag_field else ()
    return (*tag, *(field.encode_name for field in struct.fields))


def kinds(info: inspect.Type) -> tuple[inspect.StructType, ...]:
    """The structs that a type may be, each with its tag; () if it is none."""
    info = bare(info)
    choices = info.types if isinstance(info, inspect.UnionType) else (info,)
    return tuple(choice for choice in choices if isinstance(choice, inspect.StructType))


class Level(NamedTuple):
    """A mapping of the file."""

    path: tuple[str, ...]  #: `*` stands for a name that the user chooses
    keys: tuple[str, ...]
    kind: str  #: of the learner that it is in; "" outside


def _levels(info: inspect.Type, path: tuple[str, ...] = (), kind: str = "") -> Iterator[Level]:
    for struct in kinds(info):
        own = str(struct.tag) if struct.tag_field else kind
        yield Level(path, keys_of(struct), own)
        for field in struct.fields:
            yield from _levels(field.type, (*path, field.encode_name), own)
    inner = bare(info)
    if isinstance(inner, inspect.DictType):
        yield from _levels(inner.value_type, (*path, "*"), kind)


@cache
def levels() -> tuple[Level, ...]:
    """Every mapping of the file."""
    return tuple(_levels(file_type()))


def _squash(key: str) -> str:
    return re.sub(r"[-_\s]", "", key).lower()


def _same(key: str, known: Iterable[str]) -> list[str]:
    """The known keys that `key` is but for case, hyphens and underscores, or means in other words."""
    meanings, word = {_squash(other): ours for other, ours in WORDS.items()}, key
    for _ in range(2):  # lr is a learning rate, which has its own name in an update
        if same := [other for other in known if _squash(other) == _squash(word)]:
            return same
        word = meanings.get(_squash(word), word)
    return [other for other in known if _squash(other) == _squash(word)]


def _score(word: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other.lower(), word.lower(), autojunk=False).ratio()


def nearest(word: str, known: Iterable[str], least: float = 0.6) -> tuple[str, ...]:
    """The known words that are most like `word` (several if they are equally like it), or ()."""
    scores = {other: _score(word, other) for other in known}
    best = max(scores.values(), default=0.0)
    return tuple(other for other, score in scores.items() if score == best and best >= least)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no known word is like it."""
    known = tuple(known)
    near = tuple(_same(word, known)) or nearest(word, known)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _elsewhere(key: str, path: tuple[str, ...], kind: str, least: float) -> list[tuple[float, str]]:
    """Places of the file, other than `path`, that hold `key` or one like it: (likeness, place), best first."""
    found = []
    name = path[1] if path[:1] == ("learners",) and len(path) > 1 else "NAME"
    for level, keys, of in levels():
        if kind and of and of != kind:
            continue
        level = tuple(name if part == "*" else part for part in level)
        # inside a learner its own levels are meant, not the defaults; inside the defaults the other way round
        outside = {"learners": "defaults", "defaults": "learners"}.get(path[0] if path else "", "")
        if level == path or (level[:1] == (outside,) and not OWN.issuperset(_same(key, keys) or [""])):
            continue
        same = _same(key, keys)
        near = same or nearest(key, keys, least)
        found += [(1.0 if same else _score(key, other), ".".join((*level, other))) for other in near]
    below = [(score, place) for score, place in found if path and place.startswith(".".join(path) + ".")]
    return sorted(dict.fromkeys(below or found), key=lambda pair: -pair[0])


def _other_kinds(key: str, path: tuple[str, ...], kind: str) -> tuple[str, ...]:
    """Kinds of learners that hold `key` at this place."""
    place = tuple("*" if i == 1 else part for i, part in enumerate(path))
    return tuple(of for level, keys, of in levels() if kind and of != kind and level == place and key in keys)


def meant(key: str, path: tuple[str, ...], keys: tuple[str, ...], kind: str = "") -> tuple[str, tuple[str, ...]]:
    """What an unknown `key` at `path`, where `keys` are known, was meant to be.

    Args:
        kind: of the learner that `path` is in; "" outside.

    Returns:
        The end of an error message, and the paths that may have been meant: a learner's for anything in it, "" for
        anything at all.
    """

    def here(found: Iterable[str]) -> tuple[str, tuple[str, ...]]:
        said = f"did you mean {' or '.join(map(repr, found))}?"
        return said, tuple(".".join((*path, one)) for one in found)

    anything = ".".join(path[:2]) if path[:1] == ("learners",) else ""
    if same := _same(key, keys):
        return here(same)
    if others := _other_kinds(key, path, kind):
        return f"it goes with kind: {' or '.join(others)}", (anything,)
    near = nearest(key, keys)
    far = _elsewhere(key, path, kind, 0.8)
    if far and (not near or far[0][0] == 1.0):  # a key that is like one here is meant for here
        places = [place for score, place in far if score == far[0][0]]
        return f"it belongs elsewhere: {' or '.join(places)}", tuple(places)
    return here(near) if near else (f"known are {', '.join(keys)}", (anything,))
