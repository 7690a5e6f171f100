"""Which part of a flat vector of weights belongs to which tensor of a network.

Light on purpose: no TensorFlow, and no more than Python 3.8.
"""

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
