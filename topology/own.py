"""Networks of the user's (`network: module:function`), built once in a process of its own to see what they are.

Their weights must be counted before anything starts; but the command line and the driver shall not load TensorFlow for
it, nor take a GPU, nor be ended by a fault in code that is not ours.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from learners.layout import Network, laid_out
from learners.options import Topology
from topology.findings import Unfit
from topology.workers import Example

LIMIT = timedelta(minutes=5)
"""How long a function may take: it may load weights from a disk."""
CHILD = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); from actors.keras_model import answer; answer(*sys.argv[1:])"
)
"""Without the working directory in front, where a foreign `actors` may lie: its search path is that of this process."""


def networks(
    topology: Topology, example: Example, classes: int, folder: Path, tell: Callable[[str], None] = lambda line: None
) -> dict[str, Network]:
    """The user's networks, by learner.

    Args:
        example, classes: of the data set: shape of an example, number of classes.
        folder: of the run file.
        tell: gets a line for each that is built.

    Raises:
        Unfit: a function is missing or fails, or what it returns is no model for this data.
    """
    places = {name: learner.network for name, learner in topology.workers.items() if learner.has_own_network}
    built: dict[str, Network | str] = {}
    for place in dict.fromkeys(places.values()):
        tell(f"building {place} in another process, to count its weights")
        built[place] = _built(place, example, classes, folder)
    if wrong := [
        (f"learners.{name}.network", str(built[p])) for name, p in places.items() if isinstance(built[p], str)
    ]:
        raise Unfit(wrong)
    return {name: made for name, place in places.items() if isinstance(made := built[place], Network)}


def _built(place: str, example: Example, classes: int, folder: Path) -> Network | str:
    """The network, or what is wrong with it."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3")}
    with tempfile.TemporaryDirectory() as place_of_answer:
        answer = Path(place_of_answer, "answer.json")
        given = [place, json.dumps(example), str(classes), str(folder.absolute()), str(answer)]
        try:
            done = subprocess.run(
                [sys.executable, "-c", CHILD, *given],
                env={**os.environ, **quiet, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=LIMIT.total_seconds(),
            )
        except subprocess.TimeoutExpired:
            return f"{place}: it was not built within {LIMIT.total_seconds():g} s; call it by itself to see why"
        if not answer.exists():
            last = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            return f"{place}: its process ended with status {done.returncode}: {last}; call it by itself to see why"
        found = json.loads(answer.read_text())
    if fault := found.get("fault"):
        return str(fault)
    return Network(place, tuple(example), classes, laid_out([(n, i, k, tuple(s)) for n, i, k, s in found["tensors"]]))
