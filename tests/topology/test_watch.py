"""The watch over a run, with fake actors: whatever happens, the run ends in words and every actor ends with it."""

import json
from types import SimpleNamespace

import pytest

from actors.common import Diverged
from actors.keeper import Kept
from topology import parse, watch

CHAIN = parse.loads("{version: 1, name: x, learners: {a: {kind: mach, steps: 3}, b: {kind: mach, child: a, steps: 3}}}")


class FakeRay:
    """References are functions: getting one calls it, and it is ready at once."""

    class exceptions:
        class RayError(Exception):
            pass

        class GetTimeoutError(RayError):
            pass

    def __init__(self):
        self.killed = []

    def get(self, reference, timeout=None):
        return reference()

    def wait(self, references, num_returns=1, timeout=None):
        return list(references), []

    def kill(self, actor):
        self.killed.append(actor)


def method(*outcomes):
    """An actor's method: what its calls give, one after the other, the last for ever; errors are raised at `get`."""
    left = list(outcomes)

    def remote(*arguments):
        outcome = left.pop(0) if len(left) > 1 else left[0]

        def reference():
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        return reference

    return SimpleNamespace(remote=remote)


FINAL = {"validation/accuracy/child": 0.5, "test/accuracy/child": 0.5}


def summary(name, **other):
    fields = {
        "learner": name,
        "incarnation": 0,
        "steps": 3,
        "seconds": 1.0,
        "stopped": False,
        "unwritten": 0,
        "spent": {},
        "processor": {},
    }
    return SimpleNamespace(**{**fields, "final": FINAL, "counts": {}, "bytes": {}, "processor": {}, **other})


class FakeCrew:
    """Recorder, keeper and learners as told; a keeper whose sets are complete as soon as they are asked for."""

    def __init__(self, recorder, learners):
        methods = {"describe": method(None), "close": method(None), "look": method(look())}
        self.recorder = SimpleNamespace(**{**methods, **(recorder or {})})
        self.begun, self.started, self._learners = -1, [], learners
        begin = SimpleNamespace(remote=lambda number, *_: setattr(self, "begun", number))
        kept = SimpleNamespace(remote=lambda: lambda: Kept(self.begun, {"a": 3, "b": 3}, self.begun, (), ""))
        self.keeper = SimpleNamespace(begin=begin, look=kept, without=method(None))

    def start(self, name, incarnation, state):
        self.started.append((name, incarnation))
        usual = {key: method(None) for key in ("close", "open", "stop", "save")}
        usual |= {"ready": method(name), "beat": method(SimpleNamespace(step=1, idle=0.0, accused=(), bytes={}))}
        return SimpleNamespace(**{**usual, "run": method(summary(name)), **self._learners.get(name, {})})


def look(fault="", **figures):
    return SimpleNamespace(latest=dict.fromkeys("ab", figures) if figures else {}, fault=fault)


@pytest.fixture
def quiet_rounds(monkeypatch):
    """Lets so many rounds of the watch go by before anyone ends."""

    def set_to(count):
        collect, left = watch.Watch._collect, [count]

        def wait(self):
            left[0] -= 1
            if left[0] < 0:
                collect(self)

        monkeypatch.setattr(watch.Watch, "_collect", wait)

    return set_to


@pytest.fixture
def run(tmp_path):
    """Watches fake actors to the end; gives the outcome, what was told, Ray, and run.json."""

    def start(*, recorder=None, start=None, shown=lambda live: None, ray=FakeRay, **learners):
        ray, told, crew = ray(), [], FakeCrew(recorder, learners)
        one = watch.Watch(ray, CHAIN, start or (lambda: crew), tmp_path, told.append, shown)
        outcome = one.to_the_end()
        manifest = json.loads((tmp_path / "run.json").read_text())
        assert manifest["state"] == outcome.state and manifest["outcome"]["status"] == outcome.status
        assert start or len(ray.killed) >= 4  # two learners, recorder, keeper
        assert list(outcome.learners) == ["a", "b"]
        return outcome, told

    return start


