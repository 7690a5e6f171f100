"""The supervisor in a world of fakes with a clock of its own: every death is a line, and nothing waits."""

from collections import defaultdict
from types import SimpleNamespace

import pytest

from actors import checkpoint
from learners.options import Mach, Supervise, Topology
from topology import watch as module
from topology.watch import Watch


class RayError(Exception):
    pass


class ActorDiedError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


class Ref:
    """What a call gives: its value from a moment on, or never."""

    def __init__(self, value=None, at=0.0):
        self.value, self.at = value, at


NEVER = float("inf")


class World:
    """Stands for Ray: calls are noted, answers are as scripted, and waiting moves the clock."""

    exceptions = SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError)

    def __init__(self):
        self.now, self.calls, self.killed = 1000.0, [], []
        #: by learner and incarnation: what `run` and `beat` give; a function of no arguments
        self.runs, self.beats = {}, defaultdict(lambda: lambda: Ref(beat(5)))
        self.ready = {}  #: when it has loaded

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def get(self, ref, timeout=None):
        if isinstance(ref.value, BaseException):
            raise ref.value
        return ref.value

    def put(self, value):
        return Ref(value)

    def wait(self, refs, num_returns=1, timeout=None):
        if not all(ref.at <= self.now for ref in refs):
            self.now += timeout or 0.0
        done = [ref for ref in refs if ref.at <= self.now]
        return done, [ref for ref in refs if ref not in done]

    def kill(self, actor):
        self.killed.append(actor.name)

    def told(self, name, method):
        """Arguments of all calls of a method of a learner, keeper or recorder."""
        return [args for called, what, args in self.calls if (called, what) == (name, method)]


class Actor:
    def __init__(self, world, name, answers):
        self.world, self.name, self.answers = world, name, answers

    def __getattr__(self, method):
        def remote(*args):
            self.world.calls.append((self.name, method, args))
            answer = self.answers.get(method)
            return answer(*args) if answer else Ref()

        return SimpleNamespace(remote=remote)


class Crew:
    """Makes fakes; a learner's name carries its incarnation: `middle 1`."""

    def __init__(self, world, folder):
        self.world, self.folder, self.states = world, folder, {}
        self.recorder = Actor(world, "recorder", {"look": lambda: Ref(SimpleNamespace(latest={}, fault=""))})
        self.keeper = Actor(world, "keeper", {"look": self.look})

    def look(self):
        begun = max((args[0] for args in self.world.told("keeper", "begin")), default=-1)
        return Ref(SimpleNamespace(newest=begun, steps={}, begun=begun, open=(), fault=""))

    def start(self, name, incarnation, state=None):
        key = (name, incarnation)
        self.states[key] = state
        answers = {
            "ready": lambda: Ref("here", self.world.ready.get(key, 0.0)),
            "run": lambda near: self.world.runs.get(key, lambda: Ref(summary(name), self.world.now + 30))(),
            "beat": lambda: self.world.beats[key](),
        }
        return Actor(self.world, f"{name} {incarnation}", answers)


def summary(name, steps=10):
    return SimpleNamespace(
        learner=name,
        incarnation=0,
        steps=steps,
        seconds=1.0,
        final={},
        counts={},
        unwritten=0,
        spent={},
        processor={},
        bytes={},
        stopped=False,
    )


