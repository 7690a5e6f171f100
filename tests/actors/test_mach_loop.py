"""The learner's shell without Ray: two workers in two threads whose calls are plain calls."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import ray

from actors import device
from actors.common import Data
from actors.mach import MachWorker, Setup
from learners import options
from learners.batches import Split
from learners.messages import Done, Got

SECONDS = 30.0
"""Until a learner that has not ended counts as one that never will."""
RECORD = options.Record(every=4, rows=10, attribution=0)
BOTTOM = options.Mach(
    hidden=(8,),
    embedding=4,
    synthetic=options.Synthetic(hidden=(6,)),
    batch_size=8,
    steps=7,
    exchange=options.Exchange(patience=60.0, time_limit=60.0),
)
TOP = options.Mach(
    **{name: getattr(BOTTOM, name) for name in BOTTOM.__struct_fields__} | {"child": "bottom", "steps": 18}
)


class Recorder:
    """Keeps what it is sent; its acknowledgement is there at once."""

    def __init__(self):
        self.records = []
        self.append = SimpleNamespace(remote=self._append)

    def _append(self, parcel):
        self.records += parcel.records
        return parcel.sequence


def split(rows, seed):
    draws = np.random.default_rng(seed)
    return Split(draws.normal(size=(rows, 5)).astype(np.float32), draws.integers(3, size=rows).astype(np.int32))


def watched(network):
    """Who calls the network from now on: names of threads and of methods."""
    callers = set()

    def watch(name, method):
        def call(*args):
            callers.add((threading.current_thread().name, name))
            return method(*args)

        return call

    for name in ("train", "embed", "evaluate"):
        setattr(network, name, watch(name, getattr(network, name)))
    return callers


@pytest.fixture(scope="module")
def finished():
    """What two learners, one above the other and unlike in their steps, have reached and written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "configure", lambda _: None)  # TensorFlow is in use here already
        patch.setattr(ray, "get", lambda value, timeout=None: value)
        patch.setattr(ray, "wait", lambda values, num_returns=1, timeout=None: (values, []))
        splits = {"train": (split(50, 1),), "validation": (split(21, 2),), "test": (split(17, 3),)}
        data = Data(**splits, private=False, width=5, classes=3, dtype="<f4", example=(5,), scale=1.0, offset=0.0)
        recorder = Recorder()
        about = {"data": data, "record": RECORD, "recorder": recorder, "keeper": None, "upload": 1e9}
        near = {"children": {}, "parents": {"top": 8}, "gradient_rows": 8}
        setup = Setup(name="bottom", incarnation=0, seed=7, options=BOTTOM, **near, **about)
        above = replace(setup, name="top", options=TOP, children={"bottom": 4}, parents={}, gradient_rows=0)
        workers = {made.name: MachWorker(made) for made in (setup, above)}
        callers = {name: watched(worker._network) for name, worker in workers.items()}
        handles = {
            name: SimpleNamespace(receive=SimpleNamespace(remote=worker.receive)) for name, worker in workers.items()
        }
        summaries = {}

        def work(name):
            summaries[name] = workers[name].run()

        threads = [threading.Thread(target=work, args=[name], name=name, daemon=True) for name in workers]
        for worker in workers.values():
            for name, handle in handles.items():
                worker.open(name, 0, handle)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        yield SimpleNamespace(workers=workers, summaries=summaries, records=recorder.records, callers=callers)


def steps(finished, name, kind):
    return [record.step for record in finished.records if (record.learner, record.kind) == (name, kind)]


def test_a_learner_takes_the_steps_asked_for_and_not_one_more(finished):
    """Fault 20: there were n + 2. The counter, the weights' own version and the records say n."""
    for name, count in (("bottom", 7), ("top", 18)):
        assert finished.summaries[name].steps == finished.workers[name]._network.version == count
        assert steps(finished, name, "train") == list(range(1, count + 1))


def test_each_learner_ends_by_itself(finished):
    """Fault 19: all stopped with the first. The lower one is done long before the upper one and still answers it."""
    assert set(finished.summaries) == {"bottom", "top"}
    assert not any(summary.stopped for summary in finished.summaries.values())
    bottom, top = finished.summaries["bottom"].counts, finished.summaries["top"].counts
    assert top["used"] == 18 and bottom["answered"] == top["asked"]


def test_one_thread_owns_the_weights(finished):
    """Fault 14: parents' calls ran beside training. Here the messages come in the parent's thread, and only wait."""
    assert finished.callers == {
        "bottom": {("bottom", "train"), ("bottom", "embed"), ("bottom", "evaluate")},
        "top": {("top", "train"), ("top", "evaluate")},
    }


def test_validation_rows_are_looked_at_while_training_and_test_rows_at_the_end(finished):
    """Faults 12 and 13: training batches went into figures, and the whole test set at every print."""
    for name, checks in (("bottom", [4]), ("top", [4, 8, 12, 16])):
        assert steps(finished, name, "evaluate") == checks
        seen = [record for record in finished.records if (record.learner, record.kind) == (name, "evaluate")]
        assert not [key for record in seen for key in record.values if key.startswith("test/")]
        final = finished.summaries[name].final
        assert {key.split("/")[0] for key in final} == {"validation", "test"}


def test_final_figures_are_those_of_the_whole_sets(finished):
    bottom, top = finished.workers["bottom"], finished.workers["top"]
    for name, held_out in (("validation", split(21, 2)), ("test", split(17, 3))):
        answer = bottom._network.embed(held_out.inputs)
        wanted = top._network.evaluate(held_out.inputs, held_out.labels, [answer])
        assert {f"{name}/{key}": pytest.approx(value, rel=1e-5) for key, value in wanted.items()}.items() <= (
            finished.summaries["top"].final.items()
        )


def test_an_evaluation_that_is_completed_last_ends_the_run_whichever_it_is(finished):
    """A lost answer keeps an evaluation in mid-run open for longer than the final ones: the learner never ended."""
    top = finished.workers["top"]
    top._final = {}
    wants = [*top._wants("test", 18, 8), *top._wants("validation", 18, 8), *top._wants("validation", 16, 8)]
    events = [top._evaluate(Got(want.key, {"bottom": None})) for want in wants]
    assert [[type(event) for event in after] for after in events] == [[], [], [Done]]