def test_a_good_run(run):
    outcome, told = run()
    assert outcome.status == 0 and outcome.problems == []
    assert [line for line in told if "ended" in line] == ["a has ended", "b has ended"]


def test_one_line_for_each_learner_that_has_loaded_however_long_it_takes(run):
    class Slow(FakeRay):
        rounds = 0

        def wait(self, references, num_returns=1, timeout=None):
            self.rounds += 1  # nothing, nothing, the last of them
            done = references[-1:] if self.rounds % 3 == 0 else []
            return done, [one for one in references if one not in done]

    _, told = run(ray=Slow)
    starting = told.index("starting a, b: each loads TensorFlow and compiles its step")
    assert told[starting + 1 :][:2] == ["b is b; loading: a", "a is a"]
    assert told[starting + 3].startswith("training a, b; run folder ")


def test_bytes_are_shown_on_of_a_learner_that_has_ended_its_records(run, quiet_rounds):
    quiet_rounds(5)
    beats = [SimpleNamespace(step=3, idle=0.0, accused=(), bytes={"sent inline": sent}) for sent in (7, 8, 9)]
    shown = []
    run(
        recorder={"look": method(look(**{"step": 3.0, "bytes/sent_inline": 7.0}))},
        shown=lambda live: shown.append(live["a"]["bytes/sent_inline"]),
        a={"beat": method(*beats)},
    )
    assert shown[0] == 7.0 and shown[-1] == 9.0


def test_a_figure_that_an_unanswered_evaluation_lacks_is_missed_in_words(run):
    synthetic = {"validation/accuracy/synthetic": 0.5, "test/accuracy/synthetic": 0.5}
    for lacking in ({}, {"validation/accuracy/child": 0.5}):
        outcome, told = run(b={"run": method(summary("b", final=synthetic | lacking))})
        missing = outcome.learners["b"].missing
        both = "no validation/accuracy/child and no test/accuracy/child: at its end a was gone"
        assert missing.startswith("no test/accuracy/child: at its end a was gone" if lacking else both)
        assert f"b has ended: {missing}" in told and outcome.as_json()["learners"]["b"]["missing"] == missing
        assert outcome.learners["a"].missing == "" and outcome.status == 0


def test_nothing_is_missing_of_a_learner_that_was_stopped(run):
    outcome, _ = run(b={"run": method(summary("b", final={}, stopped=True))})
    assert outcome.learners["b"].missing == ""


def test_a_learner_that_fails_for_good_is_named_and_its_last_figures_are_kept(run):
    seen = {"step": 2.0, "bytes/sent_inline": 7.0, "exchange/fallbacks": 1.0, "validation/accuracy/child": 0.25}
    outcome, told = run(a={"run": method(RuntimeError("broken"))}, recorder={"look": method(look(**seen))})
    (problem,) = outcome.problems
    assert outcome.status == 1
    assert problem == "learners.a: RuntimeError: broken; it has been started again 3 times"
    failed = outcome.learners["a"]
    assert (failed.status, failed.steps, failed.fallbacks, failed.restarts) == ("failed", 2, 1, 3)
    assert failed.bytes == {"sent inline": 7} and failed.accuracies == {"validation/accuracy/child": 0.25}
    assert outcome.learners["b"].status == "done" and problem in told


def test_a_learner_that_dies_once_is_started_again_and_the_run_is_good(run):
    runs = method(RuntimeError("killed"), summary("a"))
    outcome, told = run(a={"run": runs})
    assert outcome.status == 0 and outcome.events == ["learners.a: RuntimeError: killed"]
    assert outcome.learners["a"].restarts == 1
    assert any("it is started again (1 of 3)" in line for line in told)


