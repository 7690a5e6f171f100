"""The keeper: what it writes, what it gives up, and what a kill at any moment leaves."""

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import checkpoint, keeper
from actors.keeper import Keeper, Upload

KILLS = int(os.environ.get("MACHWORKS_KILLS", "1"))
CHECKOUT = Path(__file__).parents[2]


def content(learner, step):
    return checkpoint.pack({"w": np.full(40, step, np.float32)}, {"learner": learner, "step": step})


def send(one, number, learner, step, pieces=3):
    whole = content(learner, step)
    size = -(-len(whole) // pieces)
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    for index, part in enumerate(parts):
        one.piece(number, learner, step, index, part, index == len(parts) - 1)


def test_a_set_is_complete_with_the_last_learner_and_not_before(tmp_path):
    one = Keeper(str(tmp_path), 3)
    one.begin(0, ("bottom", "top"))
    send(one, 0, "top", 7)
    assert one.look().newest == -1 and one.look().open == (0,) and checkpoint.newest(tmp_path)[0] is None
    send(one, 0, "bottom", 9)
    assert one.look().newest == 0 and one.look().open == () and one.look().steps == {"bottom": 9, "top": 7}
    found, ignored = checkpoint.newest(tmp_path)
    assert found.steps == {"bottom": 9, "top": 7} and ignored == []
    assert checkpoint.read(found, "top") == content("top", 7)


def test_who_cannot_be_asked_is_in_the_set_as_in_the_one_before(tmp_path):
    """Case 8: a learner that dies again while it loads does not come back at step 0."""
    one = Keeper(str(tmp_path), 1)
    one.begin(0, ("bottom", "top"))
    send(one, 0, "bottom", 1)
    send(one, 0, "top", 2)
    for number in (1, 2):
        one.begin(number, ("bottom",), ("top", "never"))
        send(one, number, "bottom", 10 * number)
    found, _ = checkpoint.newest(tmp_path)
    assert found.number == 2 and found.steps == {"bottom": 20, "top": 2}
    assert checkpoint.read(found, "top") == content("top", 2)


def test_a_learner_that_dies_while_it_is_saved_spoils_that_set_only(tmp_path):
    one = Keeper(str(tmp_path), 3)
    one.begin(0, ("bottom", "top"))
    send(one, 0, "bottom", 5)
    one.without("top")
    send(one, 0, "top", 5)  # its last calls arrive after its death is known
    assert one.look().newest == -1 and one.look().open == () and not list(tmp_path.glob("*"))
    one.begin(1, ("bottom", "top"))
    send(one, 1, "bottom", 6)
    send(one, 1, "top", 6)
    assert one.look().newest == 1


@given(st.permutations([("begin", ""), ("send", "bottom"), ("send", "top")]))
def test_a_learner_may_be_faster_than_the_call_that_begins_the_set(tmp_path_factory, order):
    folder = tmp_path_factory.mktemp("sets")
    one = Keeper(str(folder), 3)
    for what, learner in order:
        if what == "begin":
            one.begin(4, ("bottom", "top"))
        else:
            send(one, 4, learner, 3)
    assert one.look().newest == 4 and checkpoint.newest(folder)[0].steps == {"bottom": 3, "top": 3}


@pytest.mark.parametrize("pieces_before", [0, 1, 2, 3])
def test_a_keeper_that_was_started_again_makes_no_set_of_halves(tmp_path, pieces_before):
    whole = content("top", 3)
    parts = [whole[:100], whole[100:200], whole[200:]]
    first, second = Keeper(str(tmp_path), 3), Keeper(str(tmp_path), 3)
    first.begin(0, ("top",))
    for index, part in enumerate(parts):
        (first if index < pieces_before else second).piece(0, "top", 3, index, part, index == 2)
    newest, _ = checkpoint.newest(tmp_path)
    assert (newest is not None) == (pieces_before == 3)
    again = Keeper(str(tmp_path), 3)
    assert again.look().newest == (0 if pieces_before == 3 else -1) and again.look().begun == -1
    again.begin(1, ("top",))
    send(again, 1, "top", 4)
    assert checkpoint.newest(tmp_path)[0].steps == {"top": 4}


@pytest.fixture
def narrow():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 10, 150])
def test_a_disk_that_refuses_is_named_and_the_set_before_counts(tmp_path, narrow, room):
    one = Keeper(str(tmp_path), 3)
    one.begin(0, ("top",))
    send(one, 0, "top", 1)
    one.begin(1, ("top",))
    narrow(room)
    send(one, 1, "top", 2)
    look = one.look()
    assert look.newest == 0 and look.open == () and "checkpoint set 1: OSError" in look.fault
    assert "File too large" in look.fault
    narrow(resource.RLIM_INFINITY)
    assert checkpoint.newest(tmp_path)[0].steps == {"top": 1}
    one.begin(2, ("top",))
    send(one, 2, "top", 3)
    assert one.look().newest == 2 and one.look().fault == ""


class Sent:
    """Stands for the keeper's handle."""

    def __init__(self):
        self.learners, self.done = [], threading.Event()
        self.piece = SimpleNamespace(remote=self._piece)

    def _piece(self, number, learner, step, index, content, last):
        self.learners.append((number, step))
        self.done.set()


def test_a_state_that_is_not_finite_is_not_sent(monkeypatch):
    """Case 28: the last good checkpoint survives."""
    monkeypatch.setattr(keeper.ray, "get", lambda *_, **__: None)
    sent, said = Sent(), []
    log = SimpleNamespace(error=lambda text, *values: said.append(text.format(*values)))
    upload = Upload("top", sent, 1e9, log)
    upload.put(3, 50, {"w": np.array([1.0, np.nan])}, {})
    upload.put(4, 60, {"w": np.array([1.0, 2.0])}, {})
    assert sent.done.wait(20) and sent.learners == [(4, 60)]
    assert said == ["the state at step 50 is not finite: checkpoint set 3 does not get it"]


WRITER = """
import sys
from actors.keeper import Keeper
import numpy as np
from actors import checkpoint
one = Keeper(sys.argv[1], 2)
first = max(one.look().newest, checkpoint.last_number(one._folder)) + 1
for number in range(first, first + 10**6):
    one.begin(number, ("bottom", "top"))
    for learner in ("bottom", "top"):
        whole = checkpoint.pack({"w": np.full(50_000, number, np.float32)}, {"step": number})
        for index in range(4):
            part = whole[index * 60_000 : (index + 1) * 60_000]
            one.piece(number, learner, number, index, part, index == 3)
    print(one.look().newest, flush=True)
"""


def test_killed_at_random_moments_of_many_saves_the_newest_complete_set_is_found(tmp_path):
    """Case 30. What was said to be complete is; never a set of halves, never an older one."""
    moments = np.random.default_rng(KILLS)
    for _ in range(2 + 3 * KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(moments.integers(1, 12)):
            said = int(writer.stdout.readline())
        pause = threading.Event()
        pause.wait(float(moments.uniform(0, 0.02)))  # a moment within a save
        writer.send_signal(signal.SIGKILL)
        writer.wait(20)
        said = int((writer.stdout.read().split() or [said])[-1])
        writer.stdout.close()
        found, ignored = checkpoint.newest(tmp_path)
        assert found.number in (said, said + 1) and set(found.steps.values()) == {found.number}
        assert len(ignored) <= 1
        for learner in ("bottom", "top"):
            state, _ = checkpoint.unpack(checkpoint.read(found, learner))
            assert np.array_equal(state["w"], np.full(50_000, found.number, np.float32))
