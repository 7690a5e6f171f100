"""The shell around a learner, as a plain class: neighbours and the recorder are fakes, Ray carries values only."""

import threading
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from actors import device, outgoing
from actors import mach as shell
from actors.common import Data
from actors.recorder import Recorder
from learners import mach
from learners.batches import Split
from learners.messages import Answer, Ask, Ended, Gradient, Rows
from learners.options import Exchange, Mach, Optimizer, Record, Synthetic
from learners.records import Record as Written

WIDTH, CLASSES, EMBEDDING = 6, 3, 4


def split(rows, seed):
    values = np.random.default_rng(seed)
    return Split(
        values.integers(0, 255, (rows, WIDTH)).astype(np.uint8), values.integers(0, CLASSES, rows).astype(np.int32)
    )


TRAIN, VALIDATION, TEST = split(50, 1), split(37, 2), split(23, 3)


class StubNetwork:
    """A network that computes nothing."""

    version = 0

    def warm_up(self, attributed):
        pass

    def train(self, x_BF, labels_B, embeddings, gradients, rate, look=False):
        self.version += 1
        return mach.Trained([np.zeros((len(x_BF), EMBEDDING), np.float32)] * len(embeddings), {"loss/child": 1.0})

    def embed(self, x_NF):
        return np.zeros((len(x_NF), EMBEDDING), np.float32)

    def evaluate(self, x_NF, labels_N, embeddings):
        return {"accuracy/child": 1.0}

    def attribute(self, x_NF, labels_N, embeddings):
        return {}

    def norms(self):
        return {}


class Kept:
    """Stands for the recorder's handle: keeps what it is sent, and answers as it is told to."""

    def __init__(self, ray, outcome=None):
        self.parcels, self._ray = [], ray
        self.append = SimpleNamespace(remote=self._append)
        self._outcome = outcome or (lambda: ray.put(None))

    def _append(self, parcel):
        self.parcels.append(parcel)
        return self._outcome()

    @property
    def records(self):
        return [record for parcel in self.parcels for record in parcel.records]


class Child:
    """Stands for a child's handle: answers every request at once, with the mean of the row in every column."""

    def __init__(self, worker, silent=False):
        self.receive = SimpleNamespace(remote=self._receive)
        self._worker, self._silent, self.got, self._sequence = worker, silent, Counter(), 0

    def _receive(self, *messages):
        for message in messages:
            self.got[type(message)] += 1
            if isinstance(message, Ask) and not self._silent:
                rows = (VALIDATION, TEST, TRAIN)[
                    [s.fingerprint for s in (VALIDATION, TEST, TRAIN)].index(message.batch.data)
                ].inputs[message.batch.numbers]
                self._worker.receive(
                    Answer("child", 0, self._sequence, ask=message.sequence, version=0, embedding=embedding(rows))
                )
                self._sequence += 1


def embedding(rows):
    return np.repeat(rows.mean(axis=1, keepdims=True) / 255, EMBEDDING, axis=1).astype(np.float32)


@pytest.fixture
def made(ray_here, monkeypatch):
    """Makes a worker and its recorder. TensorFlow runs in this process already, so its threads stay as they are."""
    monkeypatch.setattr(device, "configure", lambda cpus: None)

    def make(*, stub=True, recorder=None, children=(), parents=None, record=None, **options):
        if stub:
            monkeypatch.setattr(shell.MachWorker, "_built", lambda self: StubNetwork())
        defaults = {"hidden": (8,), "embedding": EMBEDDING, "batch_size": 16, "steps": 7}
        chosen = Mach(**{**defaults, "synthetic": Synthetic(hidden=(8,)), **options})
        data = Data(
            train=(ray_here.put(TRAIN),),
            validation=(ray_here.put(VALIDATION),),
            test=(ray_here.put(TEST),),
            private=False,
            width=WIDTH,
            classes=CLASSES,
            dtype="|u1",
            example=(WIDTH,),
            scale=1 / 255,
            offset=0.0,
        )
        kept = recorder or Kept(ray_here)
        setup = shell.Setup(
            name="me",
            incarnation=0,
            seed=5,
            options=chosen,
            children=dict.fromkeys(children, EMBEDDING),
            parents=parents or {},
            gradient_rows=sum((parents or {}).values()),
            data=data,
            record=record or Record(every=3, rows=30, attribution=0),
            recorder=kept,
            keeper=None,
            upload=1e9,
        )
        return shell.MachWorker(setup), kept

    return make


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_n_steps_are_n_steps(made, steps):
    """Fault 20: the original ran n + 2."""
    worker, kept = made(steps=steps)
    summary = worker.run()
    assert summary.steps == steps == worker._network.version
    assert [r.step for r in kept.records if r.kind == "train"] == list(range(1, steps + 1))
    assert [r.step for r in kept.records if r.kind == "evaluate"] == [s for s in range(1, steps) if s % 3 == 0]
    assert {r.step for r in kept.records if r.kind == "final"} == {steps}
    assert not summary.stopped and summary.unwritten == 0 and summary.seconds >= 0


