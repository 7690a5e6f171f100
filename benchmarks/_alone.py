"""One worker trained by itself, serially, and results that are kept: what the benchmarks of random bases share.

A result is a file of one JSON line, named by its settings. It is written as soon as its run has ended, and settings
that have a file are not run again: a long table is made in several sittings, by several processes. Those behind the
tables of benchmarks/README.md are kept in benchmarks/results, so that a row can be added years later. Nothing in a
result says which code made it; after a change that matters, give another folder.
"""

import argparse
import hashlib
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import FieldInfo
from msgspec.structs import replace as changed

from benchmarks import _report
from learners.batches import Dataset, Split, features, rows
from learners.options import Data
from learners.rbd.clocks import Name
from learners.rbd.coordinates import quantise
from learners.rbd.defaults import filled
from learners.rbd.descent import Problem, Round, descend
from learners.rbd.directions import Whole
from learners.rbd.options import AnyLearner, Nes
from learners.rbd.replica import Diverged
from learners.rbd.workers import Method, Worker, start
from learners.seeds import derive

if TYPE_CHECKING:
    from learners.models import Model

FOLDER = Path(__file__).parent / "results"
VALIDATION = 1 / 6
"""Share of the training rows that is set apart while rates are chosen: 10,000 of Fashion-MNIST's 60,000."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What fixes a result."""

    learner: AnyLearner  #: its `steps` follow from the epochs
    epochs: float  #: passes over the training rows; nes counts the images of all offspring
    seed: int = 0
    dataset: str = "fashion_mnist"
    validation: bool = False  #: trained without the rows set apart, and measured on these, not on the test set
    top: int = 0  #: k of `Top`; 0: directions as the learner says

    @property
    def key(self) -> str:
        """The name of its file."""
        digest = hashlib.blake2b(msgspec.json.encode(_chosen(self)), digest_size=8).hexdigest()
        return f"{type(self.learner).__name__.lower()}-{self.learner.network}-{self.seed}-{digest}"


def _chosen(value: object) -> object:
    """What is other than its default, with its kind: an option that is added later renames no file."""
    if not isinstance(value, msgspec.Struct):
        return value
    fields = [field for field in msgspec.structs.fields(value) if not _is_default(value, field)]
    return {"": type(value).__name__, **{field.name: _chosen(getattr(value, field.name)) for field in fields}}


