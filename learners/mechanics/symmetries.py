"""Which charges a network has: found from what its layers do, not from their names.

translation  logits before a softmax may be shifted, and a bias before a batch normalisation too: sums of weights
scale        what a normalisation follows may be scaled: |W_i|^2 + b_i^2 of each unit (of all units together if the
             statistics are taken over them)
rescale      what is positive-homogeneous between two layers may be scaled up before and down behind it:
             |W_out,i|^2 - |W_in,i|^2 - b_in,i^2 of each unit; gain and shift of a normalisation are such a layer too

Kernels are (in, out), or (height, width, in, out). Flattened images have their channels last.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

from learners.layout import POOLED, Network

HOMOGENEOUS = ("linear", "relu", "leaky_relu")
"""Activations f with f(a x) = a f(x) for every a > 0."""
PASSING = ("activation", "dropout", "flatten", "pool")
"""Steps without weights that keep units apart: every one of them scales with its input, if its activation does."""


class Step(NamedTuple):
    """One thing that a network does to what passes through it."""

    kind: str  #: dense, conv, norm; one of PASSING; softmax (of the loss); other
    name: str
    weight: Optional[int] = None  #: which tensor is its kernel, or its gain
    bias: Optional[int] = None  #: or its shift
    detail: str = ""  #: which activation; norm: batch or layer; other: in words why nothing passes through it


class Term(NamedTuple):
    """A tensor's part in a charge: summed over all axes but one."""

    tensor: int
    view: Tuple[int, ...]  #: the shape that it is looked at in
    axis: Optional[int]  #: of the units; None: all of it belongs to the one unit
    sign: int


class Law(NamedTuple):
    """One charge of every unit."""

    kind: str  #: translation, scale, rescale
    name: str  #: of the step whose units they are
    units: int
    terms: Tuple[Term, ...]
    beside: Tuple[Term, ...] = ()  #: what only errors are relative to: where the terms have no gradient at all

    @property
    def degree(self) -> int:
        """Of the weights in the charge: 1, sums; 2, sums of squares."""
        return 1 if self.kind == "translation" else 2


class Symmetries(NamedTuple):
    """What was found."""

    laws: Tuple[Law, ...]
    without: Tuple[Tuple[str, str], ...]  #: step with weights, and why its output has no symmetry


def symmetries(steps: Sequence[Step], shapes: Sequence[Tuple[int, ...]]) -> Symmetries:
    """The charges of a network that is a chain of steps.

    Args:
        shapes: of all tensors that steps name.
    """
    laws: List[Law] = []
    without: List[Tuple[str, str]] = []
    for place, step in enumerate(steps):
        if step.weight is None and step.bias is None:
            continue
        found, reason = _of_one(steps, place, shapes)
        laws += found
        if reason:
            without.append((step.name, reason))
    return Symmetries(tuple(laws), tuple(without))


def _of_one(steps: Sequence[Step], place: int, shapes: Sequence[Tuple[int, ...]]) -> Tuple[List[Law], str]:
    """What the output of one step with weights may do."""
    step, flat, bare = steps[place], False, True
    if step.kind == "other":
        return [], step.detail
    units = _units(step, shapes)
    for after in steps[place + 1 :]:
        if after.kind == "norm":
            return _before_norm(step, after, units, shapes, bare)
        if after.kind == "softmax":
            if step.kind == "norm" or not bare:
                return [], "only a dense layer without an activation may shift the logits"
            return _shifted_logits(step, shapes), ""
        if after.kind in ("dense", "conv"):
            return _rescaled(step, after, units, shapes, flat)
        if after.kind not in PASSING:
            return [], after.detail or f"{after.name} is not known to keep units apart"
        if after.kind == "activation" and after.detail not in HOMOGENEOUS:
            return [], f"{after.detail} is not positive-homogeneous"
        bare = bare and after.kind == "activation" and after.detail == "linear"
        flat = flat or after.kind == "flatten"
    return [], "nothing follows that it could be scaled against, and no softmax"


def _units(step: Step, shapes: Sequence[Tuple[int, ...]]) -> int:
    known = [tensor for tensor in (step.weight, step.bias) if tensor is not None]
    return shapes[known[0]][-1]


