"""Records as arrays: every whole record counts, wherever a kill has cut, and what repeats counts once."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.recorder import Parcel, Recorder
from analysis import table
from analysis.table import Series, sampled, speed, thinned
from learners.records import Record


def record(step, learner="top", time=None, kind="train", incarnation=0, **values):
    return Record(
        learner, incarnation, step, 100.0 + step if time is None else time, kind, values or {"loss": 1.0 / step}
    )


def written(folder, *records, learner="top", cut=b""):
    (folder / "records").mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text("{}")
    content = b"".join(msgspec.json.encode(one) + b"\n" for one in records) + cut
    (folder / f"records/{learner}.jsonl").write_bytes(content)
    return folder


def test_what_the_recorder_wrote_is_read_by_learner_figure_and_step(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    recorder = Recorder(str(tmp_path))
    for learner in ("top", "bottom"):
        for n in range(3):
            found = tuple(record(step, learner) for step in range(5 * n + 1, 5 * n + 6))
            recorder.append(Parcel(learner, 0, n, found, (0,), ("line\n",)))
    recorder.append(Parcel("top", 0, 3, (record(15, kind="final", **{"test/accuracy": 0.5}),), (), ()))
    recorder.close()
    run = table.read(tmp_path)
    assert [learner.name for learner in run.learners] == ["bottom", "top"]
    bottom, top = run.learners
    assert list(top.figures["loss"].steps) == list(range(1, 16)) and top.step == bottom.step == 15
    np.testing.assert_allclose(top.figures["loss"].values, 1.0 / np.arange(1, 16))
    assert top.last("test/accuracy") == 0.5 and np.isnan(bottom.last("test/accuracy"))
    assert top.under("test").keys() == {"accuracy"}
    assert run.ends == ("bottom: records end at step 15", "top: records end at step 15")


def test_a_cut_at_any_byte_leaves_every_whole_record_and_says_where_it_ends(tmp_path):
    records = [record(step) for step in range(1, 4)]
    whole = (written(tmp_path, *records) / "records/top.jsonl").read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(ends[0], len(whole) + 1):
        (tmp_path / "records/top.jsonl").write_bytes(whole[:cut])
        run, complete = table.read(tmp_path), sum(end <= cut for end in ends)
        assert list(run.learners[0].figures["loss"].steps) == list(range(1, complete + 1))
        left_out = cut - ends[complete - 1]
        (end,) = run.ends
        assert f"step {complete}" in end and (f" {left_out} bytes" in end) == (left_out > 0)


def test_of_a_step_that_is_there_twice_the_newest_counts(tmp_path):
    again = record(2, incarnation=1, loss=9.0)
    run = table.read(written(tmp_path, record(1), record(2), record(3), again))
    series = run.learners[0].figures["loss"]
    assert list(series.steps) == [1, 2, 3] and series.values[1] == 9.0


def test_a_value_that_is_not_finite_is_nan_and_its_neighbours_stay(tmp_path):
    run = table.read(written(tmp_path, record(1), record(2, loss=float("inf")), record(3)))
    assert [np.isnan(value) for value in run.learners[0].figures["loss"].values] == [False, True, False]


def test_what_is_no_run_or_has_nothing_yet_is_refused_in_words(tmp_path):
    with pytest.raises(ValueError, match="not a run folder"):
        table.read(tmp_path)
    with pytest.raises(ValueError, match="nothing is recorded: no learner"):
        table.read(written(tmp_path))


def test_what_is_evaluated_later_does_not_move_the_moment_of_its_step(tmp_path):
    late = record(2, time=190.0, kind="final", **{"test/accuracy": 0.5})
    (learner,) = table.read(written(tmp_path, record(1), record(2), record(3), late)).learners
    assert list(learner.times.values) == [101.0, 102.0, 103.0] and learner.last("test/accuracy") == 0.5


@given(st.lists(st.floats(0.001, 0.4), min_size=2, max_size=200), st.integers(1, 40))
def test_speed_counts_every_step_once_over_half_a_second_or_more(gaps, points):
    times = Series(np.arange(1.0, len(gaps) + 1), np.cumsum(gaps))
    found = speed(times, points, 0.5)
    assert 1 <= len(found.steps) <= points + 1 and (np.diff(found.steps) > 0).all()
    ends = np.array([1.0])  # each point is in the middle of its steps
    for middle in found.steps:
        ends = np.append(ends, 2 * middle - ends[-1])
    passed = np.diff(ends) / found.values
    whole = times.values[-1] - times.values[0]
    assert passed.sum() <= whole * (1 + 1e-9) and (len(passed) == 1 or passed.min() >= 0.5 - 1e-9)
    np.testing.assert_allclose(np.cumsum(passed), times.values[ends[1:].astype(int) - 1] - times.values[0])


def test_speed_of_what_has_no_length_is_not_known():
    assert not len(speed(Series(np.array([1.0]), np.array([5.0])), 10, 0.5).steps)
    assert not len(speed(Series(np.array([1.0, 2.0]), np.array([5.0, 5.0])), 10, 0.5).steps)


values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)


@given(values, st.integers(1, 40))
def test_thinning_keeps_the_mean_and_the_order(numbers, points):
    series = Series(np.arange(1.0, len(numbers) + 1), np.array(numbers))
    found = thinned(series, points)
    assert 1 <= len(found.steps) <= points or len(numbers) <= points
    assert np.all(np.diff(found.steps) > 0)
    each = -(-len(numbers) // points)
    weights = [min(each, len(numbers) - i) for i in range(0, len(numbers), each)]
    assert np.average(found.values, weights=weights) == pytest.approx(np.mean(numbers), abs=1e-3)


def test_thinning_passes_over_what_is_not_known():
    series = Series(np.arange(4.0), np.array([1.0, np.nan, np.nan, np.nan]))
    np.testing.assert_array_equal(thinned(series, 2).values, [1.0, np.nan])


@given(values, st.integers(1, 40))
def test_a_sample_ends_where_the_series_ends_and_has_nothing_of_its_own(numbers, points):
    series = Series(np.arange(float(len(numbers))), np.array(numbers))
    found = sampled(series, points)
    assert len(found.steps) <= points + 1 and found.steps[-1] == len(numbers) - 1 and np.all(np.diff(found.steps) > 0)
    assert all(series.values[int(step)] == value for step, value in zip(*found, strict=True))
