"""Learners of a run as costly instruments look at them: weights of the newest checkpoint set, rows of the run's data.

Read from the run folder and the data alone, whether the run goes on, has ended or was killed.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray

from actors import checkpoint, quiet
from actors.data import load
from learners import batches
from learners.batches import Dataset
from learners.layout import Network, laid_out
from learners.options import Mach, Topology, group_of
from learners.seeds import derive
from learners.watching import Probe
from topology import parse

if TYPE_CHECKING:
    from actors.keras_model import KerasModel
    from learners.models import Model

ROWS = 512
"""Training rows that losses and Hessians are means over, the same for all learners of a run."""

Array = NDArray[Any]
State = Mapping[str, Array]


def probes(run: Path) -> list[Probe]:
    """Every learner of the newest complete set of `run`.

    A Mach learner is looked at with its synthetic input, which stays as it is: weights are those of encoder and head.

    Raises:
        ValueError: there is no complete set, or the run's data can't be had here.
    """
    found, ignored = checkpoint.newest(run / "checkpoints")
    if found is None:
        raise ValueError(
            "\n".join([f"{run}: no complete checkpoint set: checkpoint: {{every: 100}} makes them", *ignored])
        )
    quiet.load()
    topology = parse.load(run / "chain.yaml")
    manifest = json.loads((run / "run.json").read_text())
    beside = Path(manifest.get("beside", "."))
    dataset = load(topology.data, folder=beside)
    numbers = rows(topology.seed, dataset)
    x_NF = batches.features(dataset.train, numbers, dataset.scale, dataset.offset)
    given = (x_NF, dataset.train.labels[numbers])
    made = []
    for name, learner in topology.members.items():
        if name in found.steps:
            state, _ = checkpoint.unpack(checkpoint.read(found, name))
            about = (name, found.steps[name], state, dataset)
            made.append(
                _mach(*about, *given) if isinstance(learner, Mach) else _worker(topology, beside, *about, *given)
            )
    return made


def rows(seed: int, dataset: Dataset) -> batches.Rows:
    """The training rows that a run's learners are looked at with: as many as there are, at most `ROWS`."""
    return batches.permutation(derive(seed, "probe"), len(dataset.train))[:ROWS]


def _mach(name: str, step: int, state: State, dataset: Dataset, x_NF: Array, labels_N: Array) -> Probe:
    from learners.models import Model

    weights = [*_part(state, "encoder"), *_part(state, "head")]
    x_NF = _with_synthetic(state, x_NF)
    kinds = ("kernel", "rest")
    tensors = laid_out([(f"{i // 2}/{kinds[i % 2]}", i // 2, kinds[i % 2], w.shape) for i, w in enumerate(weights)])
    theta_D = np.concatenate([w.ravel() for w in weights]).astype(np.float32)
    model = Model(Network("dense", x_NF.shape[1:], dataset.classes, tensors))
    return _probe(name, step, model, theta_D, x_NF, labels_N)


def _worker(
    topology: Topology, beside: Path, name: str, step: int, state: State, dataset: Dataset, x_NF: Array, labels_N: Array
) -> Probe:
    """At T, which all workers share; along the directions of its next update."""
    from actors.rbd import saved
    from learners.rbd.directions import Drawn, Learned, Past

    options = topology.workers[group_of(name)]
    model, worker = saved(name, topology.seed, options, dataset.shape, dataset.classes, beside, state)
    theta, directions = worker.shared.theta, worker.shared.directions
    if not isinstance(directions, (Drawn, Learned, Past)) or not directions.parts:  # whole weights, whole gradients
        return _probe(name, step, model, theta, x_NF, labels_N)
    basis = None if isinstance(directions, Past) else directions.basis
    return _probe(name, step, model, theta, x_NF, labels_N, directions=directions, name=worker.name, basis=basis)


def _with_synthetic(state: State, x_NF: Array) -> Array:
    """The encoder's input: features, and what the synthetic input makes of them."""
    layers = _part(state, "synthetic")
    imagined = x_NF
    for kernel, bias in zip(layers[::2], layers[1::2], strict=True):
        imagined = np.maximum(imagined @ kernel + bias, 0.0)
    return np.concatenate([x_NF, imagined], axis=1) if layers else x_NF


def _part(state: State, part: str) -> list[Array]:
    count = sum(name.startswith(f"{part}/") for name in state)
    return [state[f"{part}/{i}"] for i in range(count)]


def _probe(
    learner: str,
    step: int,
    model: "Union[Model, KerasModel]",
    theta_D: Array,
    x_NF: Array,
    labels_N: Array,
    **along: Any,
) -> Probe:
    from learners.curvature import Curvature

    curvature = Curvature(model, x_NF, labels_N)

    def loss(theta: Array) -> float:
        return model.evaluate(theta, x_NF, labels_N)[0]

    return Probe(learner, step, len(x_NF), theta_D, loss, partial(curvature.product, theta_D), **along)
