"""Checkpoint sets: what a kill at any moment leaves, and which set is then taken."""

import shutil

import numpy as np
import pytest

from actors import checkpoint

STATE = {
    "encoder/0": np.arange(6, dtype=np.float32).reshape(2, 3),
    "counts/target": np.array(7),
    "empty": np.zeros((0, 3)),
}


def filled(folder, number, learners=("bottom", "top")):
    for learner in learners:
        checkpoint.write(folder, number, learner, checkpoint.pack(STATE, {"learner": learner, "step": number}))
    return checkpoint.complete(folder, number, dict.fromkeys(learners, number * 10))


def test_a_state_comes_back_bit_for_bit():
    state, about = checkpoint.unpack(checkpoint.pack(STATE, {"unused": [3, 4], "step": 7}))
    assert about == {"unused": [3, 4], "step": 7}
    assert state.keys() == STATE.keys()
    for name, array in STATE.items():
        assert state[name].dtype == array.dtype and state[name].shape == array.shape
        assert np.array_equal(state[name], array)


def test_the_newest_complete_set_is_taken_and_a_partial_one_is_named(tmp_path):
    filled(tmp_path, 0)
    filled(tmp_path, 1)
    checkpoint.write(tmp_path, 2, "top", b"half")
    found, ignored = checkpoint.newest(tmp_path)
    assert found.number == 1 and found.steps == {"bottom": 10, "top": 10}
    assert ignored == ["checkpoint set 2 is ignored: it has no manifest: the run ended while it was saved"]
    assert checkpoint.last_number(tmp_path) == 2  # a number is never used again


def test_nothing_there_is_not_an_error(tmp_path):
    assert checkpoint.newest(tmp_path / "nowhere") == (None, [])
    assert checkpoint.last_number(tmp_path) == -1


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda place: (place / "top.safetensors").unlink(), "top.safetensors is missing"),
        (lambda place: (place / "top.safetensors").write_bytes(b"x"), "not what the manifest says"),
        (lambda place: (place / "manifest.json").write_text("{"), "not JSON"),
        (lambda place: (place / "manifest.json").unlink(), "no manifest"),
    ],
)
def test_a_harmed_set_is_passed_over_for_the_one_before(tmp_path, harm, words):
    filled(tmp_path, 0)
    harm(filled(tmp_path, 1).folder)
    found, (reason,) = checkpoint.newest(tmp_path)
    assert found.number == 0 and words in reason and "set 1" in reason


def test_a_flipped_bit_is_found(tmp_path):
    place = filled(tmp_path, 0).folder / "top.safetensors"
    content = bytearray(place.read_bytes())
    content[-1] ^= 1
    place.write_bytes(content)
    assert checkpoint.newest(tmp_path)[0] is None


def test_any_prefix_of_the_writes_leaves_a_complete_set(tmp_path):
    """A kill between any two operations on disk: replayed by taking files away in reverse order of writing."""
    filled(tmp_path, 0)
    place = filled(tmp_path, 1).folder
    for last in ("manifest.json", "top.safetensors", "bottom.safetensors"):
        content = (place / last).read_bytes()
        (place / last).unlink()
        (place / f"{last}.partial").write_bytes(content[: len(content) // 2])
        assert checkpoint.newest(tmp_path)[0].number == 0
        (place / f"{last}.partial").unlink()
    shutil.rmtree(place)
    assert checkpoint.newest(tmp_path) == (checkpoint.newest(tmp_path)[0], [])


def test_old_sets_go_and_the_newest_stay(tmp_path):
    for number in (0, 2, 4):
        filled(tmp_path, number)
    checkpoint.write(tmp_path, 1, "top", b"partial")
    checkpoint.write(tmp_path, 5, "top", b"being written")
    checkpoint.prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002", "000004", "000005"]
