"""A worker alone: what a result counts, that it is kept, and that rates are chosen on rows apart."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import field

from benchmarks import _alone, _report, rbd_bytes, rbd_table
from benchmarks._alone import Setting, Top, train
from learners.layout import network
from learners.rbd.clocks import Name
from learners.rbd.defaults import filled
from learners.rbd.options import Basis, Exchange, Nes, Rbd, Sgd, Step
from learners.rbd.refusals import refusals

DIGITS = 1437  # training rows
WEIGHTS = 64 * 128 + 128 + 128 * 10 + 10
SGD = Sgd(update=Step(rate=0.2))
SIGNS = Rbd(basis=Basis(dimensions=250), exchange=Exchange(residual="local", every=1))


def setting(learner, epochs=1.0, **fields):
    return Setting(learner=learner, epochs=epochs, dataset="digits", **fields)


def test_a_run_learns_and_counts_what_it_sends():
    found = train(setting(SGD, 3.0))
    assert [epoch for epoch, _ in found.curve] == pytest.approx([0, 1, 2, 3], abs=0.02)
    assert found.steps == round(3 * DIGITS / 32) and found.payload == found.steps * (4 * WEIGHTS + 8)
    assert found.accuracy > 85 > 40 > 100 * found.curve[0][1]


def test_signs_cost_a_bit_each_and_an_exponent():
    found = train(setting(SIGNS))
    assert found.payload == found.steps * (1 + 32)


def test_a_run_is_its_settings():
    once, again, other = (train(setting(SIGNS, seed=seed)) for seed in (1, 1, 2))
    assert once.curve == again.curve != other.curve
    assert once.setting.key == again.setting.key != other.setting.key


def test_nes_counts_the_images_of_all_offspring():
    learner = Nes(basis=Basis(dimensions=4), exchange=Exchange(precision="float32"))
    assert train(setting(learner, 2.0)).steps == round(2 * DIGITS / (4 * 32))


def test_a_run_that_diverges_is_a_result():
    found = train(setting(Sgd(update=Step(rate=1e30, schedule="constant"))))
    assert "lower the rate" in found.diverged and found.accuracy == 0.0 and found.steps < DIGITS // 32


def test_rates_are_chosen_on_rows_that_are_not_trained_on():
    data = _alone._data("digits")
    (train_rows, validation), (everything, test) = (_alone._splits(data, apart) for apart in (True, False))
    rows = [{row.tobytes() for row in split.inputs} for split in (train_rows, validation, test)]
    assert len(train_rows) + len(validation) == len(everything) == DIGITS
    assert not (rows[0] & rows[1] or rows[1] & rows[2])


def test_a_result_is_kept_and_not_run_again(tmp_path, monkeypatch):
    wanted = [setting(SGD, 0.1), setting(SIGNS, 0.1)]
    found = _alone.results(wanted, tmp_path, processes=1)
    monkeypatch.setattr(_alone, "train", None)
    assert _alone.results(wanted[::-1], tmp_path, processes=2) == found[::-1]
    assert len(list(tmp_path.iterdir())) == 2


def test_an_option_that_is_added_later_renames_no_result_and_a_changed_default_takes_none(tmp_path):
    class Early(msgspec.Struct):
        rate: float
        steps: int = 5

    late = msgspec.defstruct("Early", [("rate", float), ("steps", int, 5), ("more", list, field(default_factory=list))])
    assert _alone._chosen(Early(2.0)) == _alone._chosen(late(2.0)) != _alone._chosen(late(2.0, more=[1]))
    wanted, other = setting(SGD, 0.1), setting(SGD, 0.2)
    _alone.results([wanted], tmp_path, processes=1)
    # as if what `other` leaves out had meant `wanted`
    _alone._path(tmp_path, wanted).rename(_alone._path(tmp_path, other))
    assert not _alone._is_kept(tmp_path, other)
    assert _alone.results([other], tmp_path, processes=1)[0].setting == other


def test_two_processes_find_what_one_finds(tmp_path):
    wanted = [setting(SIGNS, 0.1, seed=seed) for seed in (3, 4)]
    found = _alone.results(wanted, tmp_path, processes=2)
    assert [run.curve for run in found] == [train(one).curve for one in wanted]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_top_keeps_the_largest_with_one_power_of_two(count, seed):
    vector = np.random.default_rng(seed).standard_normal(1000).astype(np.float32)
    top = Top(1000, count=count)
    (found,) = top.project(Name(0, 0, 0), vector)
    places = np.flatnonzero(found)
    assert set(places) == set(np.argsort(np.abs(vector))[-count:])
    assert (np.sign(found[places]) == np.sign(vector[places])).all()
    (size,) = set(np.abs(found[places]))
    assert np.log2(size) % 1 == 0 and 2**-0.51 < size / np.abs(vector[places]).mean() < 2**0.51
    assert top.nbytes == 1 + (11 * count + 7) // 8  # 10 bits say which of 1,000


def test_top_is_what_is_sent():
    found = train(setting(rbd_bytes.top(20, Step(rate=0.1, weight=2.5))[0], 3.0, top=20))
    assert found.payload == found.steps * Top(WEIGHTS, count=20).nbytes
    assert found.accuracy > 60


def learners():
    for name in rbd_table.EPOCHS:
        yield from rbd_table.table(name).values()
        yield from (learner for several in rbd_table.candidates(name).values() for learner in several)
    for points in (*rbd_bytes.series().values(), *rbd_bytes.candidates().values()):
        yield from (learner for learner, top in points if not top)


def test_no_row_or_point_contradicts_itself():
    for learner in learners():
        net = network(learner.network, (28, 28), 10)
        assert refusals(filled(learner, net.size), net.tensors) == []


def test_what_is_chosen_is_among_what_was_tried():
    for name in rbd_table.EPOCHS:
        rows, tried = rbd_table.table(name), rbd_table.candidates(name)
        assert all(rows[row] in tried[row] for row in ("tuned", "residual", "nes"))


def test_the_readme_takes_a_body_in_place_of_the_figures():
    readme = "a\n<!-- x: figures -->\nold\n<!-- x: end -->\nb\n"
    versions = {"numpy": "2"}
    machine = {"processor": "p", "cores": 2, "memory_gib": 8, "python": "3"}
    report = {"figures": {"f": 1.0}, "versions": versions, "machine": machine}
    with_table = _report.written(readme, "x", report)
    assert "| figure | value |\n|---|---|\n| `f` | 1 |\n" in with_table and "old" not in with_table
    with_body = _report.written(with_table, "x", report, "| other |\n")
    assert "| other |\n" in with_body and "`f`" not in with_body and with_body.startswith("a\n")
