"""What a learner's process may use of its host: threads, and the memory of a GPU."""

from learners.footprint import threads


def configure(cpus: float) -> None:
    """Before TensorFlow's first operation: as many threads as CPUs were asked for, and no more GPU memory than used.

    Ray sets OMP_NUM_THREADS only, which TensorFlow does not heed.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads(cpus))
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
