"""The original's group with our kernels: every worker sends to every other, waits for all in each step, and applies
each update by itself. Messages, bases and arithmetic are the project's own. Prints one JSON object.
"""

import argparse
import json
import time
from queue import SimpleQueue
from typing import Any

GROUP = bytes(8)


class Worker:
    """One of them, an actor; `receive` runs in the second thread."""

    def __init__(self, number: int, workers: int, dataset: str, dimensions: int) -> None:
        import numba

        from actors import compiled, device

        compiled.keep()
        device.configure(1.0)
        numba.set_num_threads(1)
        from benchmarks._alone import Setting, Task
        from learners.rbd.options import Basis, Exchange, Rbd, Step

        exchange = Exchange(mode="sync", residual="none", every=1, precision="float32")
        rbd = Rbd(basis=Basis(dimensions=dimensions), update=Step(rate=0.5, schedule="constant"), exchange=exchange)
        self._number, self._workers = number, workers
        self._task = Task(Setting(learner=rbd, epochs=1.0, seed=0, dataset=dataset), number)
        self._worker = self._task.worker
        self._inbox: SimpleQueue[bytes] = SimpleQueue()
        self._early: list[Any] = []
        self._others: list[Any] = []
        self.bytes = 0

    def meet(self, others: list[Any]) -> None:
        """Where the others are."""
        self._others = others

    def receive(self, content: bytes) -> None:
        """Another's update."""
        self._inbox.put(content)

    def run(self, warm: int, steps: int) -> dict[str, float]:
        """Train; processor seconds of this process, by step, after the first `warm`."""
        import numba

        numba.set_num_threads(1)
        began = applied = 0.0
        for step in range(warm + steps):
            if step == warm:
                began, applied, self.bytes = time.process_time(), 0.0, 0
            done = self._task.done(self._worker)
            self._send(done.update)
            others = self._all_of(step)
            before, self._worker = time.thread_time(), done.worker
            for one in others:
                self._worker = self._worker.apply([one])
            applied += time.thread_time() - before
        spent = time.process_time() - began
        return {"cpu": 1e3 * spent / steps, "apply": 1e3 * applied / steps, "bytes": self.bytes / steps}

    def _send(self, update: Any) -> None:
        from learners.group import parcels

        sent = parcels.packed(update, "float32", 0, 0)
        content = parcels.encode(parcels.Parcel(self._number, 0, (sent,)), GROUP)
        for other in self._others:
            self.bytes += len(content)
            other.receive.remote(content)

    def _all_of(self, step: int) -> list[Any]:
        """Everybody's update of this step; those of the next may be here before."""
        from learners.group import parcels
        from learners.rbd.directions import dimensions

        wanted, size = dimensions(self._worker.shared.directions), self._task.method.size
        while True:
            found = [sent for sent in self._early if sent.name.sequence == step]
            if len(found) == self._workers - 1:
                self._early = [sent for sent in self._early if sent.name.sequence != step]
                return [parcels.unpacked(sent, wanted, "float32", size) for sent in sorted(found)]
            self._early += parcels.decode(self._inbox.get(), GROUP).updates


def measure(workers: int, dataset: str, dimensions: int, warm: int, steps: int) -> dict[str, float]:
    """Means over the workers: processor milliseconds of a step, in all and of applying; bytes sent a step."""
    import ray

    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="error", num_cpus=workers)
    made = ray.remote(num_cpus=1, max_concurrency=2, enable_task_events=False)(Worker)
    actors = [made.remote(number, workers, dataset, dimensions) for number in range(workers)]
    ray.get([actor.meet.remote([o for o in actors if o is not actor]) for actor in actors])
    found = ray.get([actor.run.remote(warm, steps) for actor in actors])
    ray.shutdown()
    return {key: sum(one[key] for one in found) / workers for key in found[0]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workers", type=int)
    parser.add_argument("--dataset", default="fashion_mnist")
    parser.add_argument("--dimensions", type=int, default=250)
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    print(json.dumps(measure(**vars(parser.parse_args()))))
