"""The supervisor of a group, in a world of fakes: who is told what, and when."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from learners.options import Topology
from learners.rbd.clocks import Clock, Taken
from learners.rbd.options import Exchange, Local, Rbd, Sgd
from topology import groups as module
from topology import scaling
from topology.members import Member
from topology.outcome import Outcome, Reached


class RayError(Exception):
    pass


class Ref:
    def __init__(self, value=None, done=True):
        self.value, self.done = value, done


class World:
    """Stands for Ray and the crew."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self):
        self.calls, self.killed, self.relays, self.now = [], [], [], 100.0

    def actor(self, name, **answers):
        world = self

        class Handle:
            def __getattr__(self, method):
                def remote(*given):
                    world.calls.append((name, method, given))
                    return answers[method]() if method in answers else Ref()

                return SimpleNamespace(remote=remote)

        return Handle()

    def relay(self, group, incarnation):
        one = SimpleNamespace(
            run=Ref(done=False), standing=standing(), name=f"relay {incarnation}", idle=0.0, ready=Ref("here")
        )
        one.actor = self.actor(
            one.name,
            ready=lambda: one.ready,
            run=lambda: one.run,
            beat=lambda: Ref((one.idle, one.standing)),
            open_ends=lambda: Ref(((0, 0), (1, 0))),
        )
        self.relays.append(one)
        return one.actor

    def wait(self, refs, num_returns=1, timeout=None):
        return [ref for ref in refs if ref.done], [ref for ref in refs if not ref.done]

    def get(self, ref, timeout=None):
        if isinstance(ref.value, Exception):
            raise ref.value
        return ref.value

    def kill(self, actor):
        self.killed.append(actor)

    def told(self, name, method):
        return [given for called, what, given in self.calls if (called, what) == (name, method)]


def standing(done=False, holding=(), accused=(), clock=None, fault=""):
    return SimpleNamespace(clock=clock or Clock(), holding=dict(holding), accused=accused, done=done, fault=fault)


class Run:
    """A group of workers that run."""

    def __init__(self, monkeypatch, replicas=3, mode="async", resumed=False):
        self.world, self.said, self.lost, self.members = World(), [], [], {}
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.world.now))
        exchange = Exchange(mode=mode, residual="local", every=10, precision="sign")
        worker = Rbd(replicas=replicas, exchange=exchange)
        topology = Topology(version=1, name="x", learners={"w": worker})

        def lose(*given):
            self.lost.append(given)

        about = (self.world, "w", topology, self.world, self.members, lose, self.said.append, resumed, {})
        self.group = module.Group(*about)
        self.group.await_relay()
        for name in topology.members:
            self.start(name, 0)
            self.members[name].state = "running"
        self.group.begin()

    def start(self, name, incarnation):
        actor = self.world.actor(f"{name} {incarnation}")
        self.members[name] = Member(name, incarnation, actor, None, 0.0, 0)
        return self.members[name]

    def turn(self):
        """Time passes; the relay has answered."""
        for _ in range(2):
            self.world.now += 1.0
            self.group.turn()

    @property
    def relay(self):
        return self.world.relays[-1]

    def dies(self, name):
        member = self.members[name]
        self.group.lost(member)
        return self.start(name, member.incarnation + 1)


@pytest.fixture
def run(monkeypatch):
    return lambda **options: Run(monkeypatch, **options)


def test_an_incarnation_is_closed_when_the_log_has_all_that_the_living_have(run):
    one = run()
    fresh = one.dies("w/1")
    assert one.world.told("relay 0", "gone") == [(1,)]
    one.turn()
    assert all(one.world.told(name, "ending") for name in ("relay 0", "w/0 0", "w/2 0"))
    assert not one.world.told("w/1 1", "ending")
    one.relay.standing = standing(holding={(1, 0): Taken(4)})
    one.group.heard(one.members["w/0"], standing(holding={(1, 0): Taken(4)}))
    one.turn()
    assert not one.world.told("relay 0", "close")  # the third has not said
    one.group.heard(one.members["w/2"], standing(holding={(1, 0): Taken(5)}))
    one.turn()
    assert not one.world.told("relay 0", "close") and not one.group.returns(fresh)  # and has one more
    one.relay.standing = standing(holding={(1, 0): Taken(5)})
    one.turn()
    assert one.world.told("relay 0", "close") == [((1, 0),)]
    assert one.group.returns(fresh) and one.world.told("relay 0", "open")[-1] == (1, 1, fresh.actor)


