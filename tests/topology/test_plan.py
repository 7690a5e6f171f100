import io
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import topology
from learners.options import Mach, Topology
from topology import parse
from topology.plan import Host, as_json, missing, plan, render, size, weights

CHAINS = Path(topology.__file__).parent / "chains"


def chain(name: str, *overrides: str) -> Topology:
    return parse.load(CHAINS / f"{name}.yaml", overrides)


def host(name: str = "head", **resources: float) -> Host:
    return Host(name, resources, resources)


def lone(count: int, **resources: float) -> Topology:
    return Topology(version=1, name="x", learners={f"n{i}": Mach(resources=resources) for i in range(count)})


# ---------------------------------------------------------------- numbers


@given(st.lists(st.integers(1, 20), min_size=2, max_size=5))
def test_weights_are_what_the_layers_hold(widths: list[int]) -> None:
    arrays = [np.zeros((above + 1, below)) for above, below in itertools.pairwise(widths)]
    assert weights(widths) == sum(array.size for array in arrays)


def test_parameters_and_memory_of_two_children() -> None:
    left, _right, top = plan(chain("two-children"), (64,), 10, 8).rows
    assert left.encoder == 65 * 256 + 257 * 256 + 257 * 64
    assert (left.head, left.synthetic) == (65 * 10, 0)
    assert top.encoder == (64 + 96 + 1) * 256 + 257 * 256 + 257 * 64, "features and both embeddings"
    assert top.synthetic == 65 * 128 + 129 * 96, "as wide as both embeddings"
    assert left.memory == 4 * (3 * (left.encoder + left.head) + 2 * left.encoder), "graded by its parent"
    assert top.memory == 4 * 3 * top.parameters, "two moments for each weight, no parent"


@pytest.mark.parametrize("rule, slots", [("sgd", 0), ("momentum", 1), ("nesterov", 1), ("adam", 2)])
def test_memory_follows_the_rule(rule: str, slots: int) -> None:
    (row,) = plan(
        parse.loads(f"{{version: 1, name: x, learners: {{a: {{kind: mach, optimizer: {{name: {rule}}}}}}}}}"),
        (9,),
        3,
        4,
    ).rows
    assert row.memory == 4 * (1 + slots) * row.parameters


def test_no_state_is_kept_for_gradients_that_nobody_sends() -> None:
    run = chain("digits", "learners.middle.exchange.gradients=false")
    made = plan(run, (64,), 10, 8)
    assert made.rows[0].memory == 4 * 3 * made.rows[0].parameters
    assert [edge.gradient for edge in made.edges] == [0, 64 * 4 + 64 * 64 * 4]


def test_the_precision_of_who_sends_counts():
    run = chain("digits", "learners.middle.exchange.precision=int8", "learners.top.exchange.precision=float16")
    numbers, rows = 64 * 64, 64 * 4
    found = {(e.parent, e.child): (e.answer, e.gradient) for e in plan(run, (64,), 10, 8).edges}
    assert found["middle", "bottom"] == (4 * numbers, rows + numbers)
    assert found["top", "middle"] == (numbers, rows + 2 * numbers)


def test_numbers_agree_with_the_learner_that_is_built() -> None:
    """Parameters and optimiser state of plan.py and of learners.mach, for a learner with parent and children."""
    from learners import mach, optimizers

    run = parse.loads(
        "{version: 1, name: x, defaults: {hidden: [5], embedding: 3, synthetic: {hidden: [4]}, batch_size: 2},"
        " learners: {a: {kind: mach}, b: {kind: mach, child: a}, c: {kind: mach, child: b}}}"
    )
    row = plan(run, (6,), 2, 8).rows[1]
    widths = {"features": 6, "classes": 2, "children": (3,), "hidden": (5,), "embedding": 3, "synthetic": (4,)}
    shape = mach.Shape(**widths, batch=2, gradient_rows=2, answer_rows=2)
    built = mach.Mach(shape, optimizers.Rule(name="adam"), seed=0)

    def count(arrays: Sequence[object]) -> int:
        return sum(int(np.prod(array.shape)) for array in arrays)  # type: ignore[attr-defined]

    assert [row.encoder, row.head, row.synthetic] == [count(built.encoder), count(built.head), count(built.synthetic)]
    slots = [slot for weights in built.slots.values() for pair in weights for slot in pair]
    assert row.memory == 4 * (row.parameters + count(slots))


