"""Statistics of the random bases, each with its level of significance.

Seeds are fixed, so a test passes or fails for good. The bounds are where a true generator would fail with the
probability said, 10^-6: z = 4.9 on two sides, and the bounds of chi squared and of Kolmogorov and Smirnov are for it.
"""

import math
from statistics import NormalDist

import numpy as np
import pytest

from learners import bases
from learners.bases import Basis, Key, kept

Z = 4.9
SIZE, D = 4096, 256
DENSE = ("uniform", "normal", "lognormal")
ALL = ("rademacher", "hadamard", *DENSE)
each = pytest.mark.parametrize("distribution", ALL)
#: fourth moment of the standardised distribution
KURTOSIS = {"rademacher": 1.0, "hadamard": 1.0, "uniform": 1.8, "normal": 3.0, "lognormal": 113.9}
NEIGHBOURS = {
    "seed": Key(8, 3, 100, 5),
    "upper seed": Key(7 + 2**32, 3, 100, 5),
    "worker": Key(7, 2, 100, 5),
    "sequence": Key(7, 3, 101, 5),
    "upper sequence": Key(7, 3, 100 + 2**32, 5),
    "compartment": Key(7, 3, 100, 4),
}
KEY = Key(7, 3, 100, 5)


@pytest.fixture(scope="module")
def drawn():
    """E of each distribution, [4096, 256], made once."""
    return {name: kept.draw(Basis(D, name), KEY, SIZE).astype(float) for name in ALL}


def chi_squared_bound(freedom):
    """Above which chi squared lies with probability 10^-6 (Wilson, Hilferty)."""
    third = 2 / (9 * freedom)
    return freedom * (1 - third + NormalDist().inv_cdf(1 - 1e-6) * math.sqrt(third)) ** 3


@each
def test_mean_and_variance_of_all_entries(drawn, distribution):
    # Hadamard's entries depend on each other; its mean is bounded as if they did not, which is cautious enough.
    entries = drawn[distribution].ravel()
    assert abs(entries.mean()) < Z / math.sqrt(entries.size)
    assert abs((entries**2).mean() - 1) <= Z * math.sqrt((KURTOSIS[distribution] - 1) / entries.size) + 1e-5


@pytest.mark.parametrize("distribution", ["rademacher", *DENSE])
@pytest.mark.parametrize("axis", [0, 1])
def test_no_row_and_no_column_has_a_mean_of_its_own(drawn, distribution, axis):
    # chi squared of the means; a heavy tail widens it by the kurtosis (Hadamard's columns do not sum each for itself)
    matrix = drawn[distribution]
    means = matrix.mean(axis=axis) * math.sqrt(matrix.shape[axis])
    count = means.size
    spread = math.sqrt(2 + (KURTOSIS[distribution] - 3) / matrix.shape[axis])
    assert abs((means**2).sum() - count) < Z * spread * math.sqrt(count)


def test_signs_come_in_equal_numbers_at_every_bit(drawn):
    # 128 bits of a block, each drawn 8,192 times: chi squared with 128 degrees of freedom
    plus = (drawn["rademacher"] > 0).reshape(64, 4, 16, 8, 8, 4)  # tile, b, lane, block, nibble, word
    counts = plus.sum(axis=(0, 2, 3)).ravel()
    draws = SIZE * D / 128
    assert ((counts - draws / 2) ** 2 / (draws / 4)).sum() < chi_squared_bound(128)


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_runs_of_signs_come_in_equal_numbers(drawn, size, axis):
    # each pattern of 4 or 8 neighbours down a column or along a row
    bits = (drawn["rademacher"] > 0).astype(int)
    bits = bits if axis else bits.T
    patterns = (bits.reshape(-1, size) * 2 ** np.arange(size)).sum(axis=1)
    counts, expected = np.bincount(patterns, minlength=2**size), len(patterns) / 2**size
    assert ((counts - expected) ** 2 / expected).sum() < chi_squared_bound(2**size - 1)


@pytest.mark.parametrize("distribution", DENSE)
def test_the_distribution_is_the_one_it_is_called(drawn, distribution):
    # Kolmogorov and Smirnov: P(sup > x / sqrt n) is about 2 exp(-2 x^2)
    entries = np.sort(drawn[distribution].ravel())
    if distribution == "uniform":
        true = entries / (2 * math.sqrt(3)) + 0.5
    else:
        if distribution == "lognormal":
            entries = np.log(entries * math.sqrt(math.e**2 - math.e) + math.sqrt(math.e))
        true = np.vectorize(NormalDist().cdf)(entries)
    steps = np.arange(entries.size + 1) / entries.size
    apart = max((steps[1:] - true).max(), (true - steps[:-1]).max())
    assert apart * math.sqrt(entries.size) < math.sqrt(math.log(2e6) / 2)