def _within(step: Step, shapes: Sequence[Tuple[int, ...]], sign: int, whole: bool = False) -> Tuple[Term, ...]:
    """What leads into the units of a step: its kernel by the last axis, and its bias."""
    tensors = [tensor for tensor in (step.weight, step.bias) if tensor is not None]
    return tuple(Term(t, shapes[t], None if whole else len(shapes[t]) - 1, sign) for t in tensors)


def _before_norm(
    step: Step, norm: Step, units: int, shapes: Sequence[Tuple[int, ...]], bare: bool
) -> Tuple[List[Law], str]:
    whole = norm.detail != "batch"
    if step.kind == "norm" and step.weight is None:
        return [], "without a gain its output cannot be scaled"
    laws = [Law("scale", step.name, 1 if whole else units, _within(step, shapes, 1, whole))]
    if step.bias is not None and bare and not whole:
        alone = (Term(step.bias, shapes[step.bias], 0, 1),)
        laws.append(Law("translation", f"{step.name}/bias", units, alone, _within(step._replace(bias=None), shapes, 1)))
    return laws, ""


def _shifted_logits(step: Step, shapes: Sequence[Tuple[int, ...]]) -> List[Law]:
    laws = []
    if step.weight is not None:
        shape = shapes[step.weight]
        laws.append(Law("translation", step.name, shape[-2], (Term(step.weight, shape, len(shape) - 2, 1),)))
    if step.bias is not None:
        alone = (Term(step.bias, shapes[step.bias], None, 1),)
        # biases begin at 0, which nothing can be relative to
        laws.append(
            Law("translation", f"{step.name}/bias", 1, alone, _within(step._replace(bias=None), shapes, 1, True))
        )
    return laws


def _rescaled(
    step: Step, after: Step, units: int, shapes: Sequence[Tuple[int, ...]], flat: bool
) -> Tuple[List[Law], str]:
    if step.kind == "norm" and step.weight is None:
        return [], "without a gain its output cannot be scaled"
    if after.weight is None:
        return [], f"{after.name} has no trainable kernel"
    shape = shapes[after.weight]
    rows = shape[-2]
    if rows != units and not (flat and rows % units == 0):
        return [], f"the {rows} inputs of {after.name} are not its {units} units"
    view = shape if rows == units else (rows // units, units, shape[-1])
    out = Term(after.weight, view, len(view) - 2, 1)
    return [Law("rescale", step.name, units, (out, *_within(step, shapes, -1)))], ""


# ---------------------------------------------------------------- the networks of this package


def stacked(layers: Sequence[str], first: int = 0, dropout_before: Optional[int] = None) -> List[Step]:
    """Dense ReLU layers with biases, whose tensors are kernel, bias, kernel, bias, ... from number `first`."""
    steps: List[Step] = []
    for i, name in enumerate(layers):
        if i == dropout_before:
            steps.append(Step("dropout", f"{name}/dropout"))
        steps.append(Step("dense", name, first + 2 * i, first + 2 * i + 1))
        steps.append(Step("activation", f"{name}/relu", detail="relu"))
    return steps


def of_network(network: Network) -> Symmetries:
    """The charges of `learners.models.logits`, whose steps these are."""
    if network.kind not in ("dense", "base_conv"):
        raise ValueError(f"network: {network.kind!r} is the user's: its steps are in its layers")
    shapes = [tensor.shape for tensor in network.tensors]
    convolutions = sum(len(shape) == 4 for shape in shapes)
    steps: List[Step] = []
    for layer in range(len(shapes) // 2):
        if layer == convolutions and convolutions:
            steps.append(Step("flatten", "flatten"))
        kind = "conv" if layer < convolutions else "dense"
        name = network.tensors[2 * layer].name.partition("/")[0]
        steps.append(Step(kind, name, 2 * layer, 2 * layer + 1))
        steps.append(Step("activation", f"{name}/relu", detail="relu"))
        if layer < convolutions and POOLED[layer]:
            steps.append(Step("pool", f"{name}/pool"))
    return symmetries([*steps[:-1], Step("softmax", "loss")], shapes)
