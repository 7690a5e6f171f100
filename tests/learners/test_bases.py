"""Random bases: the generator against its published answers, kernels against the slow way, and what E must be."""

import hashlib
import importlib.util
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from learners import bases
from learners.bases import Basis, Key, entries, hadamard, kept
from learners.bases.philox import WIDTHS, Domain, blocks, stream
from learners.bases.vectors import I64, emitted

spec = importlib.util.spec_from_file_location("slow_bases", Path(__file__).with_name("slow_bases.py"))
slow = importlib.util.module_from_spec(spec)
spec.loader.exec_module(slow)

DISTRIBUTIONS = ("rademacher", "hadamard", "uniform", "normal", "lognormal")
each_distribution = pytest.mark.parametrize("distribution", DISTRIBUTIONS)
keys = st.builds(Key, *(st.integers(0, 2**width - 1) for width in WIDTHS))
#: Random123's kat_vectors, the lines of philox4x32: rounds, counter, key, answer
ANSWERS = """
7 00000000 00000000 00000000 00000000 00000000 00000000   5f6fb709 0d893f64 4f121f81 4f730a48
7 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff   5207ddc2 45165e59 4d8ee751 8c52f662
7 243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0   4dfccaba 190a87f0 c47362ba b6b5242a
10 00000000 00000000 00000000 00000000 00000000 00000000   6627e8d5 e169c58d bc57ac4c 9b00dbd8
10 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff   408f276d 41c83b0e a20bc7c6 6d5451fd
10 243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0   d16cfe09 94fdcceb 5001e420 24126ea1
""".strip().splitlines()


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------- the generator


def _emit_philox(rounds):
    def write(code, given, out):
        row, column, *at = (code.load(given, I64(n), I64) for n in range(6))
        for n, pair in enumerate(blocks(code, row, column, [I64(0), *at], rounds)):
            code.store(pair, out, I64(2 * n))

    return emitted(write)


PHILOX = {rounds: _emit_philox(rounds) for rounds in (7, 10)}


@pytest.mark.parametrize("line", ANSWERS)
def test_the_generator_gives_the_published_answers(line):
    rounds, *rest = line.split()
    given = np.array([int(word, 16) for word in rest[:6]], np.uint64)
    write = PHILOX[int(rounds)]

    @numba.njit
    def run(given, out):
        write((given, out))

    out = np.zeros(4, np.uint32)
    run(given, out)
    assert [f"{word:08x}" for word in out[[1, 0, 3, 2]]] == rest[6:]
    assert [f"{int(word):08x}" for word in slow.philox(given[:4], given[4:], int(rounds))] == rest[6:]


@given(keys, keys)
@example(Key(0, 0, 2**32, 0), Key(0, 1, 0, 0))
@example(Key(0, 0, 0, 1), Key(0, 0, 1, 0))
def test_two_keys_never_share_a_stream(key, other):
    assert (stream(key, 0).tobytes() == stream(other, 0).tobytes()) == (key == other)
    assert len({stream(key, domain).tobytes() for domain in range(4)}) == 4


@given(keys, st.integers(0, 15))
def test_a_stream_leaves_room_for_columns_and_fits_the_words(key, domain):
    places = stream(key, domain)
    assert (places < 2**32).all()
    assert places[0] % 2**16 == 0


@pytest.mark.parametrize("field", Key._fields)
def test_a_key_out_of_range_is_refused_by_name(field):
    for value in (-1, 2 ** getattr(WIDTHS, field)):
        with pytest.raises(ValueError, match=f"key.{field}: {value}"):
            stream(Key(1)._replace(**{field: value}), Domain.WORDS)


def test_the_quantiles_have_the_bits_of_every_other_machine():
    # They come from the standard library's arithmetic; another digest is another basis.
    assert hashlib.sha256(entries.QUANTILES.tobytes()).hexdigest()[:16] == "c3dcc1c039b051ba"


# ---------------------------------------------------------------- against the slow way

shapes = st.tuples(st.integers(1, 700), st.integers(1, 300))