def test_who_comes_back_to_a_synchronous_group_begins_with_a_round_that_nobody_has_begun(run):
    one = run(replicas=2, mode="sync")
    assert one.world.told("relay 0", "joined") == [(0, 0, 0), (1, 0, 0)]
    fresh = one.dies("w/1")
    one.turn()
    assert not one.group.returns(fresh)
    one.relay.standing = standing(holding={(1, 0): Taken(7)})
    one.group.heard(one.members["w/0"], standing(holding={(1, 0): Taken(7)}))
    one.turn()
    assert not one.world.told("relay 0", "close")  # the others wait
    assert one.group.returns(fresh)
    assert one.world.told("w/0 0", "joined") == [(1, 1, 8)] and one.world.told("relay 0", "close") == [((1, 0),)]
    order = [what for _, what, _ in one.world.calls]
    assert order.index("close") > max(i for i, what in enumerate(order) if what == "joined")
    assert one.group.place(fresh).first == 8 and (0, 0, 0) in one.group.place(fresh).joined


@pytest.mark.parametrize("how", ["dies", "hangs", "is silent"])
def test_a_relay_that_is_lost_has_a_successor_that_is_told_everything(run, how):
    one = run()
    one.group.heard(one.members["w/2"], standing(done=True))
    one.dies("w/1")
    one.turn()
    if how == "dies":
        one.relay.run.value, one.relay.run.done = RayError("dead"), True
    elif how == "hangs":
        one.relay.idle = 99.0
    else:
        one.group.relay.beat = Ref(done=False)
        one.world.now += 60
    one.turn()
    assert len(one.world.relays) == 2 and one.world.told("w/0 0", "gone") == [()]
    one.turn()
    relay = one.world.relays[1]
    assert one.world.told("w/0 0", "open") == [(1, relay.actor)]
    assert [given[:2] for given in one.world.told("relay 1", "open")] == [(0, 0), (2, 0)]
    assert one.world.told("relay 1", "close") == [((2, 0),)]  # who is done is closed there too
    one.turn()
    assert one.world.told("relay 1", "ending")[0] == ((1, 0),)
    assert [line for line in one.said if "relay" in line][-1] == "w: its relay is back"


def test_a_relay_that_never_starts_ends_the_run_in_words(run):
    one = run()
    one.relay.run.value, one.relay.run.done = RayError("dead"), True
    start = one.world.relay

    def broken(*given):
        handle = start(*given)
        one.world.relays[-1].ready.value = RayError("no room on the disk")
        return handle

    one.world.relay = broken
    with pytest.raises(RuntimeError, match="learners.w: its relay does not start: .*no room on the disk"):
        for _ in range(9):
            one.turn()
    assert len(one.world.relays) == 1 + module.ATTEMPTS


def test_all_are_told_with_what_to_end_once_all_have_made_everything(run):
    one = run(replicas=2)
    one.group.heard(one.members["w/0"], standing(done=True))
    one.turn()
    assert not one.world.told("w/0 0", "finish")
    one.group.heard(one.members["w/1"], standing(done=True))
    one.relay.standing = standing(clock=Clock({(0, 0): Taken(3), (1, 0): Taken(3)}))
    for _ in range(3):
        one.turn()
    for number in (0, 1):
        assert one.world.told(f"w/{number} 0", "finish") == [(one.relay.standing.clock,)]
    assert sorted(one.world.told("relay 0", "close")) == [((0, 0),), ((1, 0),)]


