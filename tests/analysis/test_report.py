"""`machworks analyse` on run folders as recorder and keeper leave them: which pictures there are, what is in them."""

import csv
import json
import os
import re
import shutil

import numpy as np
import pytest

from actors import checkpoint
from actors.recorder import Parcel, Recorder
from analysis import pictures, report, table
from analysis.instruments import INSTRUMENTS
from analysis.pictures import Line, Map, Panel, Sheet, draw, tidy
from analysis.views import VIEWS
from learners import watching
from learners.layout import laid_out
from learners.mach import Mach, Shape
from learners.optimizers import Rule
from learners.rbd.defaults import filled
from learners.rbd.descent import Problem, descend
from learners.rbd.options import Basis, Exchange, Rbd
from learners.rbd.workers import Method, start
from learners.records import Record
from learners.watching import Probe
from topology import cli, parse
from topology import outcome as outcome_

CHAIN = """
version: 1
name: small
learners:
  bottom: {kind: mach, hidden: [8], embedding: 4}
  top: {kind: mach, child: bottom, hidden: [8], embedding: 4, synthetic: {hidden: [6]}}
"""
TENSORS = laid_out([("dense_0/kernel", 0, "kernel", (8, 5)), ("dense_0/bias", 0, "rest", (5,))])
D = TENSORS[-1].stop


def manifest(folder, state="done"):
    mine = {"state": state, "host": os.uname().nodename, "process": os.getpid(), "born": outcome_.born(os.getpid())}
    (folder / "run.json").write_text(json.dumps(mine))


def recorded(folder, records):
    """Through the recorder itself."""
    recorder = Recorder(str(folder))
    for name, found in records.items():
        recorder.append(Parcel(name, 0, 0, tuple(found), (), ()))
    recorder.close()
    manifest(folder)
    return folder


def mach_records(name, child, steps=60):
    for step in range(1, steps + 1):
        ways = ("child", "synthetic") if child else ("child",)
        values = {f"train/loss/{way}": 1.0 / step for way in ways} | {
            "train/accuracy/child": 1 - 1 / step,
            "speed/steps_per_second": 10.0,
            "exchange/applied": float(step),
            "exchange/lost": float(step > 30),
            "bytes/sent_inline": 1000.0 * step,
        }
        if child:
            values |= {"staleness/embedding": float(step % 3), "exchange/fallback_share": 0.25}
        yield Record(name, 0, step, 1000.0 + step, "train", values)
        if step % 20 == 0:
            yield Record(name, 0, step, 1000.0 + step, "evaluate", {"validation/accuracy/child": step / 100})
            yield Record(
                name, 0, step, 1000.0 + step, "attribute", {"pruning/inputs": 0.1, "integrated_gradients/inputs": 1.0}
            )
    yield Record(name, 0, steps, 1000.0 + steps, "final", {"test/accuracy/child": 0.9})


def state_of(children):
    shape = Shape(64, 10, children, (8,), 4, (6,), 16, 0, 16)
    return Mach(shape, Rule(**dict.fromkeys(Rule._fields, 0.0) | {"name": "sgd", "decay": "coupled"}), seed=3).save()


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A chain of two Mach learners on the digits, with a checkpoint set."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    folder.mkdir()
    (folder / "small.yaml").write_text(CHAIN)
    (folder / "chain.yaml").write_text(parse.resolved(parse.load(folder / "small.yaml")))
    for name, children in (("bottom", ()), ("top", (4,))):
        checkpoint.write(folder / "checkpoints", 0, name, checkpoint.pack(state_of(children), {"learner": name}))
    checkpoint.complete(folder / "checkpoints", 0, {"bottom": 60, "top": 60})
    return recorded(folder, {"bottom": mach_records("bottom", False), "top": mach_records("top", True)})


def worker_records(rounds=12):
    """What a worker writes: a bowl, gone down along random directions."""
    method = Method(
        filled(Rbd(steps=100, basis=Basis(dimensions=8), exchange=Exchange(every=1, precision="int8")), D), TENSORS
    )
    worker = start(method, np.ones(D, np.float32), 7)
    bowl = Problem(lambda theta, n: (float(theta @ theta) / 2, theta), lambda theta, n: float(theta @ theta) / 2)
    for step in range(1, rounds + 1):
        done = descend(method, worker, bowl, [0], watch=True)
        worker = done.worker
        values = {"train/loss": done.metrics["loss"], "update/compression": done.metrics["compression"]} | done.watched
        values["bytes/updates"] = step * done.metrics["bytes"]
        yield Record("worker", 0, step, 1000.0 + step, "train", values)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("bases"), {"worker": worker_records()})


