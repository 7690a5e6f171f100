"""The shell around a worker of random bases, as a plain class; recorder and keeper are fakes, Ray carries values."""

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from actors import checkpoint, device
from actors.common import Data, Diverged
from actors.rbd import RbdWorker, Setup
from learners.batches import Split
from learners.layout import Network, laid_out, network
from learners.options import Record
from topology import parse, workers

EXAMPLE, CLASSES = (4, 3), 3


def split(rows, seed):
    """Rows whose label can be learned: which third of the features is brightest."""
    values = np.random.default_rng(seed)
    labels = values.integers(0, CLASSES, rows).astype(np.int32)
    inputs = values.integers(0, 128, (rows, 12))
    inputs.reshape(rows, 3, 4)[np.arange(rows), labels] += 100
    return Split(inputs.astype(np.uint8), labels)


TRAIN, VALIDATION, TEST = split(90, 1), split(37, 2), split(23, 3)

#: every kind, and what a state must hold in each of its forms
KINDS = {
    "rbd": "kind: rbd, basis: {dimensions: 32}",
    "leaky": "kind: rbd, exchange: {residual: leaky}, basis: {dimensions: 16}",
    "by layer": "kind: rbd, basis: {dimensions: 16, compartments: layer}, update: {plain: {layer: 1}}",
    "never reset": "kind: rbd, exchange: {residual: none}, coordinates: {reset: 0, continuous: 5}, basis: {redraw: 4}",
    "learned": "kind: rbd, exchange: {residual: none}, basis: {dimensions: 16, learn: {every: 3}}",
    "past": "kind: rbd, exchange: {residual: none}, basis: {dimensions: 8, distribution: gradients}",
    "fpd": "kind: fpd, basis: {dimensions: 16, keep: true}",
    "nes": "kind: nes, basis: {dimensions: 12}",
    "sgd": "kind: sgd",
    "local": "kind: local, exchange: {every: 5}, update: {momentum: 0.9, nesterov: true}",
}


#: a network of the user's, with moments and masks beside its weights: 24 + 39 of them
MODULE = """
import keras
def model(example, classes):
    layers = keras.layers
    before = [keras.Input(example), layers.Flatten(), layers.BatchNormalization(momentum=0.9), layers.Dropout(0.1)]
    return keras.Sequential([*before, layers.Dense(classes)])
"""
OWN = {
    "rbd": "kind: rbd, network: machworks_user_net:model, basis: {dimensions: 32}",
    "fpd": "kind: fpd, network: machworks_user_net:model, basis: {dimensions: 16}",
    "nes": "kind: nes, network: machworks_user_net:model, basis: {dimensions: 12}",
    "sgd": "kind: sgd, network: machworks_user_net:model",
    "local": "kind: local, network: machworks_user_net:model, exchange: {every: 5}",
}
USERS = Network("", EXAMPLE, CLASSES, laid_out([("gain", 0, "rest", (24,)), ("kernel", 1, "kernel", (13, 3))]))


def filled(options, steps=40):
    learner = f"{{{options}, batch_size: 8, steps: {steps}}}"
    run = parse.loads(f"{{version: 1, name: x, data: {{name: x.npz}}, learners: {{me: {learner}}}}}")
    return workers.completed(run, EXAMPLE, CLASSES, {"me": USERS}).learners["me"]


class Recorder:
    """Stands for the recorder's handle."""

    def __init__(self, ray):
        self.records, self.lines = [], []
        self.append = SimpleNamespace(remote=lambda parcel: self._append(parcel) or ray.put(None))

    def _append(self, parcel):
        self.records += parcel.records
        self.lines += parcel.log

    def of(self, kind):
        return [record for record in self.records if record.kind == kind]


class Keeper:
    """Stands for the keeper's handle: files by set, once they are whole."""

    def __init__(self, ray):
        self.files, self.whole, self._parts = {}, threading.Event(), []
        self.piece = SimpleNamespace(remote=lambda *piece: self._piece(*piece) or ray.put(None))

    def _piece(self, number, learner, step, index, content, last):
        self._parts.append(content)
        if last:
            self.files[number] = (step, b"".join(self._parts))
            self._parts = []
            self.whole.set()