def beat(step, idle=0.0, accused=(), bytes=()):
    return SimpleNamespace(step=step, idle=idle, accused=accused, bytes=dict(bytes))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs three learners in a world, after what is given has been scripted."""

    def go(script, restarts=3):
        world, told = World(), []
        topology = Topology(
            version=1,
            name="fake",
            learners={"bottom": Mach(), "middle": Mach(child="bottom"), "top": Mach(child="middle")},
            supervise=Supervise(restarts=restarts, silence=5.0),
        )
        for name in topology.learners:
            content = checkpoint.pack({}, {"learner": name})
            checkpoint.write(tmp_path / "checkpoints", 0, name, content)
        checkpoint.complete(tmp_path / "checkpoints", 0, {"bottom": 3, "middle": 4, "top": 5})
        crew = Crew(world, tmp_path)
        script(world)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=world.monotonic, sleep=world.sleep))
        monkeypatch.setattr("topology.figures.Figures.describe", lambda *_: Ref())
        outcome = Watch(world, topology, lambda: crew, tmp_path, told.append, lambda live: None).to_the_end()
        return SimpleNamespace(world=world, told=told, outcome=outcome, states=crew.states)

    return go


def test_all_end_and_nothing_happened(run):
    done = run(lambda world: None)
    assert done.outcome.status == 0 and done.outcome.events == [] == done.outcome.problems
    assert sorted(done.world.killed) == ["bottom 0", "keeper", "middle 0", "recorder", "top 0"]
    number, asked, carried = done.world.told("keeper", "begin")[-1]
    assert set(asked) == {"bottom", "middle", "top"} and carried == () and number == 1
    (near,) = done.world.told("middle 0", "run")[0]
    assert [(one.name, one.incarnation, one.handle.name) for one in near] == [
        ("bottom", 0, "bottom 0"),
        ("top", 0, "top 0"),
    ]


def restored(done, why):
    """`middle` has been replaced once, as it should be."""
    assert done.outcome.status == 0 and done.outcome.problems == []
    assert done.outcome.events == [f"learners.middle: {why}"]
    assert "middle 0" in done.world.killed and done.outcome.learners["middle"].restarts == 1
    assert checkpoint.unpack(done.states["middle", 1])[1] == {"learner": "middle"}
    assert "middle goes on from step 4" in done.told and "middle is back at step 4: it is here" in done.told
    for name in ("bottom 0", "top 0"):
        assert done.world.told(name, "close")[0] == ("middle", 0, False)
        opened = [(who, incarnation, handle.name) for who, incarnation, handle in done.world.told(name, "open")]
        assert opened == [("middle", 1, "middle 1")]
    assert ("middle",) in done.world.told("keeper", "without")


def test_a_learner_that_dies_comes_back_from_its_set(run):
    def script(world):
        world.runs["middle", 0] = lambda: Ref(ActorDiedError("The actor died"), world.now + 3)

    restored(run(script), "its process has died")


def test_a_learner_whose_answers_are_poisoned_three_times_comes_back_from_its_set(run):
    """Case 28; the exchange accuses (tests/learners/test_exchange.py), the supervisor restores."""

    def script(world):
        accused = (("middle", 0, "answer: not finite"),)
        world.beats["top", 0] = lambda: Ref(beat(7, accused=accused))  # said again and again: it counts once

    restored(run(script), "three messages in a row were refused by top: answer: not finite")


def test_a_silent_learner_comes_back_from_its_set(run):
    def script(world):
        world.runs["middle", 0] = lambda: Ref(at=NEVER)
        world.beats["middle", 0] = lambda: Ref(at=NEVER)

    restored(run(script), "no sign of life for 5 s")


def test_a_learner_that_hangs_comes_back_from_its_set(run):
    def script(world):
        world.runs["middle", 0] = lambda: Ref(at=NEVER)
        world.beats["middle", 0] = lambda: Ref(beat(7, idle=6.0))

    restored(run(script), "its training has hung for 6 s")


def test_when_the_supervisor_itself_was_suspended_nobody_is_lost(run):
    def script(world):
        def late():  # asked just before the supervisor sleeps; the answer is not there when it wakes up
            if 1003 < world.now < 1010:
                world.now += 20
                return Ref(beat(7), world.now + 0.7)
            return Ref(beat(7))

        world.beats["middle", 0] = late

    assert run(script).outcome.events == []


def test_restarts_are_counted_and_then_it_has_failed(run):
    def script(world):
        for incarnation in range(3):
            world.runs["middle", incarnation] = lambda: Ref(ActorDiedError("The actor died"), world.now + 1)

    done = run(script, restarts=2)
    assert done.outcome.status == 1 and done.outcome.learners["middle"].status == "failed"
    assert done.outcome.problems == ["learners.middle: its process has died; it has been started again 2 times"]
    assert done.world.told("top 0", "close")[-1] == ("middle", 2, True)
    assert done.outcome.learners["top"].status == done.outcome.learners["bottom"].status == "done"
    _, asked, carried = done.world.told("keeper", "begin")[-1]
    assert set(asked) == {"bottom", "top"} and carried == ("middle",)


def test_the_death_of_one_that_has_ended_spoils_no_set(run):
    def script(world):
        world.runs["top", 0] = lambda: Ref(summary("top"), world.now + 2)
        world.beats["top", 0] = lambda: Ref(ActorDiedError("died") if world.now > 1005 else beat(9))

    done = run(script)
    assert done.outcome.status == 0 and done.outcome.learners["top"].status == "done"
    assert done.outcome.events == ["learners.top: it had ended, and its process is gone: its process has died"]
    assert done.world.told("keeper", "without") == [("top",)]
    _, asked, carried = done.world.told("keeper", "begin")[-1]
    assert set(asked) == {"bottom", "middle"} and carried == ("top",)


def test_two_that_load_at_once_open_each_other_when_both_are_there(run):
    def script(world):
        for name, after in (("middle", 3.0), ("bottom", 3.2)):
            world.runs[name, 0] = lambda after=after: Ref(ActorDiedError("died"), world.now + after)
        world.ready |= {("middle", 1): 1008.0, ("bottom", 1): 1012.0}

    done = run(script)
    assert done.outcome.status == 0 and len(done.outcome.events) == 2
    (near,) = done.world.told("middle 1", "run")[0]
    seen = {one.name: (one.incarnation, one.handle and one.handle.name, one.forever) for one in near}
    assert seen == {"top": (0, "top 0", False), "bottom": (0, None, False)}
    assert [(who, incarnation) for who, incarnation, _ in done.world.told("middle 1", "open")] == [("bottom", 1)]
    (near,) = done.world.told("bottom 1", "run")[0]
    assert [(one.name, one.incarnation, one.handle.name) for one in near] == [("middle", 1, "middle 1")]


def test_an_interrupt_asks_for_a_set_and_stops_everybody(run):
    def script(world):
        def interrupted():
            if world.now > 1002:
                world.beats.clear()
                raise KeyboardInterrupt
            return Ref(beat(5))

        world.beats["top", 0] = interrupted
        world.runs["bottom", 0] = lambda: Ref(summary("bottom"), 1004.0)

    done = run(script)
    assert done.outcome.status == 130
    _, asked, _ = done.world.told("keeper", "begin")[-1]
    assert set(asked) == {"bottom", "middle", "top"}
    for name in asked:
        methods = [what for called, what, _ in done.world.calls if called == f"{name} 0"]
        assert methods.index("stop") < methods.index("save")  # the set holds the last step
    assert done.outcome.learners["bottom"].steps == 10