def test_a_learner_that_diverges_is_not_started_again(run):
    error = FakeRay.exceptions.RayError("task failed")
    error.cause = Diverged("learners.a: step 3: loss/child nan: no longer finite")
    outcome, _ = run(a={"run": method(error)})
    assert outcome.status == 1 and outcome.learners["a"].restarts == 0
    assert "learners.a: step 3" in outcome.problems[0]


def test_an_accused_learner_is_started_again(run, quiet_rounds):
    """Three poisoned messages in a row: the sender goes on from its last good checkpoint."""
    quiet_rounds(3)
    accusing = SimpleNamespace(step=1, idle=0.0, accused=(("a", 0, "answer: not finite"),), bytes={})
    outcome, _ = run(b={"beat": method(accusing, SimpleNamespace(step=1, idle=0.0, accused=(), bytes={}))})
    assert outcome.status == 0
    assert outcome.events == ["learners.a: three messages in a row were refused by b: answer: not finite"]
    assert outcome.learners["a"].restarts == 1


def test_a_disk_that_refuses_is_told_once_and_so_is_its_return(run, quiet_rounds):
    """Case 21."""
    quiet_rounds(4)
    looks = method(look(), look("OSError: No space left"), look("OSError: No space left"), look())
    outcome, told = run(recorder={"look": looks})
    assert [line for line in told if "records" in line] == [
        "records can't be written: OSError: No space left; training goes on, and records wait in the learners",
        "records are written again",
    ]
    assert outcome.status == 0


def test_records_that_were_not_written_are_a_failure(run):
    outcome, _ = run(b={"run": method(summary("b", unwritten=17))})
    assert outcome.status == 1 and outcome.problems == ["learners.b: its last 17 records could not be written"]


def test_a_recorder_that_has_died_does_not_end_the_run_but_is_a_failure(run):
    dead = method(FakeRay.exceptions.RayError("it is gone"))
    outcome, told = run(recorder={"look": dead, "close": dead, "describe": dead})
    assert outcome.status == 1 and [reached.status for reached in outcome.learners.values()] == ["done", "done"]
    assert any("records can't be written: the recorder" in line for line in told)
    assert any("the run folder may be incomplete" in problem for problem in outcome.problems)


def test_a_learner_that_cannot_start_ends_the_run_in_words(run):
    text = "The actor died because of an error raised in its creation task, ray::X\n  File x\nValueError: no such thing"
    outcome, _ = run(b={"ready": method(FakeRay.exceptions.RayError(text))})
    assert outcome.status == 1 and outcome.problems == ["learners.b could not start: ValueError: no such thing"]
    assert {reached.status for reached in outcome.learners.values()} == {"not started"}


@pytest.mark.parametrize("where", ["start", "ready", "describe"])
def test_any_other_fault_ends_the_run_in_words(run, where):
    fault = TypeError("of ours")

    def start():
        raise fault

    outcome, _ = {
        "start": lambda: run(start=start),
        "ready": lambda: run(a={"ready": method(fault)}),
        "describe": lambda: run(recorder={"describe": method(fault)}),
    }[where]()
    assert outcome.status == 1 and outcome.problems == ["the run has ended: TypeError: of ours"]


@pytest.mark.parametrize("where", ["start", "ready", "run"])
def test_an_interrupt_ends_with_130_wherever_it_comes(run, where):
    def start():
        raise KeyboardInterrupt

    outcome, told = {
        "start": lambda: run(start=start),
        "ready": lambda: run(a={"ready": method(KeyboardInterrupt())}),
        "run": lambda: run(recorder={"look": method(KeyboardInterrupt(), look(step=2.0))}),
    }[where]()
    assert outcome.status == 130 and outcome.problems == []
    assert any("interrupted" in line for line in told)


def test_a_second_interrupt_ends_at_once(run):
    outcome, told = run(
        recorder={"look": method(KeyboardInterrupt())}
    )  # every look is interrupted: at work, at the end
    assert outcome.status == 130 and sum("interrupted" in line for line in told) == 1
