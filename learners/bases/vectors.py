"""Vector instructions for Numba: what the kernels of the random bases are written in.

Numba has no vector types, and LLVM finds no permute in a loop over numbers. So the inner loops are LLVM's own, written
with llvmlite in vectors of 16 lanes, which LLVM splits where a machine's are shorter. Nothing is emitted that may be
contracted or reordered, so that results have the same bits everywhere. Two operations have a second way on AVX-512, of
the same bits: `Code.signed_sum` and `Code.look_up`.

Numba's cache of compiled functions sees changes of the file only that a function stands in. Whoever edits this file or
`philox.py` deletes the `*.nbi` files beside them, or sets NUMBA_CACHE_DIR to a fresh folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
WORDS, FLOATS, PAIRS = ir.VectorType(I32, 16), ir.VectorType(F32, 16), ir.VectorType(I64, 8)
"""16 words; 16 floats; 8 pairs of words, of which the lower one is the even lane."""
IOTA = ir.Constant(WORDS, list(range(16)))


def emitted(emit: Callable[..., None]) -> Any:
    """A function for Numba code: `f((a, b, ...))` runs the instructions that `emit(code, a, b, ...)` writes.

    Arrays must be contiguous and arrive as pointers; whole numbers arrive as i64.
    """

    def lower(context: Any, builder: Any, kind: Any, value: Any) -> Any:
        if isinstance(kind, types.Array):
            return context.make_array(kind)(context, builder, value).data
        return context.cast(builder, value, kind, types.int64)

    def typed(typing_context: Any, arguments: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
            features = context.codegen().magic_tuple()[2].split(",")
            given = zip(arguments, cgutils.unpack_tuple(builder, values[0]))
            emit(Code(builder, "+avx512f" in features), *[lower(context, builder, *pair) for pair in given])
            return context.get_dummy_value()

        return types.void(arguments), generate

    typed.__name__ = emit.__name__
    return intrinsic(typed)


class Code:
    """Writes instructions. Where a number or a scalar meets a vector, it stands for a vector of equal lanes."""

    def __init__(self, builder: Any, avx512: bool) -> None:
        self.builder, self.avx512 = builder, avx512

    @contextmanager
    def loop(self, start: Any, stop: Any) -> Iterator[Any]:
        """The body runs for each whole number from `start` to before `stop`; yields the number, an i64."""
        with cgutils.for_range_slice(self.builder, start, stop, I64(1), intp=I64) as (number, _):
            yield number

    def pipeline(self, start: Any, stop: Any, make: Callable[[Any], Sequence[Any]], use: Callable[..., None]) -> None:
        """use(n, *make(n)) for each n from `start` to before `stop`, of which there is at least one.

        The next is made while the last is used, so that a processor does both at once and waits for neither.
        """
        held = [self.variable(value) for value in make(start)]
        with self.loop(self.add(start, 1), stop) as number:
            made = [self.builder.load(place) for place in held]
            for value, place in zip(make(number), held):
                self.builder.store(value, place)
            use(self.sub(number, 1), *made)
        use(self.sub(stop, 1), *[self.builder.load(place) for place in held])

    def variable(self, value: Any) -> Any:
        """A place that holds `value` and may be stored to; LLVM makes it a register."""
        place = cgutils.alloca_once(self.builder, value.type)
        self.builder.store(value, place)
        return place

    def add_to(self, place: Any, value: Any) -> None:
        """`place` += `value`, floats."""
        self.builder.store(self.builder.fadd(self.builder.load(place), value), place)

    def load(self, array: Any, index: Any, kind: Any) -> Any:
        """A vector, or one item, from the items `index` and following."""
        return self.builder.load(self._at(array, index, kind), align=4)

    def store(self, value: Any, array: Any, index: Any) -> None:
        """The reverse of `load`."""
        self.builder.store(value, self._at(array, index, value.type), align=4)

    def _at(self, array: Any, index: Any, kind: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(array, [index]), kind.as_pointer())

    def splat(self, scalar: Any, kind: Any) -> Any:
        """`scalar`, a value or a Python number, in every lane."""
        if not isinstance(scalar, ir.Value):
            return (
                ir.Constant(kind, [scalar] * kind.count)
                if isinstance(kind, ir.VectorType)
                else ir.Constant(kind, scalar)
            )
        if scalar.type == kind:
            return scalar
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, I32(0))
        return self.builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count))

    def __getattr__(self, operation: str) -> Callable[[Any, Any], Any]:
        """Operations of two operands by llvmlite's names: `code.xor(a, b)`, `and_`, `shl`, `mul`, `fadd` ..."""
        emit = getattr(self.builder, operation)

        def operate(a: Any, b: Any) -> Any:
            kinds = [x.type for x in (a, b) if isinstance(x, ir.Value)]
            kind = next((k for k in kinds if isinstance(k, ir.VectorType)), kinds[0])
            return emit(self.splat(a, kind), self.splat(b, kind))

        return operate

    def call(self, name: str, kind: Any, *arguments: Any) -> Any:
        """One of LLVM's intrinsic functions, of type `kind`."""
        signature = ir.FunctionType(kind, [a.type for a in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, signature, name)
        return self.builder.call(function, arguments)

    def lanes(self, a: Any, b: Any, chosen: Sequence[int]) -> Any:
        """Lanes of a (0 and up) and b (from a's count up)."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(chosen)), list(chosen)))
