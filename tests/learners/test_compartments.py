"""Compartments are a partition of the weights, and directions are shared out to the last one."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from learners.layout import laid_out
from learners.rbd.compartments import by_layer, by_type, compartments, dynamic, of_worker, sized, split, whole

networks = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5).map(
    lambda kernels: laid_out(
        [
            row
            for layer, kernel in enumerate(kernels)
            for row in (
                (f"dense_{layer}/kernel", layer, "kernel", kernel),
                (f"dense_{layer}/bias", layer, "rest", kernel[1:]),
            )
        ]
    )
)


def cut(tensors, way, number):
    size = tensors[-1].stop
    return {
        "none": lambda: whole(size),
        "size": lambda: sized(size, number),
        "layer": lambda: by_layer(tensors, number),
        "type": lambda: by_type(tensors),
    }[way]()


@given(networks, st.sampled_from(["none", "size", "layer", "type"]), st.integers(1, 20))
def test_every_weight_is_in_exactly_one_compartment(tensors, way, number):
    size = tensors[-1].stop
    found = compartments(cut(tensors, way, number), 3, "each")
    seen = np.zeros(size, int)
    for part in found:
        for start, stop in part.ranges:
            assert start < stop
            seen[start:stop] += 1
        assert list(part.ranges) == sorted(part.ranges)
    assert (seen == 1).all() and sum(part.size for part in found) == size


@given(networks, st.sampled_from(["size", "layer", "type"]), st.integers(1, 20))
def test_gather_and_scatter_are_inverse(tensors, way, number):
    vector = np.arange(tensors[-1].stop, dtype=np.float32)
    back = np.full_like(vector, -1)
    for part in compartments(cut(tensors, way, number), 1, "each"):
        piece = part.gather(vector)
        assert len(piece) == part.size
        part.scatter(piece, back)
    assert (back == vector).all()


def test_the_ways_to_cut():
    tensors = laid_out(
        [("a", 0, "kernel", (2, 3)), ("b", 0, "rest", (3,)), ("c", 1, "kernel", (3, 2)), ("d", 1, "rest", (2,))]
    )
    assert whole(17) == [((0, 17),)]
    assert sized(17, 7) == [((0, 7),), ((7, 14),), ((14, 17),)]  # across the border of layers at 9
    assert by_layer(tensors) == [((0, 9),), ((9, 17),)]
    assert by_layer(tensors, 2) == [((0, 17),)]
    assert by_type(tensors) == [((0, 6), (9, 15)), ((6, 9), (15, 17))]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=9), st.integers(0, 500))
def test_a_split_loses_nothing_and_is_near_the_proportions(weights, spare):
    total = len(weights) + spare
    found = split(total, weights)
    assert sum(found) == total and min(found) >= 1
    assert all(abs(n - 1 - spare * w / sum(weights)) < 1 for n, w in zip(found, weights, strict=True))


def test_fewer_directions_than_parts_are_refused():
    with pytest.raises(ValueError, match="2 directions for 3 parts"):
        split(2, [1, 1, 1])


@given(st.integers(1, 16), st.integers(0, 300))
def test_the_directions_of_all_workers_are_those_asked_for(workers, spare):
    found = [of_worker(workers + spare, k, workers) for k in range(workers)]
    assert sum(found) == workers + spare and max(found) - min(found) <= 1


@given(networks, st.integers(5, 60))
def test_shares(tensors, d):
    ranges = by_layer(tensors)
    assume(len(ranges) <= d)
    sizes = [sum(stop - start for start, stop in pieces) for pieces in ranges]
    by_size, equal, each = ([part.dimensions for part in compartments(ranges, d, s)] for s in ("size", "equal", "each"))
    assert each == [min(d, size) for size in sizes]
    assert all(n <= size for n, size in zip(by_size + equal, sizes * 2, strict=True))
    uncapped = [n for n, size in zip(equal, sizes, strict=True) if n < size]
    assert not uncapped or max(uncapped) - min(uncapped) <= 1


def test_a_compression_factor_sets_the_directions_of_each_layer():
    tensors = laid_out([("a", 0, "kernel", (1000,)), ("b", 1, "kernel", (100,)), ("c", 2, "kernel", (3,))])
    linear = [part.dimensions for part in dynamic(tensors, 10.0)]
    assert linear == [100, 10, 1]
    bent = [part.dimensions for part in dynamic(tensors, 10.0, 1.2)]
    assert bent == [46, 7, 1]  # 100^(1/1.2), 10^(1/1.2)
    assert [part.dimensions for part in dynamic(tensors, 0.1)] == [1000, 100, 3]  # never more than weights
