import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learners.options import Data, Exchange, Mach, Optimizer, Topology
from topology import parse
from topology.check import check


def chain(**links: str | tuple[str, ...]) -> Topology:
    learners = {
        name: Mach(child=below or None) if isinstance(below, str) else Mach(children=below)
        for name, below in links.items()
    }
    return Topology(version=1, name="x", learners=learners)


def one(**options: object) -> Topology:
    return Topology(version=1, name="x", learners={"top": Mach(**options)})  # type: ignore[arg-type]


# ---------------------------------------------------------------- case 2: loops


@pytest.mark.parametrize(
    "links, line, path, loop",
    [
        ("a: {kind: mach, child: a}", 4, "learners.a.child", "a -> a"),
        ("a: {kind: mach, child: b}\n  b: {kind: mach, child: a}", 4, "learners.a.child", "a -> b -> a"),
        (
            "a: {kind: mach, child: b}\n  b: {kind: mach, child: c}\n  c: {kind: mach, children: [a]}",
            5,
            "learners.b.child",
            "b -> c -> a -> b",
        ),
        (
            "z: {kind: mach, child: a}\n  a: {kind: mach, children: [d, b]}\n"
            "  b: {kind: mach, child: a}\n  d: {kind: mach}",
            5,
            "learners.a.children[1]",
            "a -> b -> a",
        ),
    ],
)
def test_a_loop_is_refused_and_named_in_full(tmp_path: Path, links: str, line: int, path: str, loop: str) -> None:
    file = tmp_path / "loop.yaml"
    file.write_text(f"version: 1\nname: loop\nlearners:\n  {links}\n")
    with pytest.raises(parse.Problems) as caught:
        parse.load(file)
    (found,) = caught.value.problems
    assert (found.file, found.line, found.path) == (str(file), line, path)
    assert f": {loop};" in found.message


def test_two_loops_are_both_named() -> None:
    found = check(chain(a="b", b="a", c="d", d="c", e="a"))
    assert [message.split(": ")[1].split(";")[0] for _, message in found] == ["b -> a -> b", "c -> d -> c"]


def test_one_wrong_link_is_one_problem_although_it_closes_several_loops() -> None:
    assert [path for path, _ in check(chain(left="top", right=("left",), top=("left", "right")))] == [
        "learners.left.child"
    ]


