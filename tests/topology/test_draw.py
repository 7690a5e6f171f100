import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import topology
from learners.options import Exchange, Mach, Topology
from topology import draw, parse

CHAINS = sorted((Path(topology.__file__).parent / "chains").glob("*.yaml"))
DIAMOND = Topology(
    version=1,
    name="diamond",
    learners={
        "a": Mach(children=("b", "c", "d"), resources={"IPU": 1.0}),
        "b": Mach(child="d", exchange=Exchange(gradients=False), embedding=7),
        "c": Mach(child="d"),
        "d": Mach(child="end"),
        "end": Mach(),
        "lone": Mach(),
    },
)


def test_text_shows_each_learner_below_its_parents() -> None:
    lines = draw.text(DIAMOND).splitlines()
    assert [line.split("  hidden")[0].split("  drawn")[0] for line in lines] == [
        "a", "├─ b", "│  └─ d", "│     └─ end", "├─ c", "│  └─ d", "└─ d", "lone",
    ]  # fmt: skip
    assert lines[0] == "a  hidden 512 x 512, embedding 128, 1000 steps of 128, IPU 1"
    assert lines[5].endswith("d  drawn above")


def test_mermaid_and_dot_hold_every_learner_and_link() -> None:
    mermaid, dot = draw.mermaid(DIAMOND), draw.dot(DIAMOND)
    assert mermaid.startswith("flowchart TD\n") and mermaid.count("-->") == 6 and mermaid.count("<b>") == 6
    assert 'n0 -->|"7 wide up, gradients down"| n1' in mermaid and 'n1 -->|"128 wide up, no gradients"| n3' in mermaid
    assert '  "a" -> "b" [label="7 wide up, gradients down"];' in dot and dot.count(" -> ") == 6
    assert '"end" [label="end\\nhidden 512 x 512\\nembedding 128\\n1000 steps of 128"];' in dot
    assert dot.count("{") == dot.count("}") == 1


@settings(max_examples=100)
@given(st.lists(st.sets(st.integers(0, 6), max_size=3), min_size=1, max_size=7))
def test_every_learner_is_below_all_of_its_parents(links: list[set[int]]) -> None:
    learners = {
        f"n{i}": Mach(children=tuple(f"n{child}" for child in sorted(below) if child < i))
        for i, below in enumerate(links)
    }
    run = Topology(version=1, name="x", learners=learners)
    depth = {name: i for i, row in enumerate(draw.levels(run)) for name in row}
    assert depth.keys() == learners.keys()
    assert all(depth[up] < depth[down] for up in learners for down in run.children_of(up))


@pytest.mark.parametrize("run", [*map(parse.load, CHAINS), DIAMOND], ids=lambda run: run.name)
def test_the_picture_and_the_file_are_the_same_pixels(run: Topology) -> None:
    pixels = draw.picture(run)
    assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3
    stored = np.asarray(Image.open(io.BytesIO(draw.png(run))).convert("RGB"))
    assert np.array_equal(stored, pixels)
    boxes = (pixels == [0xE4, 0xEE, 0xF7]).all(axis=2)
    rows = np.flatnonzero(np.diff(boxes.any(axis=1).astype(int)) == 1)
    assert len(rows) == len(draw.levels(run)), "one row of boxes for each level"
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (edge == 255).all(), "nothing is cut off"


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys; from topology import parse, check, plan, draw; "
        "heavy = {'tensorflow', 'matplotlib', 'sklearn', 'ray', 'numpy', 'rich'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    root = Path(topology.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
