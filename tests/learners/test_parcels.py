"""What travels comes back exactly, or is refused as a whole and in words."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learners.group import parcels
from learners.group.parcels import ENVELOPE, HEADER, Holds, Parcel, Sent
from learners.rbd.clocks import Clock, Name, Taken
from learners.rbd.coordinates import BITS, payload_bytes, quantise
from learners.rbd.replica import Patch, Update

GROUP = b"mygroup!"
names = st.builds(Name, st.integers(0, 2**16 - 2), st.integers(0, 2**12 - 1), st.integers(0, 2**32 - 1))
words = st.integers(0, 2**32 - 1)
sent = st.builds(Sent, names, words, words, st.binary(max_size=40), st.booleans())
few = st.builds(Name, st.integers(0, 3), st.integers(0, 2), st.integers(0, 9))
clocks = st.lists(few, unique=True, max_size=20).map(lambda found: Clock().add(found))
holds = st.builds(lambda clock, closed, logged: Holds(clock, closed.taken, logged), clocks, clocks, clocks)
whole = st.builds(
    Parcel,
    st.integers(-4, 2**16),
    st.integers(0, 2**12 - 1),
    st.lists(sent, max_size=6).map(tuple),
    st.none() | holds,
)


@given(whole)
def test_a_parcel_comes_back(parcel):
    content = parcels.encode(parcel, GROUP)
    assert parcels.decode(content, GROUP) == parcel
    rows = 0 if parcel.holds is None else len(parcels.rows(parcel.holds))
    assert len(content) == ENVELOPE + 9 * rows + len(parcel.updates) * HEADER + parcel.payload


@given(whole, st.data())
@settings(max_examples=200)
def test_cut_or_flipped_anywhere_it_is_refused(parcel, data):
    content = parcels.encode(parcel, GROUP)
    at = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(ValueError, match="^parcel: "):
        parcels.decode(content[:at], GROUP)
    flipped = bytearray(content)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match="^parcel: "):
        parcels.decode(bytes(flipped), GROUP)


def test_another_group_and_another_format_are_named():
    content = parcels.encode(Parcel(0, 0), GROUP)
    with pytest.raises(ValueError, match="another seed, network, basis or version"):
        parcels.decode(content, b"notmine!")
    with pytest.raises(ValueError, match="format 9 came, 1 was wanted"):
        parcels.decode(content[:2] + b"\x09" + content[3:], GROUP)


@pytest.mark.parametrize("precision", BITS)
@given(data=st.data())
@settings(max_examples=30)
def test_an_update_comes_back_with_every_precision_and_patch(precision, data):
    dimensions = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    chance = np.random.default_rng(data.draw(st.integers(0, 99)))
    parts = [quantise(chance.standard_normal(d), precision) for d in dimensions]
    patches = [Patch(3, 7, chance.standard_normal(4).astype(np.float32)), Patch(8, 9, None)]
    patches = patches[: data.draw(st.integers(0, 2))]
    if patches and data.draw(st.booleans()):
        parts = []
    update = Update(Name(1, 2, 3), tuple(parts), tuple(patches))
    one = parcels.packed(update, precision, 4, 2**40 + 5)
    assert one.running == 5 and one.seen == 4
    if parts and not patches:
        assert len(one.payload) == payload_bytes(dimensions, precision)
    back = parcels.unpacked(one, dimensions, precision, 20)
    assert back.name == update.name and len(back.parts) == len(parts)
    for mine, theirs in zip(parts, back.parts, strict=True):
        assert mine.exponent == theirs.exponent and np.array_equal(mine.values, theirs.values)
    for mine, theirs in zip(patches, back.patches, strict=True):
        assert mine[:2] == theirs[:2]
        assert (mine.values is None) == (theirs.values is None)
        assert mine.values is None or np.array_equal(mine.values, theirs.values)


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        (Patch(3, 30, None), "3 to 30 of 20"),
        (Patch(7, 7, None), "7 to 7"),
        (Patch(0, 2, np.array([1, np.nan], np.float32)), "NaN or infinity"),
    ],
)
def test_patches_that_no_member_makes_are_refused(patch, reason):
    one = parcels.packed(Update(Name(1, 0, 0), (), (patch,)), "float32", 0, 0)
    with pytest.raises(ValueError, match=reason):
        parcels.unpacked(one, [4], "float32", 20)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_update_or_refused_with_the_senders_name(payload):
    for patched in (False, True):
        try:
            found = parcels.unpacked(Sent(Name(5, 1, 7), 0, 0, payload, patched), [8, 3], "int4", 20)
            assert all(patch.stop <= 20 for patch in found.patches)
        except ValueError as error:
            assert "sender=5" in str(error)


def test_thirteen_payload_bytes_a_worker_step():
    """H = 10, d = 1,000, sign."""
    update = Update(Name(0, 0, 0), (quantise(np.linspace(-1, 1, 1000), "sign"),))
    assert len(parcels.packed(update, "sign", 0, 0).payload) / 10 <= 13


def test_a_clock_of_rows_out_of_place_is_refused():
    for table in ([(0, 0, 3, 1)], [(0, 0, 3, 0), (0, 0, 3, 0)], [(0, 0, 3, 6)]):
        with pytest.raises(ValueError, match="out of place"):
            parcels.from_rows(table)
    assert parcels.from_rows([(0, 0, 3, 2)]).closed == {(0, 0): Taken(3)}