def test_the_normal_is_symmetric_with_the_right_tails(drawn):
    normal = drawn["normal"].ravel()
    n = normal.size
    assert abs((normal**3).mean()) < Z * math.sqrt(15 / n)
    assert abs((normal**4).mean() - 3) < Z * math.sqrt(96 / n)
    for bound in (2.0, 3.0, 4.0):
        p = 2 * NormalDist().cdf(-bound)
        assert abs((abs(normal) > bound).sum() - n * p) < Z * math.sqrt(n * p) + 1


@pytest.mark.parametrize("distribution", ["rademacher", "uniform", "normal", "lognormal"])
def test_cosines_of_columns_have_the_spread_of_chance(drawn, distribution):
    matrix = drawn[distribution]
    unit = matrix / np.linalg.norm(matrix, axis=0)
    cosines = (unit.T @ unit)[np.triu_indices(D, 1)] * math.sqrt(SIZE)
    assert math.sqrt((cosines**2).mean()) == pytest.approx(1, abs=0.02)
    assert abs(cosines.mean()) < Z / math.sqrt(cosines.size)
    rows = matrix[:256] / np.linalg.norm(matrix[:256], axis=1, keepdims=True)
    across = (rows @ rows.T)[np.triu_indices(256, 1)] * math.sqrt(D)
    assert math.sqrt((across**2).mean()) == pytest.approx(1, abs=0.02)


def test_hadamards_columns_are_orthogonal(drawn):
    assert np.array_equal(drawn["hadamard"].T @ drawn["hadamard"], SIZE * np.eye(D))


@each
@pytest.mark.parametrize("word", NEIGHBOURS)
def test_matrices_of_neighbouring_keys_are_independent(drawn, distribution, word):
    # the whole matrix, and each column with each; a pair of Hadamard's has 4,096 products, each some 16 times
    first, other = drawn[distribution], kept.draw(Basis(D, distribution), NEIGHBOURS[word], SIZE).astype(float)
    assert abs((first * other).sum()) < Z * math.sqrt(first.size)
    products = first.T @ other / math.sqrt(SIZE)
    alike = 17 if distribution == "hadamard" else 1
    assert abs(products.mean()) < Z * math.sqrt(alike / products.size)
    # a product's fourth moment is near that of a normal number's, save for the heavy tail
    heavy = 1 + KURTOSIS[distribution] ** 2 / SIZE
    assert abs((products**2).mean() - 1) < Z * math.sqrt(2 * alike * heavy / products.size) + 0.02


@each
def test_the_mean_projection_is_proportional_to_the_gradient(distribution):
    # E E^T g / (d D) of 400 draws: its part along g is |g|^2 / D ..., its other part is noise of a known size
    size, d, draws = 500, 64, 400
    g = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    g /= np.linalg.norm(g)
    total = np.zeros(size)
    for sequence in range(draws):
        basis, key = Basis(d, distribution), Key(21, 0, sequence)
        total += bases.expand(basis, key, bases.project(basis, key, g), size)
    mean = total / (draws * d)
    # one column adds x x^T g: its variance is |g|^2 in every direction, and (kurtosis + 1) g_r^2 more along the axes
    noise = math.sqrt((size + KURTOSIS[distribution] + 1) / (draws * d))
    assert np.linalg.norm(mean - g) < 1.15 * noise
    along = np.dot(mean, g)
    assert abs(along - 1) < Z * math.sqrt((2 + KURTOSIS[distribution] * (g**4).sum()) / (draws * d))
    assert np.corrcoef(mean - g, g)[0, 1] == pytest.approx(0, abs=Z / math.sqrt(size))


@pytest.mark.parametrize("length", [64, 1024])
def test_every_row_is_chosen_as_often_and_with_every_other(length):
    from learners.bases.hadamard import turned
    from learners.bases.philox import Domain, stream

    draws, count = 4000, 16
    chosen = np.array([turned(count, length, stream(Key(5, 0, n), Domain.ROWS)) for n in range(draws)], np.int64)
    assert all(len(set(row)) == count for row in chosen.tolist())
    counts, expected = np.bincount(chosen.ravel(), minlength=length), draws * count / length
    # without repetition the counts spread a little less
    assert ((counts - expected) ** 2 / expected).sum() < chi_squared_bound(length - 1)
    for a, b in ((0, 1), (0, 2), (3, 11)):
        apart = np.bincount((chosen[:, a] - chosen[:, b]) % length, minlength=length)[1:]
        expected = draws / (length - 1)
        assert ((apart - expected) ** 2 / expected).sum() < chi_squared_bound(length - 2)
    assert sorted(turned(length, length, stream(Key(6), Domain.ROWS))) == list(range(length))


def test_antithetic_pairs_and_halves_are_what_they_say():
    whole = kept.draw(Basis(8, "normal", antithetic=True), KEY, 50)
    assert np.array_equal(whole[:, 1::2], -whole[:, ::2])
    assert np.array_equal(whole[:, ::2], kept.draw(Basis(4, "normal"), KEY, 50))