def test_held_out_rows_are_all_used_once_with_a_remainder(made):
    """37 validation and 23 test rows in pieces of 16: figures are those of the whole sets."""
    worker, _ = made(stub=False, children=("child",), steps=4)
    worker.open("child", 0, Child(worker))
    summary = worker.run()
    assert summary.counts["used"] + summary.counts.get("fallbacks", 0) == 4
    for name, held_out in (("validation", VALIDATION), ("test", TEST)):
        x_NF = held_out.inputs.astype(np.float32) * np.float32(1 / 255)
        wanted = worker._network.evaluate(x_NF, held_out.labels, [embedding(held_out.inputs)])
        for key, value in wanted.items():
            assert summary.final[f"{name}/{key}"] == pytest.approx(value, rel=1e-4), key
    assert set(wanted) >= {"accuracy/child", "accuracy/synthetic", "loss/child", "distillation"}


def test_a_child_is_asked_used_sent_gradients_and_told_of_the_end(made):
    worker, _ = made(children=("child",), steps=6)
    child = Child(worker)
    worker.open("child", 0, child)
    summary = worker.run()
    assert summary.counts["used"] == 6 == child.got[Gradient]
    assert child.got[Ended] == 1 and child.got[Ask] >= 6
    assert summary.bytes["sent inline"] > 0 and "sent store" not in summary.bytes


def test_a_silent_child_costs_its_share_of_patience_and_no_more(made):
    worker, _ = made(children=("child",), steps=50, exchange=Exchange(patience=0.01, time_limit=0.05))
    worker.open("child", 0, Child(worker, silent=True))
    began = time.monotonic()
    summary = worker.run()
    assert summary.steps == 50 and summary.counts["fallbacks"] == 50
    assert time.monotonic() - began < 10.0


def test_a_learner_that_has_done_its_steps_answers_until_its_parents_have_ended(made):
    worker, kept = made(parents={"parent": 16}, steps=2)
    answers = []
    worker.open("parent", 0, SimpleNamespace(receive=SimpleNamespace(remote=lambda *m: answers.extend(m))))
    done = []
    thread = threading.Thread(target=lambda: done.append(worker.run()), daemon=True)
    thread.start()
    wait_for(lambda: any(r.kind == "final" for r in kept.records))
    rows = Rows(TRAIN.fingerprint, np.arange(16, dtype=np.int32))
    before = worker.beat().bytes
    worker.receive(Ask("parent", 0, 0, rows))
    wait_for(lambda: answers)
    assert worker.beat().bytes["sent inline"] >= before.get("sent inline", 0) + answers[0].embedding.nbytes
    assert answers[0].version == 2 and answers[0].embedding.shape == (16, EMBEDDING)
    assert not done
    worker.receive(Ended("parent", 0, 1))
    thread.join(10)
    assert done and done[0].steps == 2 and done[0].counts["answered"] == 1