def probe(directions=None, basis=None):
    h = np.diag(np.arange(1.0, D + 1)).astype(np.float32)
    theta = np.ones(D, np.float32)
    return Probe("worker", 12, 7, theta, lambda t: float(t @ h @ t) / 2, lambda v: h @ v, directions, basis=basis)


def worker_probe():
    method = Method(filled(Rbd(basis=Basis(dimensions=8)), D), TENSORS)
    directions = start(method, np.ones(D, np.float32), 7).shared.directions
    return probe(directions, directions.basis)


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------- the whole


def test_a_chain_has_its_pictures_and_says_which_are_left_out_and_why(chain, tmp_path):
    made = report.analyse(chain, tmp_path)
    drawn = {"curves", "clock", "progress", "exchange", "communication", "attribution"}
    assert set(made.written) == drawn
    assert set(made.left_out) == set(report.NAMES) - set(made.written)
    assert "random bases" in made.left_out["correlation"]
    for name in drawn:
        png, svg, table_ = made.written[name]
        assert png.read_bytes().startswith(b"\x89PNG") and b"<svg" in svg.read_bytes()[:1000] and len(rows(table_)) > 0
    assert sorted(tmp_path.iterdir()) == sorted(
        [made.records, made.page, *(path for paths in made.written.values() for path in paths)]
    )


def test_a_worker_has_correlation_coordinates_updates_and_no_staleness(bases, tmp_path):
    made = report.analyse(bases, tmp_path)
    drawn = {"curves", "progress", "communication", "correlation", "coordinates", "updates"}
    assert set(made.written) == drawn
    lines = {row["line"] for row in rows(tmp_path / "correlation.csv")}
    assert lines == {"all", "dense_0/kernel", "dense_0/bias"}
    (row,) = rows(tmp_path / "communication.csv")
    # 8 coordinates of a byte each and an exponent, in place of 45 gradients of 4 bytes
    assert float(row["sent per step, B"]) == 9 and float(row["compression, times"]) == 4 * D / 9


def test_the_table_beside_a_picture_is_what_was_recorded(chain, tmp_path):
    report.analyse(chain, tmp_path, ["curves", "communication", "exchange"])
    found = rows(tmp_path / "curves.csv")
    accuracy = [row for row in found if row["panel"] == "accuracy on validation rows" and row["line"] == "top, child"]
    assert [(float(row["x"]), float(row["value"])) for row in accuracy] == [(20, 0.2), (40, 0.4), (60, 0.6)]
    by_name = {row["learner"]: row for row in rows(tmp_path / "communication.csv")}
    assert float(by_name["top"]["sent inline, B"]) == 60_000 and float(by_name["top"]["sent per step, B"]) == 1000
    assert float(by_name["top"]["answers used, %"]) == 75 and float(by_name["top"]["accuracy, %"]) == 90
    lost = [row for row in rows(tmp_path / "exchange.csv") if row["line"] == "top, lost"]
    assert float(lost[-1]["value"]) == 1


def test_bytes_are_those_of_the_whole_run_once_it_has_ended(chain, tmp_path):
    """Who answers is asked on after its last step, of which it writes no more records."""
    run = tmp_path / "run"
    shutil.copytree(chain, run)
    outcome = {"learners": {"bottom": {"bytes": {"sent inline": 90_000, "received inline": 7}}}}
    (run / "run.json").write_text(json.dumps(json.loads((run / "run.json").read_text()) | {"outcome": outcome}))
    report.analyse(run, tmp_path, ["communication"])
    by_name = {row["learner"]: row for row in rows(tmp_path / "communication.csv")}
    assert [float(by_name["bottom"][f"{way} inline, B"]) for way in ("sent", "received")] == [90_000, 7]
    assert float(by_name["bottom"]["sent per step, B"]) == 1500
    assert float(by_name["top"]["sent inline, B"]) == 60_000  # of which nothing else is known


def test_speed_is_drawn_from_the_moments_of_the_steps(chain, tmp_path):
    """Not from the figure that a learner holds for half a second: it would be a staircase."""
    report.analyse(chain, tmp_path, ["progress"])
    found = [row for row in rows(tmp_path / "progress.csv") if row["panel"].startswith("speed")]
    assert {float(row["value"]) for row in found} == {1.0} and {row["line"] for row in found} == {"bottom", "top"}