def _without(name: str, found: list[tuple[str, str]], links: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The children of a learner but for the links that were found to close a loop."""
    closing = {path for path, _ in found}
    return tuple(c for i, c in enumerate(links[name]) if f"learners.{name}.children[{i}]" not in closing)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sets(st.integers(0, 5), max_size=3), min_size=1, max_size=6))
def test_a_graph_is_refused_exactly_if_it_has_a_loop(below: list[set[int]]) -> None:
    names = [f"n{i}" for i in range(len(below))]
    links = {
        name: tuple(names[child] for child in sorted(children) if child < len(names))
        for name, children in zip(names, below, strict=True)
    }
    left = dict(links)
    while leaves := [name for name, children in left.items() if not any(child in left for child in children)]:
        for leaf in leaves:
            del left[leaf]
    found = check(chain(**links))
    loops = [message for _, message in found if "->" in message]
    assert bool(loops) == bool(left)
    assert not check(chain(**{name: _without(name, found, links) for name in links}))
    for message in loops:
        loop = message.split(": ", 1)[1].split(";")[0].split(" -> ")
        assert loop[0] == loop[-1] and all(b in links[a] for a, b in itertools.pairwise(loop))


# ---------------------------------------------------------------- other references


def test_references() -> None:
    assert check(chain(bottom="", top="botom")) == [
        ("learners.top.child", "'botom' is not a learner; did you mean 'bottom'?")
    ]
    assert check(chain(a="", top=("a", "zzz"))) == [("learners.top.children[1]", "'zzz' is not a learner; known are a")]
    assert check(chain(a="", top=("a", "a"))) == [
        ("learners.top.children[1]", "'a' is named twice; name each child once")
    ]
    both = Topology(version=1, name="x", learners={"a": Mach(), "b": Mach(child="a", children=("a",))})
    assert check(both) == [("learners.b.children", "child is given too; write only children: [a]")]


def test_several_chains_shared_children_and_lone_learners_are_fine() -> None:
    assert check(chain(a="", b="a", c="a", d=("b", "c"), e="", f="e")) == []


# ---------------------------------------------------------------- resources and values


@pytest.mark.parametrize(
    "resource, amount, words",
    [
        ("CPU", 1, "did you mean 'cpus'?"),
        ("CPUS", 1, "did you mean 'cpus'?"),
        ("cpu", 1, "did you mean 'cpus'?"),
        ("num_cpus", 1, "did you mean 'cpus'?"),
        ("GPU", 1, "did you mean 'gpus'?"),
        ("Gpus", 1, "did you mean 'gpus'?"),
        ("memory", 1, "not a resource that a learner can ask for"),
        ("cpus", 0, "0 is not an amount"),
        ("IPU", 0, "0 is not an amount"),
        ("IPU", -1, "-1 is not an amount"),
        ("IPU", 1e-5, "1e-05 is not an amount"),
        ("IPU", 1.5, "1.5 is not whole"),
        ("gpus", 2.5, "2.5 is not whole"),
    ],
)
def test_resources_that_ray_would_refuse(resource: str, amount: float, words: str) -> None:
    ((path, message),) = check(one(resources={resource: float(amount)}))
    assert path == f"learners.top.resources.{resource}" and words in message


def test_resources_that_ray_accepts() -> None:
    assert check(one(resources={"cpus": 1.5, "gpus": 0.5, "IPU": 2.0, "ipu_pod": 0.25, "node:10.0.0.1": 0.01})) == []


def test_values_that_contradict_one_another() -> None:
    assert check(one(optimizer=Optimizer(warmup=1000), steps=1000)) == []
    ((path, message),) = check(one(optimizer=Optimizer(warmup=1001), steps=1000))
    assert path == "learners.top.optimizer.warmup" and "1001 is more than the learner's 1000 steps" in message
    ((path, _),) = check(one(exchange=Exchange(patience=3.0, time_limit=2.0)))
    assert path == "learners.top.exchange.patience"
    run = Topology(version=1, name="x", learners={"a": Mach(), "b": Mach(child="a", exchange=Exchange(in_flight=64))})
    ((path, message),) = check(run)
    assert path == "learners.b.exchange.in_flight" and "the queue of 'a'" in message
    for queue, faults in ((4, 1), (5, 0)):  # three open for training, two for held-out rows
        learners = {"a": Mach(exchange=Exchange(queue=queue)), "b": Mach(child="a", exchange=Exchange(in_flight=2))}
        assert len(check(Topology(version=1, name="x", learners=learners))) == faults
    alone = Topology(version=1, name="x", data=Data(shard="by_learner"), learners={"a": Mach()})
    assert [path for path, _ in check(alone)] == ["data.shard"]


def test_data_sets_are_known_or_files_or_functions() -> None:
    def of(name: str) -> list[tuple[str, str]]:
        return check(Topology(version=1, name="x", data=Data(name=name), learners={"a": Mach()}))

    assert [of(name) for name in ("digits", "cifar10", "some/file.npz", "mine:rows")] == [[]] * 4
    assert of("fashon_mnist") == [("data.name", "'fashon_mnist' is not a data set; did you mean 'fashion_mnist'?")]
    assert "known are digits" in of("zzzz")[0][1]


def test_a_contradiction_is_told_at_the_line_of_the_default_it_comes_from() -> None:
    text = "version: 1\nname: x\ndefaults:\n  optimizer: {warmup: 50}\nlearners:\n  top: {kind: mach, steps: 10}\n"
    with pytest.raises(parse.Problems) as caught:
        parse.loads(text)
    (found,) = caught.value.problems
    assert (found.line, found.path) == (4, "learners.top.optimizer.warmup")


def test_a_faulty_value_brings_no_contradiction_of_its_default() -> None:
    text = "version: 1\nname: x\nlearners:\n  top: {kind: mach, steps: 5_000, optimizer: {warmup: 2000}}\n"
    with pytest.raises(parse.Problems) as caught:
        parse.loads(text)
    assert [problem.path for problem in caught.value.problems] == ["learners.top.steps"]