def _is_default(value: msgspec.Struct, field: FieldInfo) -> bool:
    default = field.default_factory() if callable(field.default_factory) else field.default
    return getattr(value, field.name) == default


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run."""

    setting: Setting
    curve: list[tuple[float, float]]  #: (epoch, accuracy of the shared weights), from the start to the end
    steps: int  #: training steps; of nes updates
    payload: int  #: bytes sent in all, without headers
    seconds: float  #: of processor time, for training alone
    diverged: str = ""  #: why it has ended before its end

    @property
    def accuracy(self) -> float:
        """In percent, at the end; 0 where it has diverged."""
        return 0.0 if self.diverged else 100 * self.curve[-1][1]


@dataclass(frozen=True)
class Top(Whole):
    """The weights with the largest |h|, as signs and one power of two: what random directions are compared with."""

    count: int = 1  #: k

    def project(self, name: Name, vector_D: np.ndarray) -> list[np.ndarray]:
        """Zeros but for k places, where +-2^x stands."""
        places = np.argpartition(np.abs(vector_D), -self.count)[-self.count :]
        found = np.zeros_like(vector_D)
        found[places] = quantise(vector_D[places], "sign").coordinates
        return [found]

    @property
    def nbytes(self) -> int:
        """A byte for x; a sign and the bits of a place for each."""
        return 1 + math.ceil(self.count * (1 + (self.size - 1).bit_length()) / 8)


# ---------------------------------------------------------------- one run


def train(setting: Setting) -> Result:
    """The whole run; the shared weights are evaluated at the start, after every whole epoch, and at the end."""
    task = Task(setting)
    worker, payload, seconds, diverged = task.worker, 0, 0.0, ""
    curve = [task.point(worker)]
    for end in task.ends:
        began = time.process_time()
        try:
            while worker.step < end:
                worker, sent = task.round(worker)
                payload += sent
        except Diverged as error:
            diverged = str(error)
            break
        seconds += time.process_time() - began
        curve.append(task.point(worker))
    return Result(
        setting=setting,
        curve=curve,
        steps=worker.step,
        payload=payload,
        seconds=round(seconds, 2),
        diverged=diverged,
    )


class Task:
    """What a run works with; of several workers each has its own rows and directions."""

    def __init__(self, setting: Setting, number: int = 0) -> None:
        from learners.layout import network
        from learners.models import Model, initial

        self._setting, self._data, seed = setting, _data(setting.dataset), setting.seed
        self._stream = f"worker/{number}" if number else "worker"
        self._train, held = _splits(self._data, setting.validation)
        net = network(setting.learner.network, self._data.shape, self._data.classes)
        learner = filled(setting.learner, net.size)
        images = learner.batch_size * ((learner.basis.dimensions or 1) if isinstance(learner, Nes) else 1)
        self._steps_per_epoch = len(self._train) / images
        steps = self._steps(setting.epochs)
        self.ends = sorted({*map(self._steps, range(1, math.floor(setting.epochs) + 1)), steps})
        self.method = Method(changed(learner, steps=steps), net.tensors)
        self.worker = start(self.method, initial(net, derive(seed, "weights")), derive(seed, "bases"), number)
        if setting.top:
            top = replace(self.worker.shared, directions=Top(net.size, count=setting.top))
            self.worker = replace(self.worker, shared=top)
        self._model = Model(net)
        self._held = features(held, np.arange(len(held)), self._data.scale, self._data.offset), held.labels
        self._problem = _problem(self._data, self._train, self._model, Model(net, learner.batch_size))

    def _steps(self, epochs: float) -> int:
        return max(1, round(epochs * self._steps_per_epoch))

    def point(self, worker: Worker) -> tuple[float, float]:
        """Of the curve."""
        accuracy = self._model.evaluate(worker.shared.theta, *self._held)[1]
        return round(worker.step / self._steps_per_epoch, 3), round(accuracy, 6)

    def round(self, worker: Worker) -> tuple[Worker, int]:
        """And the payload bytes that it sends."""
        done = self.done(worker)
        directions = worker.shared.directions
        return done.worker, directions.nbytes if isinstance(directions, Top) else int(done.metrics["bytes"])

    def done(self, worker: Worker) -> Round:
        """What a round comes to."""
        learner, count = self.method.learner, self.method.batches(worker.shared.directions)
        first = worker.step // self.method.steps() * count
        stream = range(first, first + count)
        batches = [rows(self._setting.seed, self._stream, n, learner.batch_size, len(self._train)) for n in stream]
        return descend(self.method, worker, self._problem, batches)


@lru_cache(maxsize=1)
def _data(name: str) -> Dataset:
    from actors.data import load

    return load(Data(name=name, validation=VALIDATION))


def _splits(data: Dataset, validation: bool) -> tuple[Split, Split]:
    """What is trained on, and what is measured on: without validation, all training rows and the test rows."""
    if validation:
        return data.train, data.validation
    both = (data.train, data.validation)
    inputs, labels = (np.concatenate([getattr(part, name) for part in both]) for name in ("inputs", "labels"))
    return Split(inputs, labels), data.test


def _problem(data: Dataset, split: Split, model: "Model", losses: "Model") -> Problem:
    """A batch is row numbers. `losses` evaluates in chunks of one batch."""

    def taken(rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return features(split, rows_B, data.scale, data.offset), split.labels[rows_B]

    def gradient(theta: np.ndarray, rows_B: np.ndarray) -> tuple[float, np.ndarray]:
        loss, _, gradient_D = model.loss_and_gradient(theta, *taken(rows_B))
        return loss, gradient_D

    return Problem(gradient, lambda theta, rows_B: losses.evaluate(theta, *taken(rows_B))[0])


# ---------------------------------------------------------------- many runs


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where results are, and how many runs go on at once."""
    parser.add_argument("--dataset", default="fashion_mnist")
    parser.add_argument("--results", type=Path, default=FOLDER, help="folder of results (benchmarks/results)")
    parser.add_argument("--processes", type=int, default=2, help="runs at once, each on one thread (2)")