def test_a_learner_without_children_is_called_by_its_name(chain, tmp_path):
    report.analyse(chain, tmp_path, ["curves", "clock", "attribution"])
    assert {row["line"] for row in rows(tmp_path / "clock.csv")} == {"bottom", "top, child"}
    lines = {row["line"] for row in rows(tmp_path / "curves.csv")}
    assert lines == {"bottom", "top, child", "top, synthetic"}
    assert {row["line"] for row in rows(tmp_path / "attribution.csv")} == {"bottom", "top, inputs"}


def test_only_what_is_asked_for_is_written_and_probes_only_if_needed(chain, tmp_path):
    def never():
        raise AssertionError("nobody asked for it")

    made = report.analyse(chain, tmp_path, ["progress"], never)
    assert set(made.written) == {"progress"} and made.left_out == {}


def test_an_unknown_picture_is_refused_with_the_nearest_and_nothing_is_written(chain, tmp_path):
    with pytest.raises(ValueError, match=r"'curve' is not a picture; did you mean 'curves'\?.*landscape"):
        report.analyse(chain, tmp_path, ["progress", "curve"])
    assert not list(tmp_path.iterdir())


def test_why_there_is_no_checkpoint_is_said_for_each_instrument(chain, tmp_path):
    def none():
        raise ValueError("no complete checkpoint set")

    made = report.analyse(chain, tmp_path, list(INSTRUMENTS), none)
    assert made.left_out == dict.fromkeys(INSTRUMENTS, "no complete checkpoint set") and not made.written


