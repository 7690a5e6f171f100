"""Three learners on Fashion-MNIST, each an actor at its own pace: accuracy and how soon it comes.

Runs `topology/chains/fashion.yaml` as a user would, once per seed. Figures (means over the seeds unless named):
    top_child, top_synthetic          test accuracy of the last learner after its last step
    lowest_child, lowest_synthetic    the worst seed
    steps_to_80                       first evaluation (every 50 steps, 2,000 rows) of the last learner at 80 %
    bottom, middle_child              the learners below it
    fallback_share                    steps of the last learner without an answer
    seconds                           from its first step to its last
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

from benchmarks import _report

CHAIN = Path("topology/chains/fashion.yaml")


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """The figures above."""
    runs = [_run(seed) for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)]
    accuracy = {
        key: [run["learners"][n]["accuracies"][f"test/accuracy/{way}"] for run in runs] for key, n, way in _WHICH
    }
    top = [run["learners"]["top"] for run in runs]
    return {
        **{key: mean(values) for key, values in accuracy.items()},
        "lowest_child": min(accuracy["top_child"]),
        "lowest_synthetic": min(accuracy["top_synthetic"]),
        "steps_to_80": mean(run["steps_to_80"] for run in runs),
        "fallback_share": mean(reached["fallbacks"] / reached["steps"] for reached in top),
        "seconds": mean(reached["seconds"] for reached in top),
        "seeds": arguments.seeds,
    }


_WHICH = (
    ("top_child", "top", "child"),
    ("top_synthetic", "top", "synthetic"),
    ("middle_child", "middle", "child"),
    ("bottom", "bottom", "child"),
)


def _run(seed: int) -> Mapping:
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"--set={key}" for key in (f"seed={seed}", "record.every=50", "record.rows=2000")]
        command = [sys.executable, "-m", "topology.cli", "run", str(CHAIN), "--json", f"--runs={folder}", *settings]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        outcome = json.loads(done.stdout.splitlines()[-1])
        records = Path(outcome["run"], "records", "top.jsonl").read_text().splitlines()
    found = [
        record["step"]
        for record in map(json.loads, records)
        if record.get("kind") == "evaluate" and record["values"].get("validation/accuracy/child", 0.0) >= 0.8
    ]
    outcome["steps_to_80"] = min(found)
    _report.say(f"seed {seed}: {outcome['learners']['top']['accuracies']}, 80 % at step {min(found)}")
    return outcome


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="machworks bench fashion", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=7)
    return parser


if __name__ == "__main__":
    _report.main(measure, _parser())