def results(settings: Sequence[Setting], folder: Path, processes: int) -> list[Result]:
    """A result for each setting: from the folder where it has one, else by a run, a line of progress for each."""
    wanted = {setting.key: setting for setting in settings}
    missing = [setting for setting in wanted.values() if not _is_kept(folder, setting)]
    folder.mkdir(parents=True, exist_ok=True)
    if missing:
        with ProcessPoolExecutor(processes, get_context("spawn"), _one_thread) as pool:
            runs = [pool.submit(_run, setting, folder) for setting in missing]
            for number, run in enumerate(as_completed(runs), 1):
                _report.say(f"{number}/{len(runs)} {run.result()}")
    return [read(_path(folder, setting)) for setting in settings]


def _one_thread() -> None:
    """Of this process, by calls: what its parent sets in the environment would stay there."""
    import numba
    import tensorflow as tf
    from threadpoolctl import threadpool_limits

    numba.set_num_threads(1)
    threadpool_limits(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def _is_kept(folder: Path, setting: Setting) -> bool:
    """Whether its result is there; one of the same name from before a default was changed is not its."""
    path = _path(folder, setting)
    return path.exists() and read(path).setting == setting


def _run(setting: Setting, folder: Path) -> str:
    path = _path(folder, setting)
    if _is_kept(folder, setting):
        return f"{path.stem}: by another process"
    found = train(setting)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(msgspec.json.encode(found) + b"\n")
    part.replace(path)
    per_step = 1e3 * found.seconds / max(1, found.steps)
    return (
        f"{path.stem}: {found.accuracy:.2f} %, {found.steps:,} steps of {per_step:.2f} ms, {found.payload:,} bytes"
        + (f"; diverged: {found.diverged}" if found.diverged else "")
    )


def _path(folder: Path, setting: Setting) -> Path:
    return folder / f"{setting.key}.json"


def read(path: Path) -> Result:
    """A result that was kept."""
    return msgspec.json.decode(path.read_bytes(), type=Result)


def spread(accuracies: Sequence[float]) -> str:
    """Mean and, of several, the sample's standard deviation."""
    if len(accuracies) < 2:
        return f"{np.mean(accuracies):.2f}"
    return f"{np.mean(accuracies):.2f} +-{np.std(accuracies, ddof=1):.2f}"


# ---------------------------------------------------------------- rates


TUNING_SEED = 100
"""No table has it."""


def candidate(learner: AnyLearner, epochs: float, dataset: str, top: int = 0) -> Setting:
    """A run that is measured on the rows set apart."""
    return Setting(learner=learner, epochs=epochs, seed=TUNING_SEED, dataset=dataset, validation=True, top=top)


def compared(tried: Sequence[tuple[str, Setting]], folder: Path, processes: int, place: str) -> _report.Measured:
    """What every candidate reaches on the rows set apart, a line for each name, the best in bold."""
    found: dict[tuple[str, float], dict[str, float]] = {}
    done = results([setting for _, setting in tried], folder, processes)
    for (name, setting), run in zip(tried, done, strict=True):
        found.setdefault((name, setting.epochs), {})[described(setting.learner)] = run.accuracy
    rows = []
    for (name, epochs), ways in found.items():
        best = max(ways.values())
        cells = [f"**{way}: {value:.2f}**" if value == best else f"{way}: {value:.2f}" for way, value in ways.items()]
        rows.append((name, f"{epochs:g}", "; ".join(cells)))
    figures = {name.replace(" ", "_"): max(ways.values()) for (name, _), ways in found.items()}
    head = ("points", "epochs", "rate and what goes with it: validation accuracy, %")
    return _report.Measured(figures, _report.table(head, rows), place)


def described(learner: AnyLearner) -> str:
    """Rate, schedule, and what goes with them."""
    step = learner.update
    parts = [f"{step.rate:g}", str(step.schedule)]
    parts += [f"w {step.weight:g}"] if step.weight else []
    parts += [f"momentum {step.momentum:g}"] if step.momentum else []
    parts += [f"sigma {learner.offspring.sigma:g}"] if isinstance(learner, Nes) else []
    return ", ".join(parts)
