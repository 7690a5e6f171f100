"""Whatever is cut or flipped, what stood before it is read and its place is said; a replay comes to the same bits."""

import importlib.util
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import checkpoint, log, snapshots
from learners.group import parcels
from learners.group.alike import group_digest
from learners.group.parcels import Holds
from learners.group.replay import Ended, Mark, Replay, Unlike
from learners.group.sums import Sums
from learners.rbd.clocks import Clock, Name, Taken
from learners.rbd.replica import Update

place = Path(__file__).parents[1] / "learners" / "group_world.py"
spec = importlib.util.spec_from_file_location("group_world", place)
world = importlib.util.module_from_spec(spec)
spec.loader.exec_module(world)
START, read = world.START, world.read
TRAITS = {"seed": "7", "network": "abc"}


def updates(count=12, senders=3):
    """In turn, with honest sums."""
    running, found = dict.fromkeys(range(senders), 0), []
    for n in range(count):
        name = Name(n % senders, 0, n // senders)
        update = Update(name, (world.coordinates(name),))
        running[name.sender] += START.digest_of(update)
        found.append(parcels.packed(update, "sign", n, running[name.sender]))
    return found


MADE = updates()


def mark(sents, node=1):
    replica = START.apply(map(read, sents))
    return Mark(node, replica.clock, replica.digest)


ENTRIES = [
    *((sent,) for sent in MADE[:3]),
    mark(MADE[:3]),
    tuple(MADE[3:9]),
    Ended((2, 0), Taken(4)),
    tuple(MADE[9:]),
    mark(MADE),
]


def written(folder, entries=ENTRIES, traits=TRAITS, **more):
    made = log.Log(folder, traits, **more)
    made.append(*entries)
    made.close()
    return folder / log.NAME


def readable(path):
    """Entries, and what ended them."""
    found = []
    try:
        for _, entry in log.read(path):
            found.append(entry)
    except log.Damaged as damage:
        return found, damage
    return found, None


def test_entries_come_back(tmp_path):
    path = written(tmp_path)
    assert readable(path) == (ENTRIES, None)
    assert log.header(path).traits == TRAITS
    ends = [end for end, _ in log.read(path)]
    assert ends[-1] == path.stat().st_size
    assert [entry for _, entry in log.read(path, ends[3])] == ENTRIES[4:]


def test_cut_at_every_byte_what_is_before_is_read_and_a_writer_goes_on(tmp_path):
    content = written(tmp_path / "whole").read_bytes()
    ends = [end for end, _ in log.read(tmp_path / "whole" / log.NAME)]
    for size in range(len(content)):
        folder = tmp_path / "cut"
        folder.mkdir(exist_ok=True)
        path = folder / log.NAME
        path.write_bytes(content[:size])
        found, damage = readable(path)
        whole = sum(end <= size for end in ends)
        assert found == ENTRIES[:whole]
        if damage:
            assert damage.end <= size and f"damaged at byte {damage.end}" in str(damage)
        made = log.Log(folder, TRAITS)
        assert bool(made.fault) == bool(damage or size == 0)
        made.append(*ENTRIES[whole:])
        made.close()
        assert readable(path) == (ENTRIES, None)
        assert made.holds.clock == START.apply(map(read, MADE)).clock and made.sums == Sums().add(MADE)


def test_each_flipped_byte_ends_the_reading_where_it_is(tmp_path):
    path = written(tmp_path)
    content = path.read_bytes()
    starts = [0, *(end for end, _ in log.read(path))]
    starts[0] = starts[1] - (starts[2] - starts[1])  # the header ends where the first update, of equal size, begins
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 0x10
        path.write_bytes(flipped)
        found, damage = readable(path)
        whole = max(0, sum(start <= at for start in starts) - 1)
        assert found == (ENTRIES[:whole] if at >= starts[0] else [])
        assert damage.end == (starts[whole] if at >= starts[0] else 0)


def test_what_is_damaged_is_put_aside_with_the_snapshots_that_go_with_it(tmp_path):
    path = written(tmp_path)
    content = path.read_bytes()
    ends = [end for end, _ in log.read(path)]
    replica = START.apply(map(read, MADE))
    snapshots.write(tmp_path, TRAITS, snapshots.Snapshot(replica, Holds(replica.clock), Sums().add(MADE), ends[-1]))
    flipped = bytearray(content)
    flipped[ends[4] + 20] ^= 1
    path.write_bytes(flipped)
    made = log.Log(tmp_path, TRAITS)
    assert f"damaged at byte {ends[4]}" in made.fault and made.end == ends[4] == path.stat().st_size
    (aside,) = [found for found in tmp_path.glob("damaged-*") if not found.suffix]
    assert aside.read_bytes() == bytes(flipped[ends[4] :])
    assert snapshots.newest(tmp_path, TRAITS, START)[0].end == 0


def test_a_log_of_another_group_or_format_is_refused_and_left_as_it_is(tmp_path):
    path = written(tmp_path)
    content = path.read_bytes()
    with pytest.raises(ValueError, match="of another group: seed: 8 came, 7 was wanted|seed: 7 came, 8 was wanted"):
        log.Log(tmp_path, {**TRAITS, "seed": "8"})
    assert path.read_bytes() == content
    path.write_bytes(log._framed(0, msgspec.json.encode(log.Header(9, TRAITS))))
    with pytest.raises(ValueError, match="format 9; 1 was wanted"):
        log.Log(tmp_path, TRAITS)


def test_records_are_on_the_disk_in_time_and_not_synced_one_by_one(tmp_path, monkeypatch):
    now, synced = [0.0], []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(now[0]) or fsync(file))
    made = log.Log(tmp_path, TRAITS, clock=lambda: now[0])
    synced.clear()
    for n in range(40):
        now[0] = 1.0 + n / 10
        made.append((MADE[0]._replace(name=Name(9, 0, n)),))
    assert synced == pytest.approx([2.0, 3.1, 4.2])  # a second after the first that was not on the disk
    made.sync_if_due()
    now[0] += 1.0
    made.sync_if_due()
    made.sync_if_due()
    assert len(synced) == 4