def test_wide_goes_through_the_object_store_and_the_others_do_not() -> None:
    (edge,) = plan(chain("wide"), (64,), 10, 8).edges
    assert edge.answer == 512 * 128 * 4 == 262_144
    assert (edge.inline, edge.store) == (2 * 512 * 4, 2 * 262_144)
    for name in ("digits", "private", "two-children"):
        assert all(edge.store == 0 for edge in plan(chain(name), (64,), 10, 8).edges)


def test_a_message_at_the_limit_sends_its_largest_array_through_the_object_store() -> None:
    run = chain("wide")
    edge = plan(run, (64,), 10, 8).edges[0]
    answer, gradient = edge.answer, edge.gradient
    assert plan(run, (64,), 10, 8, inline_limit=answer).edges[0].store == 2 * answer
    assert plan(run, (64,), 10, 8, inline_limit=answer + 1).edges[0].store == answer
    assert plan(run, (64,), 10, 8, inline_limit=gradient).edges[0].store == answer
    assert plan(run, (64,), 10, 8, inline_limit=gradient + 1).edges[0].store == 0


def test_private_data_travels_as_features_of_their_own_type() -> None:
    made = plan(chain("private"), (784,), 10, 1)
    assert {edge.request for edge in made.edges} == {64 * 784}
    assert {edge.gradient for edge in made.edges} == {64 * 784 + 64 * 64 * 4}
    assert "features of the rows" in made.data.lower() and "features" in made.edges[0].reveals
    shared = plan(chain("digits"), (784,), 10, 1)
    assert {edge.request for edge in shared.edges} == {64 * 4} and shared.edges[0].reveals == "row numbers"
    assert "features and labels stay" in shared.data


def test_threads_are_the_whole_part_of_the_cpus() -> None:
    for cpus, threads in ((None, 1), (0.25, 1), (1.0, 1), (1.9, 1), (4.0, 4)):
        (row,) = plan(lone(1, **({"cpus": cpus} if cpus else {})), (4,), 2, 4).rows
        assert (row.cpus, row.threads) == (cpus or 0.5, threads)


# ---------------------------------------------------------------- case 3: what the cluster lacks


def messages(run: Topology, *hosts: Host) -> list[str]:
    return [str(lack) for lack in missing(run, hosts)]


def test_a_resource_that_nobody_has() -> None:
    run = chain("digits", "learners.top.resources.IPU=1")
    assert messages(run, host(CPU=2.0)) == ["learners.top.resources.IPU: 1 wanted, no host has any; hosts have CPU 2"]
    assert missing(run, []) == [], "nothing is known"


def test_a_resource_under_another_spelling() -> None:
    (lack,) = missing(chain("digits", "learners.top.resources.ipu=1"), [host(CPU=2.0), host("b", CPU=1.0, IPU=2.0)])
    assert (lack.learner, lack.resource, lack.wanted, lack.available) == ("top", "ipu", 1.0, 0.0)
    assert str(lack).endswith("no host has any; hosts have CPU 3, IPU 2; did you mean 'IPU'?")


def test_two_wanted_on_one_host_where_each_has_one() -> None:
    run = chain("digits", "learners.top.resources.IPU=2")
    (message,) = messages(run, host("a", CPU=2.0, IPU=1.0), host("b", CPU=2.0, IPU=1.0))
    assert message == "learners.top.resources.IPU: 2 wanted, no host has more than 1; all hosts together have 2"