def test_a_run_that_was_killed_while_it_wrote_is_drawn_up_to_there(chain, tmp_path):
    content = (chain / "records/top.jsonl").read_bytes()
    killed = tmp_path / "killed"
    (killed / "records").mkdir(parents=True)
    manifest(killed)
    (killed / "records/top.jsonl").write_bytes(content[: len(content) // 2])
    made, last = report.analyse(killed), table.read(killed).learners[0].step
    assert 20 < last < 40 and made.ends[0].startswith(f"top: records end at step {last}; ")
    assert set(made.written) >= {"curves", "progress", "exchange"}
    steps = [
        float(row["value"]) for row in rows(killed / "analysis/progress.csv") if row["panel"] == "steps against time"
    ]
    assert steps == list(range(1, last + 1))


# ---------------------------------------------------------------- instruments


def test_curvature_along_a_workers_directions_is_that_of_the_known_hessian(tmp_path, bases):
    probe = worker_probe()
    report.analyse(bases, tmp_path, ["hessian"], lambda: [probe])
    units = np.stack(list(watching.columns(probe.directions, probe.name)))
    known = units @ np.diag(np.arange(1.0, D + 1)) @ units.T
    found = rows(tmp_path / "hessian.csv")
    eigenvalues = [float(row["value"]) for row in found if row["line"].startswith("eigenvalues")]
    np.testing.assert_allclose(eigenvalues, np.linalg.eigvalsh(known)[::-1], rtol=1e-3)
    full = [float(row["value"]) for row in found if "full matrix" in row["panel"]]
    np.testing.assert_allclose(np.reshape(full, known.shape), known, rtol=1e-3, atol=1e-3)


def test_the_landscape_is_lowest_where_a_bowl_is_and_its_plane_contains_the_profiles(tmp_path, bases):
    report.analyse(bases, tmp_path, ["landscape"], lambda: [probe()])
    found = rows(tmp_path / "landscape.csv")
    profile = {float(row["x"]): float(row["value"]) for row in found if row["line"] == "direction 2"}
    assert len(profile) == 41 and profile[0.0] == pytest.approx(D * (D + 1) / 4, rel=1e-4)
    plane = {float(row["x"]): float(row["value"]) for row in found if row["y"] and float(row["y"]) == 0.0}
    assert all(profile[x] == pytest.approx(value, rel=1e-4) for x, value in plane.items())


def test_orthogonality_is_of_learners_that_go_along_random_directions(tmp_path, bases):
    made = report.analyse(bases, tmp_path, ["orthogonality"], lambda: [probe(), worker_probe()])
    assert set(made.written) == {"orthogonality"}
    made = report.analyse(bases, tmp_path, ["orthogonality"], lambda: [probe()])
    assert "random directions" in made.left_out["orthogonality"]


# ---------------------------------------------------------------- pictures


def test_every_panel_has_named_axes_and_a_legend(chain, bases):
    for folder in (chain, bases):
        run = table.read(folder)
        for view in VIEWS.values():
            parts = view.look(run)
            if not parts:
                continue
            for axes, part in zip(draw(view.title, parts).axes, parts, strict=True):
                if isinstance(part, Panel):
                    assert axes.get_xlabel() and axes.get_ylabel() and axes.get_title()
                    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
                        line.name for line in part.lines
                    ]
                    assert len({line.name for line in part.lines}) == len(part.lines)


def test_axes_name_their_units(chain, bases):
    unit = re.compile(
        r"steps|nats|share of|seconds|per second|units of weight"
        r"|count|number|times|cosine|ratio| / \|weights\||root mean"
    )
    parts = [part for folder in (chain, bases) for view in VIEWS.values() for part in view.look(table.read(folder))]
    parts += [part for one in INSTRUMENTS.values() for part in one.look([worker_probe()])]
    assert any(isinstance(part, Map) for part in parts)
    for part in parts:
        axes = part.columns[1:] if isinstance(part, Sheet) else (part.x, part.y)
        axes += (part.colours,) if isinstance(part, Map) else ()
        assert all(unit.search(axis) or axis.endswith((", B", ", %", "applied")) for axis in axes), axes


@pytest.mark.parametrize("count", [1, 2, pictures.FEW - 1, pictures.FEW])
def test_the_points_of_a_short_line_are_marked(count):
    x = np.arange(float(count))
    (axes,) = draw("", [Panel("t", "x", "y", (Line("one", x, x),))]).axes
    (line,) = axes.get_lines()
    assert (line.get_marker() == "o") == (count < pictures.FEW)


def test_theory_is_drawn_dashed_over_the_measurement():
    x = np.arange(3.0)
    panel = Panel("t", "x", "y", (Line("measured", x, x), Line("theory", x, x, style="theory")))
    (axes,) = draw("", [panel]).axes
    measured, theory = axes.get_lines()
    assert (
        theory.get_color() == "black"
        and theory.get_linestyle() not in ("-", "None")
        and measured.get_linestyle() == "-"
    )


def test_a_map_that_is_signed_has_0_in_the_middle_of_its_colours():
    grid = np.arange(2.0)
    figure = draw("", [Map("m", "x", "y", "c", grid, grid, np.array([[1.0, -3.0], [0.0, 2.0]]), signed=True)])
    (mesh,) = figure.axes[0].collections
    assert mesh.get_clim() == (-3.0, 3.0)


def test_tables_name_their_columns_once_and_leave_unknown_cells_empty(tmp_path):
    sheet = Sheet("", ("learner", "bytes"), (("top", 1234567.0), ("bottom", float("nan"))))
    pictures.save(tmp_path, "sheet", "", [sheet])
    assert tidy([sheet])[0] == ("learner", "bytes")
    assert [row["bytes"] for row in rows(tmp_path / "sheet.csv")] == ["1234567.0", ""]


# ---------------------------------------------------------------- the command


def test_the_command_measures_a_chains_checkpoint(chain, tmp_path, capsys):
    """Learner by learner, on rows of the data that the run file names."""
    status = cli.main(
        ["analyse", str(chain), "--what", "hessian,landscape,orthogonality", "--out", str(tmp_path), "--json"]
    )
    answer = json.loads(capsys.readouterr().out)
    assert (
        status == 0
        and set(answer["written"]) == {"hessian", "landscape"}
        and set(answer["left_out"]) == {"orthogonality"}
    )
    assert answer["state"] == "done"
    panels = {row["panel"] for row in rows(tmp_path / "hessian.csv")}
    assert any("bottom, step 60" in panel for panel in panels) and any("top, step 60" in panel for panel in panels)


def test_the_command_says_what_it_wrote_and_left_out(chain, tmp_path, capsys):
    assert cli.main(["analyse", str(chain), "--what", "curves,correlation", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "records end at step 60" in said and f"written   {tmp_path / 'curves.png'} .svg .csv" in said
    assert "left out  correlation: nothing to show; it needs correlations: random bases" in said
    assert cli.main(["analyse", str(tmp_path)]) == 2
    capsys.readouterr()
    for state, words in (("running", "wait for its first steps"), ("stopped", "this run is stopped")):
        manifest(tmp_path, state)
        assert cli.main(["analyse", str(tmp_path)]) == 2
        assert f"nothing is recorded: no learner has taken a step; {words} (" in capsys.readouterr().err
    assert cli.main(["analyse", str(chain), "--what", "nothing"]) == 2
