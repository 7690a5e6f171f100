"""The page of one run and of several, and the table of all records."""

import base64
import json
import re
from html.parser import HTMLParser

import numpy as np
import pyarrow.parquet
import pytest

from actors.recorder import Parcel, Recorder
from analysis import page, report
from learners.records import Record


def ran(folder, learners, begin=1000.0, steps=40, outcome=None, chain="seed: 7\nsteps: 40\n"):
    """A run folder, its records through the recorder itself."""
    folder.mkdir()
    recorder = Recorder(str(folder))
    for number, name in enumerate(learners):
        records = [
            Record(name, 0, s, begin + s, "train", {"train/loss": 1.0 / s, "bytes/updates": 8.0 * s})
            for s in range(1, steps + 1)
        ] + [
            Record(name, 0, s, begin + s, "evaluate", {"validation/accuracy/child": s / 100 + number / 10})
            for s in range(10, steps + 1, 10)
        ]
        recorder.append(Parcel(name, 0, 0, tuple(records), (), ()))
    recorder.close()
    content = {"name": "tiny", "seed": 7, "versions": {"numpy": "2"}, "written": 0.0, "outcome": outcome}
    (folder / "run.json").write_text(json.dumps(content))
    (folder / "chain.yaml").write_text(chain)
    return folder


OUTCOME = {
    "seconds": 12.5,
    "problems": ["learners.<top> failed"],
    "events": ["bottom was started again"],
    "learners": {
        "bottom": {
            "status": "ended",
            "steps": 40,
            "seconds": 11.0,
            "accuracies": {"validation/accuracy/child": 0.5, "test/accuracy/child": 0.75},
            "restarts": 1,
            "fallbacks": 3,
            "bytes": {"sent inline": 5, "sent store": 6, "received inline": 7, "updates": 8},
        }
    },
}


class Read(HTMLParser):
    """Cells, sources of pictures, and text of a page."""

    def __init__(self, path):
        super().__init__()
        self.cells, self.sources, self.words, self.links = [], [], [], []
        self._in = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        self._in = tag
        self.sources += [value for key, value in attrs if key == "src"]
        self.links += [value for key, value in attrs if key == "href"]

    def handle_data(self, data):
        self.words.append(data)
        if self._in == "td":
            self.cells.append(data)
            self._in = ""


def test_the_page_holds_all_that_it_shows(tmp_path):
    run = ran(tmp_path / "tiny", ("bottom",), outcome=OUTCOME)
    graph = b"\x89PNG picture"
    made = report.analyse(run, what=("curves", "communication", "exchange"), state="ended", graph=graph)
    found = Read(run / "analysis" / "report.html")
    kinds = [re.match(r"data:image/([a-z+]+);base64,(.*)", source) for source in found.sources]
    assert [kind[1] for kind in kinds] == ["png", "svg+xml", "svg+xml"]
    assert base64.b64decode(kinds[0][2]) == graph
    assert base64.b64decode(kinds[1][2]) == made.written["curves"][1].read_bytes()
    assert found.links == ["#curves", "#communication"]
    text = " ".join(found.words)
    for said in ("learners.<top> failed", "bottom was started again", "records end at step 40", "exchange: nothing to"):
        assert said in text, said
    assert found.cells == ["bottom", "ended", "40", "11", "75", "1", "3", "7", "19"]


def test_a_run_that_goes_on_has_a_page_without_a_summary(tmp_path):
    run = ran(tmp_path / "tiny", ("bottom",))
    report.analyse(run, what=("progress",))
    assert Read(run / "analysis" / "report.html").cells == []


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_damaged_manifest_hides_no_records(tmp_path, content):
    run = ran(tmp_path / "tiny", ("bottom",))
    (run / "run.json").write_text(content)
    assert page.manifest(run) == {}
    assert "curves" in report.analyse(run, what=("curves",)).written


def test_all_records_are_in_one_tidy_table(tmp_path):
    made = report.analyse(ran(tmp_path / "tiny", ("bottom", "top")), what=("progress",))
    found = pyarrow.parquet.read_table(made.records).to_pydict()
    rows = set(zip(*(found[name] for name in ("learner", "figure", "step", "time", "value")), strict=True))
    assert len(rows) == len(found["step"]) == 2 * (40 + 40 + 4)
    assert ("top", "train/loss", 8, 1008.0, 0.125) in rows
    assert ("top", "validation/accuracy/child", 40, 1040.0, np.float64(40 / 100 + 1 / 10)) in rows


def test_what_is_not_finite_is_null_in_the_table(tmp_path):
    run = ran(tmp_path / "tiny", ("bottom",), steps=10)
    recorder = Recorder(str(run))
    recorder.append(Parcel("worse", 0, 0, (Record("worse", 0, 1, 5.0, "train", {"train/loss": float("inf")}),), (), ()))
    recorder.close()
    path = report.analyse(run, what=("progress",)).records
    values = pyarrow.parquet.read_table(path, filters=[("learner", "=", "worse")])["value"].to_pylist()
    assert values == [None]


def test_runs_are_compared_by_the_same_views_with_clocks_that_begin_together(tmp_path):
    runs = [ran(tmp_path / "one", ("bottom",), outcome=OUTCOME), ran(tmp_path / "two", ("bottom",), begin=90000.0)]
    made = report.compare(runs, tmp_path / "out", ("clock", "communication"))
    lines = (tmp_path / "out" / "clock.csv").read_text().splitlines()[1:]
    seconds = {name: [float(row.split(",")[-3]) for row in lines if f"{name}: bottom" in row] for name in "AB"}
    assert seconds["A"] == seconds["B"] == [9.0, 19.0, 29.0, 39.0]
    assert made.ends == ("A: bottom: records end at step 40", "B: bottom: records end at step 40")
    found = Read(tmp_path / "out" / "report.html")
    assert str(runs[1]) in found.words and "bottom was started again" in " ".join(found.words)


def test_a_comparison_says_in_what_the_files_differ(tmp_path):
    runs = [
        ran(tmp_path / name, ("bottom",), chain=f"seed: 7\nsteps: {steps}\n") for name, steps in (("a", 4), ("b", 5))
    ]
    report.compare(runs, tmp_path / "out", ("progress",))
    text = "".join(Read(tmp_path / "out" / "report.html").words)
    assert "-steps: 4\n+steps: 5" in text and "-seed" not in text


def test_what_can_not_be_compared_is_refused_in_words(tmp_path):
    run = ran(tmp_path / "one", ("bottom",))
    for runs, why in (([run, tmp_path / "." / "one"], "given twice"), ([run], "1 runs; give 2 to 26")):
        with pytest.raises(ValueError, match=why):
            report.compare(runs, tmp_path / "out")
    with pytest.raises(ValueError, match="did you mean 'curves'"):
        report.compare([run, run], tmp_path / "out", ("curve",))