def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch):
    made = log.Log(tmp_path, TRAITS)
    made.append(*ENTRIES[:2])
    pwrite, left = os.pwrite, [30]

    def full(file, content, at):
        if left[0] <= 0:
            raise OSError(28, "No space left on device")
        left[0] -= len(content[:20])
        return pwrite(file, content[:20], at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            made.append(*ENTRIES[2:])
    assert made.holds.clock == Clock().add(sent.name for sent in MADE[:2])
    made.append(*ENTRIES[2:])
    made.close()
    assert readable(tmp_path / log.NAME) == (ENTRIES, None)


# ---------------------------------------------------------------- replay


@given(st.permutations(MADE), st.lists(st.integers(1, 5), max_size=4), st.integers(0, 12))
@settings(max_examples=50, deadline=None)
def test_a_replay_has_the_bits_of_its_clock_in_any_order(order, sizes, count):
    entries, rest = [], list(order)
    for size in sizes:
        entries, rest = [*entries, tuple(rest[:size])], rest[size:]
    entries += [tuple(rest), mark(MADE), tuple(order[:3])]  # some come twice
    wanted = START.apply(map(read, MADE))
    replay = Replay(START, read)
    replay.take(entries)
    found = replay.done()
    assert found.replica.digest == wanted.digest and found.updates == len(MADE) and found.marks == 1
    clock = START.apply(map(read, MADE[:count])).clock
    replay = Replay(START, read, upto=clock)
    replay.take(entries)
    assert replay.done().replica.digest == START.apply(map(read, MADE[:count])).digest


def test_marks_of_clocks_that_no_prefix_has_are_compared_by_sums():
    aside = [MADE[0], MADE[3], MADE[1]]  # two of worker 0, one of worker 1, none of worker 2
    replay = Replay(START, read)
    replay.take([tuple(MADE), mark(aside)])
    assert replay.done().marks == 1
    replay = Replay(START, read)
    with pytest.raises(Unlike, match="member 1 has recorded"):
        replay.take([tuple(MADE), Mark(1, mark(aside).clock, mark(aside).digest + 1)])


def test_what_is_missing_changed_or_recorded_otherwise_ends_a_replay_by_name():
    replay = Replay(START, read)
    replay.take([tuple(MADE[:4] + MADE[5:])])
    with pytest.raises(Unlike, match=r"Name\(sender=1, incarnation=0, sequence=1\) and 0 more"):
        replay.done()
    replay = Replay(START, read, upto=mark(MADE).clock)
    replay.take([tuple(MADE[:-2])])
    with pytest.raises(Unlike, match=r"Name\(sender=1, incarnation=0, sequence=3\) and 0 more"):
        replay.done()
    replay = Replay(START, read)
    replay.take([tuple(MADE[:-1]), Ended((2, 0), Taken(4))])
    with pytest.raises(Unlike, match="sender=2, incarnation=0, sequence=3"):
        replay.done()
    replay = Replay(START, read)
    replay.take([tuple(MADE[:-1]), (MADE[-1]._replace(payload=MADE[-2].payload),)])
    with pytest.raises(Unlike, match="is what their senders say"):
        replay.done()
    replay = Replay(START, read)
    with pytest.raises(Unlike, match="member 4 has recorded digest 5"):
        replay.take([tuple(MADE), Mark(4, mark(MADE).clock, 5)])


def test_a_hole_that_a_closed_incarnation_has_is_none():
    replay = Replay(START, read)
    replay.take([tuple(MADE[:4] + MADE[5:]), Ended((1, 0), Taken(1, frozenset([2, 3])))])
    assert replay.done().updates == len(MADE) - 1


@pytest.mark.parametrize("at", [2, 4, 6])
def test_a_snapshot_and_the_tail_are_the_whole(tmp_path, at):
    path = written(tmp_path)
    places = list(log.read(path))
    replay = Replay(START, read)
    replay.take(entry for _, entry in places[: at + 1])
    done = replay.done(whole=False)
    snapshots.write(tmp_path, TRAITS, snapshots.Snapshot(done.replica, done.holds, done.sums, places[at][0]))
    found, ignored = snapshots.newest(tmp_path, TRAITS, START)
    assert not ignored and found.end == places[at][0]
    assert (found.holds, found.sums, found.replica.digest) == (done.holds, done.sums, done.replica.digest)
    replay = Replay(found.replica, read, holds=found.holds, sums=found.sums)
    replay.take(log.entries(path, found.end))
    after = replay.done()
    assert after.replica.digest == START.apply(map(read, MADE)).digest
    assert after.marks == 1 + (at < 3)
    assert after.updates + len([n for n in MADE if n.name in done.replica.clock]) == len(MADE)


def test_a_damaged_snapshot_is_ignored_and_named_and_old_ones_go(tmp_path):
    paths = []
    for count in (3, 6, 9):
        replica = START.apply(map(read, MADE[:count]))
        taken = snapshots.Snapshot(
            replica, Holds(replica.clock, {(2, 0): Taken(1)}), Sums().add(MADE[:count]), 100 * count
        )
        paths.append(snapshots.write(tmp_path, TRAITS, taken))
    assert [path.exists() for path in paths] == [False, True, True]
    upto = START.apply(map(read, MADE[:7])).clock
    assert snapshots.newest(tmp_path, TRAITS, START, upto)[0].end == 600
    for damaged in (paths[2].read_bytes()[:50], _with_another_weight(paths[2])):
        paths[2].write_bytes(damaged)
        found, ignored = snapshots.newest(tmp_path, TRAITS, START)
        assert found.end == 600 and found.holds.closed == {(2, 0): Taken(1)}
        assert len(ignored) == 1 and ignored[0].startswith(f"{paths[2].name} is ignored: ")
    assert snapshots.newest(tmp_path, {"seed": "8"}, START)[0].end == 0


def _with_another_weight(path):
    replica = START.apply(map(read, MADE[:9]))
    state = {f"replica/{name}": np.array(array) for name, array in replica.save().items()}
    state["replica/moved"][0] += 1
    state |= {"holds": np.array(parcels.rows(Holds(replica.clock)), np.int64), "sums": Sums().save()}
    about = {"format": 1, "group": group_digest(TRAITS).hex(), "end": 900, "digest": replica.digest}
    return checkpoint.pack(state, about)
