"""Evaluations that come in pieces, and records that survive the wire."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.records import Evaluation, Record, Seal, lines

figures = st.floats(-1e6, 1e6)


@given(st.lists(figures, min_size=1, max_size=40), st.data())
def test_pieces_of_any_size_give_the_mean_over_all_rows(values, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, len(values) - 1)))) if len(values) > 1 else []
    pieces = [piece for piece in np.split(np.array(values), cuts) if len(piece)]
    evaluation = Evaluation(len(pieces))
    for piece in data.draw(st.permutations(pieces)):
        assert not evaluation.complete
        evaluation.add(len(piece), {"loss/child": piece.mean()})
    assert evaluation.complete
    assert evaluation.means == {"loss/child": pytest.approx(np.mean(values), rel=1e-9, abs=1e-6)}


@pytest.mark.parametrize("lacking", range(3))
def test_a_figure_that_one_piece_lacks_is_lacking_as_a_whole(lacking):
    """A mean over the rows that a child happened to answer would be compared with one over all rows."""
    evaluation = Evaluation(3)
    for piece in range(3):
        evaluation.add(10, {"loss/synthetic": float(piece)} | ({} if piece == lacking else {"loss/child": 0.0}))
    assert evaluation.means == {"loss/synthetic": 1.0}


def test_nothing_yet_is_no_figure():
    evaluation = Evaluation(1)
    assert not evaluation.complete and evaluation.means == {}


@given(st.dictionaries(st.text(max_size=5), figures, max_size=3), st.integers(0, 2**40))
def test_a_record_is_the_same_after_the_wire(values, step):
    record = Record("top", 1, step, 1.5e9, "train", values)
    assert msgspec.json.decode(msgspec.json.encode(record), type=Record) == record


@given(st.lists(st.sampled_from([1.0, math.nan, math.inf, -math.inf]), min_size=1, max_size=9))
def test_a_value_that_is_not_finite_hides_no_record_after_it(values):
    """It is null in JSON; a reader that gave up there, as the recorder's successor would, lost all that followed."""
    written = [Record("top", 0, step, 0.0, "train", {"loss": value}) for step, value in enumerate(values)]
    content = b"".join(msgspec.json.encode(one) + b"\n" for one in [*written, Seal(0, "top", 0)])
    *read, seal = (one for _, one in lines(content))
    assert isinstance(seal, Seal) and [one.step for one in read] == list(range(len(values)))
    np.testing.assert_array_equal(
        [one.values["loss"] for one in read], [value if math.isfinite(value) else math.nan for value in values]
    )