@settings(deadline=None, max_examples=25)
@given(shapes, st.sampled_from(("rademacher", "uniform", "normal", "lognormal")), keys)
@example((64, 256), "rademacher", Key(1))
@example((65, 257), "rademacher", Key(1))
@example((1, 1), "rademacher", Key(1))
@example((2100, 40), "rademacher", Key(1))
@example((2100, 600), "rademacher", Key(2))
@example((15, 33), "normal", Key(1))
def test_project_and_expand_are_the_slow_ones_to_the_bit(shape, distribution, key):
    size, d = shape
    basis = Basis(d, distribution)
    matrix = kept.draw(basis, key, size)
    assert np.allclose(matrix, slow.matrix(basis, key, size), rtol=2e-4, atol=5e-5)
    if distribution == "rademacher":
        assert np.array_equal(matrix, slow.matrix(basis, key, size))
    gradient, coordinates = numbers(1, size), numbers(2, d)
    assert np.array_equal(bases.project(basis, key, gradient), slow.project(basis, matrix, gradient))
    assert np.array_equal(bases.expand(basis, key, coordinates, size), slow.expand(basis, matrix, coordinates))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 3000), st.integers(1, 60), keys)
@example(1, 1, Key(3))
@example(1024, 1, Key(3))
@example(2048, 50, Key(3))
def test_hadamard_is_the_slow_one(size, d, key):
    basis = Basis(min(size, d), "hadamard")
    matrix = slow.matrix(basis, key, size)
    gradient, coordinates = numbers(1, size), numbers(2, basis.dimensions)
    assert np.array_equal(kept.draw(basis, key, size), matrix)
    assert np.allclose(bases.project(basis, key, gradient), matrix.T @ gradient, atol=1e-3)
    assert np.allclose(bases.expand(basis, key, coordinates, size), matrix @ coordinates, atol=1e-3)


@pytest.mark.parametrize("length", [2**k for k in range(10, 19)])
def test_the_transform_is_its_own_inverse_for_every_split_into_passes(length):
    whole = np.random.default_rng(3).integers(-8, 8, length).astype(np.float32)
    data, at = whole.copy(), stream(Key(5), Domain.SIGNS)
    hadamard.transform(data, at, True)
    assert not np.array_equal(data, whole)
    hadamard.transform(data, at, False)
    assert np.array_equal(data, whole * length)


@each_distribution
@pytest.mark.parametrize("normalize", ["constant", "column", "none"])
@pytest.mark.parametrize("antithetic", [False, True])
def test_project_is_the_adjoint_of_expand_and_of_what_is_drawn(distribution, normalize, antithetic):
    basis, key = Basis(38, distribution, normalize, antithetic), Key(11, 2, 3, 4)
    matrix = kept.draw(basis, key, 501).astype(float)
    g, c = numbers(1, 501), numbers(2, 38)
    forth, back = bases.project(basis, key, g), bases.expand(basis, key, c, 501)
    assert np.dot(back.astype(float), g) == pytest.approx(np.dot(c, forth.astype(float)), rel=1e-3)
    assert np.allclose(forth, matrix.T @ g, atol=2e-3)
    assert np.allclose(back, matrix @ c, atol=2e-4)
    if normalize == "column":
        assert np.allclose(np.linalg.norm(matrix, axis=0), np.sqrt(501), rtol=1e-5)
    if antithetic:
        assert np.array_equal(matrix[:, ::2], -matrix[:, 1::2])


@settings(deadline=None, max_examples=20)
@given(shapes, st.sampled_from(("rademacher", "uniform", "normal")), st.booleans())
@example((130, 7), "rademacher", False)
def test_keeping_a_basis_changes_no_bit(shape, distribution, antithetic):
    size, d = shape[0], 2 * shape[1]
    basis, key = Basis(d, distribution, antithetic=antithetic), Key(4, 1)
    matrix, g, c = kept.draw(basis, key, size), numbers(1, size), numbers(2, d)
    assert np.array_equal(kept.project_kept(basis, matrix, g), bases.project(basis, key, g))
    assert np.array_equal(kept.expand_kept(basis, matrix, c), bases.expand(basis, key, c, size))