@pytest.fixture
def made(ray_here, monkeypatch, tmp_path):
    """Makes a worker, its recorder and its keeper. TensorFlow runs here already, so its threads stay as they are."""
    monkeypatch.setattr(device, "configure", lambda cpus: None)
    (tmp_path / "machworks_user_net.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "machworks_user_net", raising=False)

    def make(options, *, kind=RbdWorker, steps=40, state=None, every=20):
        kept = [(ray_here.put(part),) for part in (TRAIN, VALIDATION, TEST)]
        data = Data(*kept, False, 12, CLASSES, "|u1", EXAMPLE, 1 / 255, 0.0)
        recorder, keeper = Recorder(ray_here), Keeper(ray_here)
        setup = Setup(
            name="me",
            incarnation=0,
            seed=5,
            options=filled(options, steps),
            data=data,
            record=Record(every=every, rows=30),
            recorder=recorder,
            keeper=keeper,
            upload=1e9,
            beside=tmp_path,
            state=() if state is None else (ray_here.put(state),),
        )
        return kind(setup), recorder, keeper

    return make


class Stopped(RbdWorker):
    """Is told to stop in the middle."""

    def _round(self):
        super()._round()
        if self._worker.step >= 20:
            self.stop()


def state_of(worker, keeper):
    """What the keeper gets of a worker that has ended."""
    worker.save(0)
    assert keeper.whole.wait(10)
    step, content = keeper.files[0]
    assert step == worker._worker.step
    return content


TIMES = ("speed/", "seconds/", "records/")


def figures(records):
    return [
        (one.step, one.kind, {key: value for key, value in one.values.items() if not key.startswith(TIMES)})
        for one in records
    ]


# ---------------------------------------------------------------- to the end, and on from the middle


@pytest.mark.parametrize("options", [*KINDS.values(), *OWN.values()], ids=[*KINDS, *(f"own {name}" for name in OWN)])
def test_a_run_that_is_broken_off_and_resumed_comes_to_the_same_bits(made, options):
    whole, recorder, keeper = made(options)
    summary = whole.run()
    assert (summary.steps, summary.stopped) == (40, False)
    wanted, _ = checkpoint.unpack(state_of(whole, keeper))

    half, before, keeper = made(options, kind=Stopped)
    assert (half.run().steps, half._final) == (20, {})
    resumed, after, keeper = made(options, state=state_of(half, keeper))
    ended = resumed.run()
    found, about = checkpoint.unpack(state_of(resumed, keeper))
    assert found.keys() == wanted.keys() and all(np.array_equal(found[key], wanted[key]) for key in wanted)
    assert figures(before.records + after.records) == figures(recorder.records)
    assert (ended.final, ended.bytes, ended.counts) == (summary.final, summary.bytes, summary.counts)

    again, silent, _ = made(options, state=checkpoint.pack(found, about))
    assert again.run().final == summary.final and silent.records == []  # all was written before


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_updates_are_as_large_as_planned_and_so_is_the_state(made, options):
    worker, recorder, _ = made(options)
    worker.run()
    learner, shape = filled(options), network("dense", EXAMPLE, CLASSES)
    planned = workers.update("me", learner, shape)
    assert {record.values["update/bytes"] for record in recorder.of("train")} == {planned.size}
    steps = [record.step for record in recorder.of("train")]
    assert steps == list(range(planned.every, 41, planned.every))
    assert [r.values["bytes/updates"] for r in recorder.of("train")] == [
        planned.size * (i + 1) for i in range(len(steps))
    ]
    shared = worker._worker.shared
    held = [getattr(shared, name, None) for name in ("theta_0", "moved", "theta", "velocity")]
    held = held if planned.arithmetic == "float" else held[:2]
    arrays = [array for array in (*held, worker._worker.residual) if array is not None]
    rows = getattr(shared.directions, "rows", None)
    kept = 4 * shape.size * learner.basis.dimensions if "keep" in options else 0 if rows is None else rows.nbytes
    assert workers.memory(learner, shape) == sum(array.nbytes for array in arrays) + kept


def test_it_learns_and_writes_down_what_it_has_reached(made):
    worker, recorder, _ = made(KINDS["rbd"], steps=400, every=100)
    summary = worker.run()
    assert summary.final["test/accuracy"] > 0.9 and summary.final["validation/accuracy"] > 0.9
    assert [one.step for one in recorder.of("evaluate")] == [100, 200, 300]
    (final,) = recorder.of("final")
    assert final.values.items() >= summary.final.items()
    for name, part in (("validation", VALIDATION), ("test", TEST)):
        x = part.inputs.astype(np.float32) * np.float32(1 / 255)
        loss, accuracy = worker._model.evaluate(worker._worker.shared.theta, x, part.labels)
        assert (summary.final[f"{name}/loss"], summary.final[f"{name}/accuracy"]) == (loss, accuracy)
    names = {"loss", "accuracy", "gradient_norm", "learning_rate"}
    first = recorder.of("train")[0].values
    assert {f"train/{name}" for name in names} <= first.keys()
    assert {"update/norm", "update/correlation", "update/bytes", "update/coordinates"} <= first.keys()
    assert first["update/coordinates"] == 32 and first["update/coordinate_rms"] > 0
    assert 0 < first["update/correlation"] <= 1


def test_what_is_watched_is_in_the_records_that_are_plotted_and_in_no_other(made):
    """Every record would cost a fifth of a short round."""
    worker, recorder, _ = made(KINDS["fpd"], steps=40, every=100)  # plotted: every tenth step
    worker.run()
    watched = {"correlation/all", "correlation/dense_0/kernel", "moved/all", "coordinates/rms", "weights/dense_1/bias"}
    assert [r.step for r in recorder.of("train") if watched <= r.values.keys()] == [10, 20, 30, 40]
    assert [r.step for r in recorder.of("train") if watched & r.values.keys()] == [10, 20, 30, 40]
    assert all(r.values["update/compression"] > 1 for r in recorder.of("train"))


# ---------------------------------------------------------------- a network of the user's


def test_what_a_network_holds_beside_its_weights_is_trained_kept_and_evaluated_with(made):
    worker, recorder, keeper = made(OWN["rbd"], steps=400, every=100)
    begun = {key: value.copy() for key, value in worker._keras.save().items()}
    means, deviations = np.zeros(12), np.ones(12)
    assert any(np.array_equal(value, means) for value in begun.values())  # not moved by the round that compiles
    assert any(np.array_equal(value, deviations) for value in begun.values())
    assert worker.run().final["test/accuracy"] > 0.9
    state, _ = checkpoint.unpack(state_of(worker, keeper))
    kept = [state[key] for key in begun]
    mean = (TRAIN.inputs / 255).mean(0)
    assert any(value.shape == (12,) and np.allclose(value, mean, atol=0.1) and value.any() for value in kept)
    theta, x = worker._worker.shared.theta, TEST.inputs.astype(np.float32) * np.float32(1 / 255)
    (final,) = recorder.of("final")
    assert final.values["test/loss"] == worker._keras.evaluate(theta, x, TEST.labels)[0]
    assert len(theta) == USERS.size
    assert {"correlation/batch_normalization_0/gamma", "moved/dense_1/kernel"} <= recorder.of("train")[-1].values.keys()


def test_offspring_of_nes_leave_what_a_network_holds_as_it_began(made):
    worker, _, _ = made(OWN["nes"])
    begun = worker._keras.save()
    worker.run()
    assert all(np.array_equal(value, begun[key]) for key, value in worker._keras.save().items())


def test_a_round_that_is_passed_over_leaves_the_moments_finite(made, monkeypatch):
    worker, recorder, _ = made(OWN["sgd"].replace("sgd,", "sgd, update: {on_nan: skip},"), steps=3)
    batch, numbers = worker._batch, []

    def bad(number):
        numbers.append(number)
        x, labels = batch(number)
        return (np.full_like(x, np.nan) if number == 1 else x), labels

    monkeypatch.setattr(worker, "_batch", bad)
    worker.run()
    assert numbers == [0, 1, 2] and [r.values.get("update/skipped") for r in recorder.of("train")] == [None, 1.0, None]
    assert all(np.isfinite(value).all() for value in worker._keras.save().values())
    assert np.isfinite(worker._final["test/loss"])


def test_a_function_that_this_host_lacks_is_said_by_the_worker(made):
    with pytest.raises(
        ValueError, match="elsewhere_only:net: found No module named .*; correct the name or install it"
    ):
        made("kind: sgd, network: elsewhere_only:net")


# ---------------------------------------------------------------- saved, stopped, diverged


def test_a_state_is_of_between_two_rounds_and_sent_when_its_records_are_written(made):
    worker, _, keeper = made(KINDS["rbd"])
    worker.save(3)
    worker.run()
    assert keeper.whole.wait(10)
    step, content = keeper.files[3]
    state, about = checkpoint.unpack(content)
    assert step == 10 and state["counts"].tolist() == [0, 0, 1, 10]
    assert about["learner"] == "me" and about["final"] == {}


def test_who_is_stopped_before_the_first_round_says_so(made):
    worker, recorder, keeper = made(KINDS["rbd"])
    worker.stop()
    summary = worker.run()
    assert (summary.steps, summary.stopped, summary.final, recorder.records) == (0, True, {}, [])
    assert worker.beat().step == 0 and worker.beat().idle == 0.0
    state_of(worker, keeper)


def test_a_rate_that_diverges_is_told_in_words_with_the_learner_and_what_to_do(made):
    worker, recorder, _ = made("kind: sgd, update: {rate: 1e30}")
    with pytest.raises(Diverged, match=r"learners\.me: worker 0, step \d+: .*lower the rate.*was 1e\+30"):
        worker.run()
    assert any("lower the rate" in line for line in recorder.lines)
