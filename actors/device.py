"""What a learner's process may use of its host: threads, and the memory of a GPU."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from learners.footprint import threads


def configure(cpus: float) -> None:
    """Load TensorFlow with as many threads as CPUs were asked for, and no more GPU memory than used.

    Before TensorFlow's first operation. Ray sets OMP_NUM_THREADS only, which TensorFlow does not heed.
    """
    with _without_collection(), _without_keras():
        import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads(cpus))
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


@contextmanager
def _without_collection() -> Iterator[None]:
    """No search for garbage: an import makes none, and it takes a quarter of the time; nor later among what it made."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collected:
            gc.enable()


@contextmanager
def _without_keras() -> Iterator[None]:
    """TensorFlow's import takes Keras with it, and that scikit-learn and matplotlib where it finds them: half its time.

    It passes over a Keras that can't be imported, and loads it later where somebody names `tf.keras`.
    """
    eager = "keras.src.optimizers"  # what tensorflow/__init__.py tries last
    if eager in sys.modules:
        yield
        return
    sys.modules[eager] = None  # type: ignore[assignment]  # Python's way to say that there is none
    try:
        yield
    finally:
        del sys.modules[eager]