def test_who_sends_what_no_member_sends_is_lost_with_a_reason(run):
    one = run()
    one.group.heard(one.members["w/0"], standing(accused=[((2, 0), "NaN")]))
    one.group.heard(one.members["w/1"], standing(accused=[((2, 7), "of an incarnation that is not there")]))
    assert one.lost == [(one.members["w/2"], "an update was refused by w/0: NaN")]


def test_incarnations_of_a_run_that_was_killed_are_closed_at_what_the_log_has(run):
    one = run(resumed=True)
    assert one.world.told("relay 0", "close") == [((0, 0),), ((1, 0),)]


def reached(digest, status="done"):
    return Reached(status, 10, 1.0, {}, 0, 0, {}, {"in clock": 6}, digest=digest)


@pytest.mark.parametrize(
    "digests, status, words",
    [
        (("aa", "aa", "aa"), 0, "w: 3 replicas of 6 updates: equal digests, aa"),
        (("aa", "ab", "aa"), 1, "learners.w: replicas differ: w/0 aa, w/1 ab, w/2 aa"),
        (("aa", None, "aa"), 0, "w: 2 replicas of 6 updates: equal digests, aa"),
    ],
)
def test_the_verdict_is_one_line_and_the_status(run, tmp_path, digests, status, words):
    one, outcome = run(), Outcome(tmp_path)
    for name, digest in zip(one.members, digests, strict=True):
        outcome.learners[name] = reached(digest or "cc", "done" if digest else "stopped")
    one.group.verdict(outcome)
    assert (outcome.status, one.said[-1]) == (status, words)


def test_the_free_numbers_come_and_the_last_ones_go(run):
    one = run()
    for name, step in (("w/0", 57), ("w/1", 40), ("w/2", 90)):
        one.members[name].step = step
    assert one.group.changes(5) == (["w/3", "w/4"], [])
    come, go = one.group.changes(2)
    assert (come, [member.name for member in go]) == ([], ["w/2"])
    one.members["w/1"].state = "gone"
    assert one.group.changes(4)[0] == ["w/1", "w/3"]
    one.members["w/1"].state = "running"
    one.group.comes("w/3")
    assert one.group.place(one.start("w/3", 0)).offset == 40  # whole rounds, of the one that is furthest behind
    assert not one.group.known
    for name in ("w/0", "w/1", "w/2"):
        one.group.heard(one.members[name], standing())
    assert one.group.known


# ---------------------------------------------------------------- wishes


@pytest.mark.parametrize(
    "learner, replicas, words",
    [
        (Rbd(replicas=2), 4, ""),
        (Rbd(replicas=2), 1, "a group has 2 workers or more"),
        (Rbd(), 4, "not a group of workers"),
        (Rbd(replicas=2, exchange=Exchange(mode="sync")), 4, "a round that waits for all depends on the number"),
        (Local(replicas=2), 4, "an average depends on the number of workers"),
        (Sgd(replicas=2), 4, "an average"),
    ],
)
def test_what_depends_on_the_number_of_workers_is_not_scaled(learner, replicas, words):
    topology = Topology(version=1, name="x", learners={"w": learner})
    found = scaling.refusal(topology, "w", replicas)
    assert words in found and bool(words) == bool(found)


def test_a_wish_is_answered_once_and_what_was_wished_of_an_earlier_run_counts_no_more(tmp_path):
    before = scaling.Wishes(tmp_path)
    assert before.next() is None
    (tmp_path / scaling.WISH).write_text('{"number": "n1", "group": "w", "replicas": 4}')
    wish = before.next()
    assert (wish.group, wish.replicas, before.next()) == ("w", 4, None)
    assert scaling.Wishes(tmp_path).next() is None
    before.answer(wish, "no room")
    assert scaling._read(tmp_path / scaling.ANSWER)["refused"] == "no room"
    with pytest.raises(ValueError, match="has not answered"):
        scaling.ask(tmp_path, "w", 5, timedelta(), lambda: True)
