"""What every benchmark prints: its figures with the machine and the versions that they were made on."""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

README = Path(__file__).with_name("README.md")
PACKAGES = ("machworks", "ray", "tensorflow", "numba", "numpy")


@dataclass(frozen=True)
class Measured:
    """Figures that are better read as other tables and pictures than as a list."""

    figures: Mapping[str, float]
    body: str  #: Markdown that takes the place of the list in the README
    place: str = ""  #: the name in the README's marks; that of the benchmark where it is empty


Measure = Callable[[argparse.Namespace], Mapping[str, float] | Measured]


def main(measure: Measure, parser: argparse.ArgumentParser) -> None:
    """Measure and print: one JSON object with --json, else a line per figure, or the measured body."""
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--readme", action="store_true", help="also put the figures into benchmarks/README.md")
    arguments = parser.parse_args()
    found = measure(arguments)
    found = found if isinstance(found, Measured) else Measured(found, "")
    report = {"figures": dict(found.figures), "machine": machine()}
    report["versions"] = {name: version(name) for name in PACKAGES}
    if arguments.readme:
        place = found.place or str(parser.prog).split()[-1]
        README.write_text(written(README.read_text(), place, report, found.body))
    if arguments.json:
        print(json.dumps(report))
        return
    print(found.body or "\n".join(f"{name:<32} {value:.6g}" for name, value in found.figures.items()))
    print(f"on {report['machine']['processor']}, {report['machine']['cores']} cores; " + ", ".join(
        f"{name} {number}" for name, number in report["versions"].items()
    ))  # fmt: skip


def written(readme: str, name: str, report: Mapping[str, Any], body: str = "") -> str:
    """The README with what stands between this benchmark's two marks replaced: by `body`, or the report's figures."""
    begin, end = f"<!-- {name}: figures -->\n", f"<!-- {name}: end -->"
    before, mark, rest = readme.partition(begin)
    _, other, after = rest.partition(end)
    if not (mark and other):
        raise ValueError(f"{README}: the lines {begin.strip()!r} and {end!r} are wanted around the figures of {name}")
    figures = [(f"`{figure}`", f"{value:.4g}") for figure, value in report["figures"].items()]
    body = body or table(("figure", "value"), figures)
    on = report["machine"]
    parts = [time.strftime("%Y-%m-%d"), on["processor"], f"{on['cores']} cores", f"{on['memory_gib']} GiB"]
    parts += [f"Python {on['python']}", *(f"{package} {number}" for package, number in report["versions"].items())]
    made = ", ".join(parts)
    return f"{before}{begin}{body}\n{made}\n{end}{after}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    rule = "|" + "---|" * len(head) + "\n"
    first, *rest = (f"| {' | '.join(line)} |\n" for line in (head, *rows))
    return "".join((first, rule, *rest))


def machine() -> dict[str, object]:
    """Processor, cores that we may use, memory, kernel."""
    import os

    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def say(line: str) -> None:
    """Progress, out of the way of the figures."""
    print(line, file=sys.stderr, flush=True)
