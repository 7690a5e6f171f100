"""The watch over a run, with fake actors: whatever happens, the run ends in words and every actor ends with it."""

import json
from types import SimpleNamespace

import pytest

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

    def wait(self, references, num_returns, timeout):
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


def summary(name, **other):
    fields = {"learner": name, "incarnation": 0, "steps": 3, "seconds": 1.0, "stopped": False, "unwritten": 0}
    return SimpleNamespace(**{**fields, "final": {"test/accuracy/child": 0.5}, "counts": {}, "bytes": {}, **other})


def look(fault="", **figures):
    return SimpleNamespace(latest=dict.fromkeys("ab", figures) if figures else {}, fault=fault)


@pytest.fixture
def run(tmp_path):
    """Watches fake actors to the end; gives the outcome, what was told, Ray, and run.json."""

    def start(*, recorder=None, start=None, **learners):
        ray, told = FakeRay(), []
        methods = {"describe": method(None), "close": method(None), "look": method(look())}
        actors = watch.Actors(SimpleNamespace(**{**methods, **(recorder or {})}), {})
        for name in CHAIN.learners:
            usual = {"ready": method(name), "connect": method(None), "close": method(None), "stop": method(None)}
            actors.learners[name] = SimpleNamespace(**{**usual, "run": method(summary(name)), **learners.get(name, {})})
        one = watch.Watch(ray, CHAIN, start or (lambda: actors), tmp_path, told.append, lambda live: None)
        outcome = one.to_the_end()
        manifest = json.loads((tmp_path / "run.json").read_text())
        assert manifest["state"] == "ended" and manifest["outcome"]["status"] == outcome.status
        assert start or len(ray.killed) == 3
        assert list(outcome.learners) == ["a", "b"]
        return outcome, told

    return start


def test_a_good_run(run):
    outcome, told = run()
    assert outcome.status == 0 and outcome.problems == []
    assert told[-2:] == ["a has ended", "b has ended"]


def test_a_learner_that_fails_is_named_and_its_last_figures_are_kept(run):
    seen = {"step": 2.0, "bytes/sent_inline": 7.0, "exchange/fallbacks": 1.0, "validation/accuracy/child": 0.25}
    outcome, told = run(a={"run": method(RuntimeError("broken"))}, recorder={"look": method(look(**seen))})
    assert outcome.status == 1 and outcome.problems == ["learners.a failed: RuntimeError: broken"]
    failed = outcome.learners["a"]
    assert (failed.status, failed.steps, failed.fallbacks) == ("failed", 2, 1)
    assert failed.bytes == {"sent inline": 7} and failed.accuracies == {"validation/accuracy/child": 0.25}
    assert outcome.learners["b"].status == "done" and outcome.problems[0] in told


def test_a_disk_that_refuses_is_told_once_and_so_is_its_return(run, monkeypatch):
    """Case 21."""
    waits = iter([[], [], [], []])
    monkeypatch.setattr(FakeRay, "wait", lambda self, refs, **_: (next(waits, list(refs)), []))
    monkeypatch.setattr(watch.Watch, "_await_ready", lambda self: None)
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
    assert any("the recorder has died" in line for line in told)
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
    outcome, _ = run(recorder={"look": method(KeyboardInterrupt()), "close": method(KeyboardInterrupt())})
    assert outcome.status == 130
