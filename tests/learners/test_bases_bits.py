"""The same bits for any number of threads, on AVX2 and AVX-512, in any process."""

import json
import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import hashlib, json, sys
import numba, numpy as np
from learners import bases
from learners.bases import Basis, Key

def numbers(seed, size):  # no generator of another library: its bits may change
    words = np.arange(size, dtype=np.uint32) * np.uint32(2654435761 + 2 * seed)
    return (words >> np.uint32(8)).astype(np.float32) - np.float32(2**23)

def digest():
    found = {}
    for distribution in ("rademacher", "hadamard", "uniform", "normal", "lognormal"):
        total = hashlib.sha256()
        for size, d in ((1, 1), (5000, 300), (20011, 70)):
            basis, key = Basis(d, distribution), Key(2**63 + 5, 3, 2**40 + 7, 1)
            total.update(bases.project(basis, key, numbers(1, size)).tobytes())
            total.update(bases.expand(basis, key, numbers(2, d), size).tobytes())
            total.update(bases.expand_many(basis, [key, Key(4)], numbers(3, 2 * d).reshape(2, d), size).tobytes())
        found[distribution] = total.hexdigest()[:16]
    return found

found = {}
for threads in map(int, sys.argv[1:]):
    numba.set_num_threads(threads)
    found[threads] = digest()
features = numba.core.registry.cpu_target.target_context.codegen().magic_tuple()[2]
print(json.dumps({"found": found, "avx512": "+avx512f" in features}))
"""
# What every machine must find. Another digest is another basis: old logs could not be replayed.
DIGESTS = {
    "rademacher": "29b7d829eed3ec3e",
    "hadamard": "2f58eda50417eb32",
    "uniform": "0ec42ab7baefd7cc",
    "normal": "68137730e243fb4a",
    "lognormal": "18d18376e7d311fe",
}
AVX2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+avx,+fma,+bmi2,+sse4.2,+popcnt"}


def found(tmp_path, environment, *threads):
    plain = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_NUM_THREADS": "4", **environment}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, threads)], env=plain, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_one_digest_for_1_2_and_4_threads_in_a_process_of_its_own(tmp_path):
    for threads, digests in found(tmp_path, {}, 1, 2, 4)["found"].items():
        assert digests == DIGESTS, threads


@pytest.mark.skipif(platform.machine() != "x86_64", reason="not a processor that could have AVX-512")
def test_the_same_digest_without_avx512(tmp_path):
    said = found(tmp_path, AVX2, 2)
    assert not said["avx512"]
    assert said["found"]["2"] == DIGESTS