@pytest.mark.parametrize("distribution", ["rademacher", "hadamard"])
def test_whole_coordinates_sum_exactly_in_any_order_and_grouping(distribution):
    basis, size = Basis(50, distribution), 5000
    draws = np.random.default_rng(1)
    many = [Key(9, worker, step) for worker in range(3) for step in range(7)]
    c = draws.integers(-127, 128, (21, 50)).astype(np.float32)
    at_once = bases.expand_many(basis, many, c, size)
    exact = sum(
        kept.draw(basis, key, size).astype(np.int64) @ row.astype(np.int64) for key, row in zip(many, c, strict=True)
    )
    assert np.array_equal(at_once, exact)
    order = draws.permutation(21)
    assert np.array_equal(at_once, bases.expand_many(basis, [many[n] for n in order], c[order], size))
    singly = np.zeros(size, np.float32)
    for n in order:
        singly += bases.expand(basis, many[n], c[n], size)
    assert np.array_equal(at_once, singly)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("basis", "size", "said"),
    [
        (Basis(0), 5, "basis.dimensions: 0"),
        (Basis(2**18 + 1), 5, "wanted 1 to 262,144"),
        (Basis(3, antithetic=True), 5, "an even number"),
        (Basis(6, "hadamard"), 5, "6 orthogonal directions of 5 weights"),
        (Basis(6, "bernoulli"), 5, "'bernoulli' is not one of rademacher"),
        (Basis(6, normalize="row"), 5, "'row' is not one of constant"),
        (Basis(6), 0, "0 weights"),
    ],
)
def test_a_basis_that_cannot_be_is_refused(basis, size, said):
    with pytest.raises(ValueError, match=said):
        bases.scale(basis, size)
    with pytest.raises(ValueError, match=said):
        bases.expand(basis, Key(1), np.zeros(basis.dimensions, np.float32), size)


def test_arrays_of_another_type_or_shape_are_refused():
    with pytest.raises(ValueError, match=r"gradient: float64\[5\] came; wanted an array float32 of 1 axes"):
        bases.project(Basis(2), Key(1), np.zeros(5))
    with pytest.raises(ValueError, match=r"gradient: float32\[5, 1\] came"):
        bases.project(Basis(2), Key(1), np.zeros((5, 1), np.float32))
    with pytest.raises(ValueError, match=r"the shape is \(1, 3\); wanted \(keys, dimensions\) = \(1, 2\)"):
        bases.expand(Basis(2), Key(1), np.zeros(3, np.float32), 5)


@each_distribution
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_poisoned_gradient_shows_in_every_coordinate(distribution, poison):
    gradient = numbers(1, 300)
    gradient[133] = poison
    assert not np.isfinite(bases.project(Basis(40, distribution), Key(1), gradient)).any()


def test_a_gradient_that_is_not_contiguous_is_the_same_gradient():
    gradient = numbers(1, 600)
    assert np.array_equal(
        bases.project(Basis(9), Key(1), gradient[::2]), bases.project(Basis(9), Key(1), gradient[::2].copy())
    )


def test_no_keys_sum_to_nothing():
    assert not bases.expand_many(Basis(3), [], np.zeros((0, 3), np.float32), 10).any()


@pytest.mark.parametrize(
    ("basis", "size", "wanted"),
    [
        (Basis(3), 10, 1 / 10),
        (Basis(3, normalize="column"), 10, 1 / 10),
        (Basis(3, normalize="none"), 10, 1.0),
        (Basis(3, "hadamard"), 10, 1 / 16),
        (Basis(3, "hadamard"), 16, 1 / 16),
        (Basis(3, "hadamard"), 101_770, 2.0**-17),
    ],
)
def test_the_scale_of_an_update(basis, size, wanted):
    assert bases.scale(basis, size) == wanted
