"""What XLA has compiled and we keep: used again, with the same bits, and made anew where it is broken."""

import os
import subprocess
import sys

PROGRAM = """
import hashlib
from actors import compiled, device
compiled.keep()
device.configure(1)
import numpy as np
from learners import mach, optimizers
def build():
    made = mach.Mach(mach.Shape(5, 3, (4,), (8,), 4, (6,), 8, 8, 8), optimizers.Rule(), seed=1)
    made.warm_up()
    return made
network = compiled.made(build)
draws = np.random.default_rng(2)
x, child = draws.normal(size=(8, 5)).astype("f"), draws.normal(size=(8, 4)).astype("f")
for pending in ([], [(x, child)]):
    network.train(x, np.arange(8, dtype=np.int32) % 3, [child], pending, 1e-2)
print(hashlib.sha1(b"".join(value.tobytes() for value in network.save().values())).hexdigest())
"""


def bits(cache):
    """Of the weights after two steps in a process that keeps what it compiles there."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "TF_XLA_FLAGS": ""}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()[-1]


def test_what_is_compiled_is_kept_where_it_can_be_and_gives_the_same_bits(tmp_path):
    def entries():
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.pb")}

    (tmp_path / "file").touch()
    nowhere = bits(tmp_path / "file" / "in the way")
    assert bits(tmp_path / "cache") == nowhere
    kept = entries()
    assert kept
    assert bits(tmp_path / "cache") == nowhere
    assert entries() == kept, "something was compiled again"
    for path in kept:
        path.write_bytes(path.read_bytes()[:99])  # as a full disk or a kill might leave it
    assert bits(tmp_path / "cache") == nowhere
    assert entries() and all(path.stat().st_size > 99 for path in entries())