def test_more_learners_than_cpus_names_the_first_that_does_not_fit() -> None:
    assert missing(lone(4), [host(CPU=2.0)]) == []
    (lack,) = missing(lone(5), [host(CPU=2.0)])
    assert (lack.learner, lack.resource, lack.wanted, lack.available) == ("n4", "CPU", 0.5, 0.0)
    assert "learners.n4.resources.cpus: 0.5 wanted, at most 0 left on one host (2 in all" in str(lack)


def test_what_other_programs_hold_is_not_counted() -> None:
    busy = Host("head", {"CPU": 2.0}, {"CPU": 0.5})
    (lack,) = missing(lone(2), [busy])
    assert "1.5 held by other programs" in str(lack)
    gone = Host("head", {"CPU": 2.0}, {})  # Ray leaves out what is used up
    assert len(missing(lone(1), [gone])) == 1


def test_resources_that_no_host_has_together() -> None:
    run = lone(1, cpus=2.0, IPU=1.0)
    (message,) = messages(run, host("a", CPU=2.0), host("b", CPU=1.0, IPU=1.0))
    assert message == (
        "learners.n0.resources: CPU 2, IPU 1 wanted on one host, none has them together free; "
        "a has CPU 2; b has CPU 1, IPU 1"
    )


def test_special_hosts_are_kept_for_those_who_need_them() -> None:
    one = Mach(resources={"cpus": 1.0})
    learners = {"a": one, "b": one, "c": Mach(resources={"cpus": 0.5, "IPU": 1.0})}
    run = Topology(version=1, name="x", learners=learners)
    made = plan(run, (4,), 2, 4, [host("ipu", CPU=1.0, IPU=4.0), host("plain", CPU=2.0)])
    assert [row.host for row in made.rows] == ["plain", "plain", "ipu"] and made.lacks == ()


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.0, 1.0])), min_size=1, max_size=5),
    st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([0.0, 1.0])), min_size=1, max_size=3),
)
def test_no_host_is_promised_more_than_it_has(
    wants: list[tuple[float, float]], haves: list[tuple[float, float]]
) -> None:
    learners = {
        f"n{i}": Mach(resources={"cpus": cpus, **({"IPU": ipu} if ipu else {})}) for i, (cpus, ipu) in enumerate(wants)
    }
    hosts = [host(f"h{i}", CPU=cpus, **({"IPU": ipu} if ipu else {})) for i, (cpus, ipu) in enumerate(haves)]
    made = plan(Topology(version=1, name="x", learners=learners), (4,), 2, 4, hosts)
    for one in hosts:
        here = [row for row in made.rows if row.host == one.name]
        assert sum(row.cpus for row in here) <= one.total["CPU"]
        assert sum(row.resources.get("IPU", 0.0) for row in here) <= one.total.get("IPU", 0.0)
    assert {row.learner for row in made.rows if row.host is None} == {lack.learner for lack in made.lacks}


# ---------------------------------------------------------------- for people


def test_rendered_and_json_say_the_same() -> None:
    made = plan(chain("wide", "learners.top.resources.IPU=1"), (64,), 10, 8, [host(CPU=2.0)])
    out = Console(file=io.StringIO(), width=120)
    out.print(render(made))
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    for words in ("top -> bottom", "262 kB", "IPU 1", "LACKING  learners.top.resources.IPU: 1 wanted", "Row numbers"):
        assert words in shown
    plain = json.loads(json.dumps(as_json(made)))
    assert plain["edges"][0]["answer"] == 262_144 and plain["lacks"][0]["learner"] == "top"
    assert plain["parameters"] == sum(row["parameters"] for row in plain["rows"])


def test_sizes_for_people() -> None:
    assert [size(n) for n in (0, 999, 1000, 262_144, 5_670_000, 3e9)] == [
        "0 B", "999 B", "1 kB", "262 kB", "5.67 MB", "3 GB",
    ]  # fmt: skip
