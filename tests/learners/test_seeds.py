"""Seeds: the same everywhere, different for every purpose."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.seeds import derive

words = st.lists(st.one_of(st.text(max_size=4), st.integers()), max_size=4)


@given(st.integers(0, 2**63 - 1), words)
def test_a_seed_has_64_bits(seed, names):
    assert 0 <= derive(seed, *names) < 2**64


@given(st.integers(0, 3), words, st.integers(0, 3), words)
def test_seeds_are_equal_only_for_equal_purposes(seed, names, other_seed, others):
    assert (derive(seed, *names) == derive(other_seed, *others)) == ((seed, names) == (other_seed, others))


def test_words_do_not_run_together():
    seeds = {derive(1, "ab", "c"), derive(1, "a", "bc"), derive(1, "abc"), derive(1, "abc", ""), derive(1, "", "abc")}
    assert len(seeds) == 5
    assert len({derive(1, 12), derive(1, "12"), derive(1, 1, 2), derive(11, 2)}) == 4


def test_numpy_integers_are_whole_numbers():
    assert derive(np.int64(5), "x", np.uint8(3)) == derive(5, "x", 3)


def test_what_is_not_a_word_is_refused():
    for word in (1.5, None, b"x"):
        with pytest.raises(TypeError):
            derive(1, word)


def test_seeds_survive_processes_and_hash_seeds():
    # The number is written down: a change of the rule changes every run of every user.
    assert derive(7, "rows", "top", 3) == 202111261572834954
    command = "from learners.seeds import derive; print(derive(7, 'rows', 'top', 3))"
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        printed = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, check=True)
        assert int(printed.stdout) == derive(7, "rows", "top", 3)