def wait_for(what, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_a_closed_parent_is_an_ended_one(made):
    worker, _ = made(parents={"parent": 16}, steps=2)
    worker.close("parent", 0, True)
    assert worker.run().steps == 2


def test_stop_ends_after_the_current_step(made):
    worker, _ = made(parents={"parent": 16}, steps=1)
    done = []
    thread = threading.Thread(target=lambda: done.append(worker.run()), daemon=True)
    thread.start()
    worker.stop()
    thread.join(10)
    assert done and done[0].stopped


def test_seconds_are_those_of_all_incarnations(made, monkeypatch):
    """Else the speed of a learner that was resumed is that of all its steps in the time of the last few."""
    about = {"position": {"version": 0, "next_batch": 0, "unused": []}, "counts": {}, "bytes": {}, "final": {}}
    monkeypatch.setattr(shell.MachWorker, "_go_on", lambda self: about | {"seconds": 100.0})
    worker, _ = made(stub=False, steps=2)
    saved = []
    monkeypatch.setattr(worker._saving, "_upload", SimpleNamespace(put=lambda *state: saved.append(state)))
    summary = worker.run()
    worker.save(0)
    assert 100.0 < summary.seconds < 110.0 and saved[0][-1]["seconds"] == summary.seconds


def test_arrays_that_cannot_be_had_are_counted_and_shown(made, ray_here):
    @ray_here.remote(num_cpus=0, max_retries=0)
    def lost():
        raise OSError("gone")

    worker, kept = made(children=("child",), steps=2, exchange=Exchange(patience=0.0))
    worker.open("child", 0, Child(worker, silent=True))
    worker.receive(Answer("child", 0, 0, ask=0, version=0, embedding=lost.remote()))
    summary = worker.run()
    assert summary.counts["unreadable"] == 1 and summary.steps == 2
    assert [r.values["exchange/unreadable"] for r in kept.records if r.kind == "train"] == [1.0, 1.0]
    assert any("child: the arrays of a message" in line for parcel in kept.parcels for line in parcel.log)


def test_a_learner_that_diverges_says_who_where_and_what_to_do(made):
    """Case 28: a rate of 1e6."""
    sgd = Optimizer(name="sgd", learning_rate=1e6)
    worker, kept = made(stub=False, steps=200, hidden=(64, 64), optimizer=sgd)
    said = r"^learners\.me: step \d+: .*(nan|inf): no longer finite; try a smaller .*learning_rate \(it was 1e\+06\)"
    with pytest.raises(shell.Diverged, match=said) as e:
        worker.run()
    step = int(str(e.value).split("step ")[1].split(":")[0])
    assert [r.step for r in kept.records if r.kind == "train"] == list(range(1, step + 1)) and step < 10
    assert any("no longer finite" in line for parcel in kept.parcels for line in parcel.log)


# ---------------------------------------------------------------- a recorder that fails


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(outgoing, "PARCEL_SECONDS", 0.0)
    monkeypatch.setattr(shell, "FINISH_SECONDS", 0.2)


def never_ready(ray):
    """A reference that resolves for nobody: as of a frozen recorder."""

    @ray.remote(num_cpus=0)
    class Frozen:
        def append(self):
            threading.Event().wait()

    actor = Frozen.remote()
    return actor, lambda: actor.append.remote()


def test_a_dead_recorder_stops_no_step(made, ray_here, hasty, tmp_path):
    from actors.recorder import RecorderActor

    dead = RecorderActor.remote(str(tmp_path))
    ray_here.kill(dead)
    worker, _ = made(steps=100, recorder=dead)
    summary = worker.run()
    assert summary.steps == 100 and summary.final["test/accuracy/child"] == 1.0
    assert summary.unwritten > 100


def test_a_frozen_recorder_stops_no_step(made, ray_here, hasty):
    actor, outcome = never_ready(ray_here)
    kept = Kept(ray_here, outcome)
    worker, _ = made(steps=100, recorder=kept)
    summary = worker.run()
    assert summary.steps == 100 and summary.unwritten > 100
    assert len(kept.parcels) == 1  # one on its way; nothing is sent on top of it
    ray_here.kill(actor)


def test_what_a_full_disk_refused_is_written_once_when_there_is_room(ray_here, hasty, tmp_path):
    """Case 21, from the learner's side: a real recorder on a disk that fails for a while."""
    recorder, out = Recorder(str(tmp_path)), None

    @ray_here.remote(num_cpus=0, max_retries=0)
    def refused():
        raise OSError(28, "No space left on device")

    full, sent = [True], []

    def append(parcel):
        sent.append(parcel.sequence)
        if full[0]:
            return refused.remote()
        return ray_here.put(recorder.append(parcel))

    out = outgoing.Outgoing("me", 0, SimpleNamespace(append=SimpleNamespace(remote=append)))
    for step in range(1, 31):
        if step == 20:
            wait_for(lambda: (out.send_if_due(), len(sent) > 2)[1])
            full[0] = False
        out.add(Written("me", 0, step, float(step), "train", {"x": float(step)}), plotted=True)
        out.send_if_due()
    out.log.info("braces {} are text")
    assert out.finish(10.0) and out.unwritten == 0 and out.dropped == 0
    assert sent[:3] == [0, 0, 0]  # the refused one goes again before anything else
    lines = (tmp_path / "records/me.jsonl").read_text().splitlines()
    written = [line for line in lines if not line.startswith('{"seal"')]
    assert [f'"step":{step},' in line for step, line in enumerate(written, 1)] == [True] * 30
    assert "braces {} are text" in (tmp_path / "logs/me.log").read_text()


def test_records_that_wait_are_bounded_thinned_evenly_and_counted(ray_here, monkeypatch):
    monkeypatch.setattr(outgoing, "RECORDS_KEPT", 100)
    out = outgoing.Outgoing("me", 0, None)
    for step in range(1, 10_001):
        out.add(Written("me", 0, step, 0.0, "final" if step == 10_000 else "train", {}), plotted=True)
        assert out.unwritten <= 100
    kept = [record.step for record, _ in out._waiting]
    assert out.dropped + len(kept) == 10_000
    assert kept == [*range(128, 10_000, 128), 10_000]
    for number in range(3_000):
        out.log.info("line {}", number)
    assert len(out._lines) == outgoing.LINES_KEPT


def test_a_learners_log_goes_to_its_own_file_and_leaves_other_sinks_alone(ray_here, tmp_path):
    from loguru import logger

    others = []
    other = logger.add(lambda message: others.append(message.record["message"]))
    try:
        recorders = {name: Recorder(str(tmp_path)) for name in ("a", "b")}
        outs = {
            name: outgoing.Outgoing(
                name, 0, SimpleNamespace(append=SimpleNamespace(remote=lambda p, r=recorder: ray_here.put(r.append(p))))
            )
            for name, recorder in recorders.items()
        }
        for name, out in outs.items():
            out.log.warning("of {}", name)
        logger.info("of the program")
        assert all(out.finish(5.0) for out in outs.values())
        logger.info("afterwards")
        assert others == ["of a", "of b", "of the program", "afterwards"]
        for name in outs:
            (line,) = (tmp_path / f"logs/{name}.log").read_text().splitlines()
            assert line.endswith(f"WARNING | of {name}")
    finally:
        logger.remove(other)
