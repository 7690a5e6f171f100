"""The learners of a chain in one process, without actors: the baseline of `bench chain`.

A thread for each learner. TensorFlow's intra-op threads belong to the process, not to who calls: three are one each,
but `--threads` says how many, and `bench chain` takes the number that is fastest. A parent computes its child's
embedding in place, on the child's own weights, and leaves the gradient in the child's queue, where the child's next
step finds it. The networks, the batches and the calls of a step are those of the actors; evaluation, records,
checkpoints and messages are left out.
Prints one JSON object: seconds of the window, and steps of each learner in it.
"""

import argparse
import json
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

WARM_STEPS = 30
"""Steps that every learner has done before the window opens."""


class Learner:
    """One of them; `child` is another, or None."""

    def __init__(self, name: str, topology: Any, dataset: Any, child: "Learner | None") -> None:
        from actors.mach import network

        self.name, self.child, self.seed, self.options = name, child, topology.seed, topology.learners[name]
        self.data, self.steps = dataset, 0
        children = {other: topology.learners[other].embedding for other in topology.children_of(name)}
        parents = {other: topology.learners[other].batch_size for other in topology.parents_of(name)}
        rows = topology.gradient_rows_of(name)
        self.network = network(
            name, self.seed, self.options, children, parents, rows, dataset.width, dataset.classes
        )  # fmt: skip
        self.network.warm_up()
        #: (features, gradient) that parents have left
        self.gradients: deque = deque(maxlen=self.options.exchange.queue)

    def step(self) -> None:
        """Embed by the child, train, give the child its gradient."""
        from learners.batches import features, rows
        from learners.optimizers import rate

        chosen, data = self.options, self.data
        numbers = rows(self.seed, self.name, self.steps, chosen.batch_size, len(data.train))
        x_BF = features(data.train, numbers, data.scale, data.offset)
        embeddings = [self.child.network.embed(x_BF)] if self.child else []
        pending = [self.gradients.popleft()] if self.gradients else []
        at = rate(chosen.optimizer.learning_rate, chosen.optimizer.schedule, 0, self.steps, chosen.steps)
        trained = self.network.train(x_BF, data.train.labels[numbers], embeddings, pending, at)
        if self.child:
            self.child.gradients.append((x_BF, trained.gradients[0]))
        self.steps += 1


def measure(chain: Path, seconds: float, threads: int) -> dict[str, Any]:
    """Train for that long once all are warm."""
    from actors import data, device
    from topology import parse

    device.configure(threads)
    topology = parse.load(chain)
    dataset = data.load(topology.data, folder=chain.parent)
    learners: dict[str, Learner] = {}
    for name in topology.learners:  # the file names children first
        below = topology.children_of(name)
        learners[name] = Learner(name, topology, dataset, learners[below[0]] if below else None)
    stop = threading.Event()

    def work(learner: Learner) -> None:
        while not stop.is_set():
            learner.step()

    working = [threading.Thread(target=work, args=[learner]) for learner in learners.values()]
    for thread in working:
        thread.start()
    while min(learner.steps for learner in learners.values()) < WARM_STEPS:
        time.sleep(0.01)
    began, before = time.perf_counter(), {name: learner.steps for name, learner in learners.items()}
    time.sleep(seconds)
    steps = {name: learner.steps - before[name] for name, learner in learners.items()}
    lasted = time.perf_counter() - began
    stop.set()
    for thread in working:
        thread.join()
    return {"seconds": lasted, "steps": steps}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chain", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=3)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.chain, arguments.seconds, arguments.threads)))
