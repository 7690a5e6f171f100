"""One HTML file of everything: it holds its pictures itself, and opens without a network."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

from analysis.pictures import Sheet, cell
from analysis.table import ACCURACIES

TEMPLATE = Path(__file__).with_name("page.html")
COLUMNS = ("learner", "ended as", "steps", "seconds", "accuracy, %", "restarts", "fall-backs", "received, B", "sent, B")


@dataclass(frozen=True)
class Shown:
    """A picture on the page."""

    title: str
    svg: Path  #: read when the page is written
    numbers: Path  #: CSV beside it


@dataclass(frozen=True)
class Page:
    """What stands on it, from top to bottom; what is empty is left out."""

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    graph: Optional[bytes] = None  #: PNG
    sheets: Sequence[Sheet] = ()
    said: Sequence[str] = ()  #: events, problems, where records end
    pictures: Sequence[Shown] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)  #: shown as they are, under a heading


def write(page: Page, path: Path) -> None:
    """The page as a file."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["cell"] = cell
    environment.filters["embedded"] = _embedded
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(environment.from_string(TEMPLATE.read_text("utf-8")).render(page=page), "utf-8")


def _embedded(content: "bytes | Path") -> str:
    """As the address of a picture; SVGs of matplotlib share names, and are kept apart by being pictures."""
    data, kind = (content, "png") if isinstance(content, bytes) else (content.read_bytes(), "svg+xml")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


# ---------------------------------------------------------------- what a run folder says besides records


def manifest(run: Path) -> dict[str, Any]:
    """`run.json`; {} where it can't be read: the records still can."""
    try:
        found = json.loads((run / "run.json").read_text())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def facts(content: Mapping[str, Any], state: str) -> dict[str, str]:
    """Seed, state, place, time and versions."""
    found = {"state": state, "seed": content.get("seed"), "host": content.get("host")}
    if isinstance(written := content.get("written"), (int, float)):
        found["as of"] = datetime.fromtimestamp(written, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    outcome = content.get("outcome") or {}
    if isinstance(seconds := outcome.get("seconds"), (int, float)):
        found["seconds in all"] = f"{seconds:,.1f}"
    found["Python"] = content.get("python")
    found |= content.get("versions") or {}
    found["commit"] = content.get("commit")
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


def summary(content: Mapping[str, Any]) -> list[Sheet]:
    """What each learner came to, of a run that has ended."""
    learners: Mapping[str, Mapping[str, Any]] = (content.get("outcome") or {}).get("learners") or {}
    rows = tuple(_row(name, one) for name, one in learners.items())
    return [Sheet("Learners", COLUMNS, rows)] if rows else []


def _row(name: str, one: Mapping[str, Any]) -> tuple[str | float, ...]:
    way: Mapping[str, int] = one.get("bytes") or {}
    received, sent = (sum(n for key, n in way.items() if key.startswith("received") is up) for up in (True, False))
    return (
        name,
        str(one.get("status", "")),
        *(_number(one.get(key)) for key in ("steps", "seconds")),
        100.0 * _accuracy(one.get("accuracies") or {}),
        *(_number(one.get(key)) for key in ("restarts", "fallbacks")),
        received,
        sent,
    )


def _accuracy(accuracies: Mapping[str, float]) -> float:
    return next((_number(accuracies[figure]) for figure in ACCURACIES if figure in accuracies), float("nan"))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else float("nan")


def said(content: Mapping[str, Any]) -> list[str]:
    """Problems and events of a run."""
    outcome = content.get("outcome") or {}
    return [str(line) for key in ("problems", "events") for line in outcome.get(key) or ()]
