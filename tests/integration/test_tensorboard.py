"""A run that goes on, looked at with TensorBoard and `status`, and then interrupted."""

import json
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from actors.recorder import LAYOUT

pytestmark = pytest.mark.timeout(600)
LEARNERS = ("bottom", "middle", "top")
TAG = "train/learning_rate"


def ask(port, path, **query):
    """What TensorBoard's HTTP interface answers; None while it does not."""
    page = f"http://127.0.0.1:{port}/data/plugin/{path}?{urlencode(query)}"
    with suppress(OSError), urlopen(page, timeout=5) as answer:
        return json.load(answer)
    return None


def last_step(port, learner):
    points = ask(port, "scalars/scalars", run=learner, tag=TAG)
    return points[-1][1] if points else 0


def test_curves_move_while_a_run_goes_on_and_an_interrupt_leaves_it_whole(
    machworks, chain, tmp_path, eventually, records, leftovers
):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run = machworks("run", chain, "--json", "--set", "defaults.steps=1000000")
    run.says("learner top")
    board = machworks("tensorboard", "--port", port)  # the newest run

    shown = eventually(lambda: (tags := ask(port, "scalars/tags")) and set(tags) >= set(LEARNERS) and tags, 90)
    for learner in LEARNERS:
        assert (
            TAG in shown[learner] and "exchange/queued" in shown[learner] and "speed/steps_per_second" in shown[learner]
        )
        first = eventually(lambda name=learner: last_step(port, name), 30)
        eventually(lambda name=learner, before=first: last_step(port, name) > before, 30)

    layout = eventually(lambda: ask(port, "custom_scalars/layout"), 30)
    titles = {chart["title"] for category in layout["category"] for chart in category["chart"]}
    assert titles == set(LAYOUT["Machworks"]) and any("child against synthetic" in title for title in titles)
    assert any("fall-backs" in title for title in titles) and any("bytes" in title for title in titles)

    status = machworks("status", "--json")
    assert status.status() == 0
    found = status.json
    assert found["state"] == "running" and set(found["learners"]) == set(LEARNERS)
    assert all(figures["step"] > 0 for figures in found["learners"].values())

    began = time.monotonic()
    run.signal(signal.SIGINT)
    assert run.status(20) == 130 and time.monotonic() - began < 10, run.err
    assert leftovers(run, within=10) == {}
    assert run.json["status"] == 130 and "Traceback" not in run.err
    for learner, reached in run.json["learners"].items():
        steps = [record["step"] for record in records(run.json["run"], learner) if record["kind"] == "train"]
        assert steps == list(range(1, reached["steps"] + 1)) and reached["status"] == "stopped"
        assert "validation/accuracy/child" in reached["accuracies"] or learner != "bottom"
    assert json.loads(Path(run.json["run"], "run.json").read_text())["state"] == "stopped"

    board.signal(signal.SIGINT)
    board.status(20)
    assert leftovers(board, within=10) == {}
