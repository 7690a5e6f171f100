"""The shapes of a network's tensors, and which part of a flat vector of weights belongs to which.

Light on purpose: no TensorFlow, and no more than Python 3.8.
"""

import math
from typing import List, NamedTuple, Sequence, Tuple


class Tensor(NamedTuple):
    """One tensor of a network, as a slice of its flat float32 weights [D]."""

    name: str  #: such as "dense_0/kernel"
    layer: int  #: number of its layer, from 0
    kind: str  #: "kernel" (has a fan-in) or "rest" (biases, gains)
    shape: Tuple[int, ...]
    start: int  #: of the slice
    stop: int

    @property
    def place(self) -> slice:
        """Where it lies."""
        return slice(self.start, self.stop)


def laid_out(tensors: Sequence[Tuple[str, int, str, Tuple[int, ...]]]) -> Tuple[Tensor, ...]:
    """Tensors (name, layer, kind, shape) one after the other, from 0."""
    found: List[Tensor] = []
    start = 0
    for name, layer, kind, shape in tensors:
        size = 1
        for width in shape:
            size *= width
        found.append(Tensor(name, layer, kind, shape, start, start + size))
        start += size
    return tuple(found)


class Network(NamedTuple):
    """Everything that fixes a network's shapes."""

    kind: str  #: dense, base_conv, or module:function of the user's
    example: Tuple[int, ...]  #: of one example before it was laid flat, channels last
    classes: int  #: C
    tensors: Tuple[Tensor, ...]  #: kernel, bias, kernel, bias, ... of the layers; as Keras has them in the user's

    @property
    def size(self) -> int:
        """D, counted."""
        return self.tensors[-1].stop


HIDDEN = 128
FILTERS = (32, 64, 64)
POOLED = (True, True, False)
"""Which convolutions are followed by pooling."""
CODE = 64


def network(kind: str, example: Tuple[int, ...], classes: int) -> Network:
    """A network of the reference, for examples of any shape that it can take.

    dense      flatten, 128 relu, softmax: 101,770 weights for 28 x 28 and 10 classes
    base_conv  3 x 3 x 32 relu, pool 2, 3 x 3 x 64 relu, pool 2, 3 x 3 x 64 relu, flatten, 64 relu, softmax; no padding
               and odd rows and columns left out by pooling: 93,322 weights for 28 x 28 x 1, 122,570 for 32 x 32 x 3

    Raises:
        ValueError: an unknown kind, or images that are too small for the convolutions.
    """
    if kind == "dense":
        features = math.prod(example)
        return Network(kind, example, classes, _stacked([(features, HIDDEN), (HIDDEN, classes)]))
    if kind != "base_conv":
        raise ValueError(f"network: {kind!r} is not one of dense, base_conv")
    height, width, channels = image(example)
    kernels: List[Tuple[int, ...]] = []
    for filters, pooled in zip(FILTERS, POOLED):
        kernels.append((3, 3, channels, filters))
        height, width, channels = (height - 2) // (1 + pooled), (width - 2) // (1 + pooled), filters
    if min(height, width) < 1:
        raise ValueError(f"network: base_conv takes images of 18 x 18 or more; found {example}")
    return Network(kind, example, classes, _stacked([*kernels, (height * width * channels, CODE), (CODE, classes)]))


def image(example: Sequence[int]) -> Tuple[int, int, int]:
    """Height, width, channels; ValueError where examples are no images."""
    if len(example) not in (2, 3):
        raise ValueError(f"network: base_conv takes images (height, width[, channels]); found {tuple(example)}")
    height, width = example[:2]
    return height, width, example[2] if len(example) == 3 else 1


def _stacked(kernels: Sequence[Tuple[int, ...]]) -> Tuple[Tensor, ...]:
    rows: List[Tuple[str, int, str, Tuple[int, ...]]] = []
    for layer, kernel in enumerate(kernels):
        name = "conv" if len(kernel) == 4 else "dense"
        rows.append((f"{name}_{layer}/kernel", layer, "kernel", kernel))
        rows.append((f"{name}_{layer}/bias", layer, "rest", kernel[-1:]))
    return laid_out(rows)
