"""What a single value means where a type is wanted, and what is said when it means nothing there.

YAML 1.2 as people mean it: `1e-5`, `1e5` and `3e8` are numbers, `1e3` a whole one, `no` is a word, only `true` and
`false` are booleans; nothing quoted is a number, and no number is infinite.
"""

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec.inspect as inspect

from topology.spec import bare, did_you_mean, keys_of, kinds
from topology.tree import Items, Mapping, Node, Scalar

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LARGEST = 2**63 - 1


class Faulty:
    """Stands for a value that is refused; None is a value."""


FAULTY = Faulty()


def _number(node: Scalar) -> Decimal | None:
    try:
        return Decimal(node.text) if node.plain and _NUMBER.fullmatch(node.text) else None
    except InvalidOperation:  # an exponent beyond Decimal's own limit
        return None


def _within(value: Any, info: Any) -> bool:
    return (
        (info.ge is None or value >= info.ge)
        and (info.gt is None or value > info.gt)
        and (info.le is None or value <= info.le)
        and (info.lt is None or value < info.lt)
    )


def accept(info: inspect.Type, node: Scalar) -> Any:
    """The value that `node` has where `info` is wanted, or FAULTY."""
    info = bare(info)
    if isinstance(info, inspect.UnionType):
        made = (accept(choice, node) for choice in info.types)
        return next((value for value in made if value is not FAULTY), FAULTY)
    if isinstance(info, inspect.NoneType):
        return None if node.plain and node.text in _NULL else FAULTY
    if isinstance(info, inspect.BoolType):
        return _BOOLEAN.get(node.text, FAULTY) if node.plain else FAULTY
    if isinstance(info, inspect.LiteralType):
        number = _number(node)
        return next((value for value in info.values if value in (node.text, number)), FAULTY)
    if isinstance(info, inspect.IntType):
        return _whole(info, node)
    if isinstance(info, inspect.FloatType):
        return _real(info, node)
    if isinstance(info, inspect.StrType):
        other = node.plain and (node.text in _NULL or node.text in _BOOLEAN or _NUMBER.fullmatch(node.text))
        return FAULTY if other or (info.pattern and not re.fullmatch(info.pattern, node.text)) else node.text
    return FAULTY


def _whole(info: inspect.IntType, node: Scalar) -> int | Faulty:
    number = _number(node)
    if number is None or abs(number) > _LARGEST or number != number.to_integral_value():
        return FAULTY
    return int(number) if _within(int(number), info) else FAULTY


def _real(info: inspect.FloatType, node: Scalar) -> float | Faulty:
    value = float(node.text) if _number(node) is not None else math.nan
    return value if math.isfinite(value) and _within(value, info) else FAULTY


def shown(node: Node) -> str:
    """What was written, short enough for an error message."""
    if isinstance(node, Items):
        return "a list"
    if isinstance(node, Mapping):
        return "a mapping"
    if node.plain and node.text in _NULL:
        return "null"
    text = node.text if len(node.text) <= 40 else node.text[:37] + "..."
    return text if _number(node) is not None else f"{text!r}"


def _bounds(info: Any) -> str:
    words = (("of at least", info.ge), ("above", info.gt), ("of at most", info.le), ("below", info.lt))
    said = " and ".join(
        f"{word} {bound:g}" if bound != _LARGEST else f"{word} 2^63 - 1" for word, bound in words if bound is not None
    )
    return f" {said}" if said else ""


def wanted(info: inspect.Type) -> str:
    """The type in words: `a whole number of at least 1`."""
    info = bare(info)
    if isinstance(info, inspect.UnionType):
        return " or ".join(wanted(choice) for choice in info.types if not isinstance(choice, inspect.NoneType))
    if isinstance(info, inspect.IntType):
        return f"a whole number{_bounds(info)}"
    if isinstance(info, inspect.FloatType):
        return f"a number{_bounds(info)}"
    if isinstance(info, inspect.LiteralType):
        return f"{'one of ' if len(info.values) > 1 else ''}{', '.join(str(value) for value in info.values)}"
    if isinstance(info, inspect.VarTupleType):
        return f"a list of which each is {wanted(info.item_type)}"
    if isinstance(info, inspect.StrType):
        return _text(info.pattern or "")
    if isinstance(info, inspect.BoolType):
        return "true or false"
    structs = kinds(info)
    return f"a mapping with keys such as {', '.join(keys_of(structs[0])[:3])}" if structs else "a mapping"


def _text(pattern: str) -> str:
    if words := _words(pattern):
        return f"{', '.join(words)} or module:function" if ":" in pattern else f"one of {', '.join(words)}"
    return "a name (letters, digits, _ and -; a letter first)" if pattern else "text"


def _words(pattern: str) -> list[str]:
    """The words among the alternatives of a pattern, as in `^(dense|base_conv|...)$`."""
    return re.findall(r"(?<=[(|])\w+(?=[|)])", pattern)


def _fits(info: inspect.Type, text: str, plain: bool, node: Scalar) -> bool:
    return accept(info, Scalar(text, plain, node.where)) is not FAULTY


def remedy(info: inspect.Type, node: Node) -> str:
    """What to do about a value that is not as wanted; nothing where that is plain from the rest of the message."""
    if not isinstance(node, Scalar):
        return ""
    if node.plain and node.text in _NULL:
        return "; give a value or remove the key"
    if not node.plain and _fits(info, node.text, True, node):
        return "; quoted: remove the quotes"
    if node.plain and _fits(info, node.text, False, node):
        return "; put it in quotes"
    if node.plain and (_NOT_FINITE.fullmatch(node.text) or (_number(node) and math.isinf(float(node.text)))):
        return "; a finite number is wanted"
    if isinstance(info, inspect.VarTupleType) and accept(info.item_type, node) is not FAULTY:
        return f"; write [{node.text}]"
    if (bare_text := re.sub(r"[_,\s]", "", node.text)) != node.text and _fits(info, bare_text, True, node):
        return f"; write {bare_text}"
    if isinstance(info, inspect.LiteralType):
        return did_you_mean(node.text, [str(value) for value in info.values])
    if isinstance(info, inspect.StrType):
        return did_you_mean(node.text, _words(info.pattern or ""))
    return ""
