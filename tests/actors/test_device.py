"""What a learner's process loads."""

import subprocess
import sys

PROGRAM = """
import gc, sys
from actors import device
device.configure(2.5)
heavy = [name for name in ("keras", "sklearn", "matplotlib") if name in sys.modules]
assert not heavy, heavy
assert gc.isenabled()
import tensorflow as tf
assert tf.config.threading.get_intra_op_parallelism_threads() == 2
from learners import mach
assert "keras" not in sys.modules
assert tf.keras.layers.Dense(3)(tf.zeros([2, 4])).shape == (2, 3)  # whoever names it still gets it
"""


def test_a_learner_loads_no_keras_but_a_user_who_names_it_gets_it():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
