"""What every benchmark prints: its figures with the machine and the versions that they were made on."""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

README = Path(__file__).with_name("README.md")
PACKAGES = ("machworks", "ray", "tensorflow", "numba", "numpy")


def main(measure: Callable[[argparse.Namespace], Mapping[str, float]], parser: argparse.ArgumentParser) -> None:
    """Measure and print: one JSON object with --json, else a line per figure."""
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--readme", action="store_true", help="also put the figures into benchmarks/README.md")
    arguments = parser.parse_args()
    figures = dict(measure(arguments))
    report = {"figures": figures, "machine": machine(), "versions": {name: version(name) for name in PACKAGES}}
    if arguments.readme:
        README.write_text(written(README.read_text(), str(parser.prog).split()[-1], report))
    if arguments.json:
        print(json.dumps(report))
        return
    for name, value in figures.items():
        print(f"{name:<32} {value:.6g}")
    print(f"on {report['machine']['processor']}, {report['machine']['cores']} cores; " + ", ".join(
        f"{name} {number}" for name, number in report["versions"].items()
    ))  # fmt: skip


def written(readme: str, name: str, report: Mapping[str, Any]) -> str:
    """The README with this benchmark's figures, between its two marks, replaced by those of the report."""
    begin, end = f"<!-- {name}: figures -->\n", f"<!-- {name}: end -->"
    before, mark, rest = readme.partition(begin)
    _, other, after = rest.partition(end)
    if not (mark and other):
        raise ValueError(f"{README}: the lines {begin.strip()!r} and {end!r} are wanted around the figures of {name}")
    rows = "".join(f"| `{figure}` | {value:.4g} |\n" for figure, value in report["figures"].items())
    on = report["machine"]
    parts = [time.strftime("%Y-%m-%d"), on["processor"], f"{on['cores']} cores", f"{on['memory_gib']} GiB"]
    parts += [f"Python {on['python']}", *(f"{package} {number}" for package, number in report["versions"].items())]
    made = ", ".join(parts)
    return f"{before}{begin}| figure | value |\n|---|---|\n{rows}\n{made}\n{end}{after}"


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
