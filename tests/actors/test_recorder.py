"""What is acknowledged is written, once, and can be read by TensorBoard's own reader."""

import errno
import json
import os
import resource

import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator, event_file_loader
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from actors.recorder import LAYOUT, WORKERS, Parcel, Recorder
from learners.records import Record, lines


def record(step, learner="top", incarnation=0, kind="train", **values):
    values = values or {"train/loss/child": 1.0 / step, "speed/steps_per_second": 10.0 * step}
    return Record(learner, incarnation, step, 1_000.0 + step, kind, values)


def parcel(sequence, steps, learner="top", incarnation=0, plotted=True, log=(), start=0):
    records = tuple(record(step, learner, incarnation) for step in steps)
    return Parcel(learner, incarnation, sequence, records, tuple(range(len(records))) if plotted else (), log, start)


def steps_on_disk(folder, learner="top"):
    path = folder / f"records/{learner}.jsonl"
    return [one.step for _, one in lines(path.read_bytes()) if isinstance(one, Record)]


def board(folder, learner="top"):
    read = event_accumulator.EventAccumulator(str(folder / "tensorboard" / learner), size_guidance={"scalars": 0})
    read.Reload()
    return read


def scalars(folder, tag="train/loss/child", learner="top"):
    """{step: value} of a tag in every event file of a learner; a step that is there twice is an error."""
    found = {}
    for path in sorted((folder / "tensorboard" / learner).iterdir()):
        for event in event_file_loader.EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag == tag:
                    assert event.step not in found
                    found[event.step] = value.tensor.float_val[0]
    return found


@pytest.fixture
def recorder(tmp_path):
    return Recorder(str(tmp_path))


def test_what_is_acknowledged_is_on_disk_at_once(recorder, tmp_path):
    for sequence in range(4):
        recorder.append(parcel(sequence, range(5 * sequence + 1, 5 * sequence + 6), log=(f"line {sequence}\n",)))
        upto = list(range(1, 5 * sequence + 6))
        assert steps_on_disk(tmp_path) == upto
        assert scalars(tmp_path) == {step: pytest.approx(1.0 / step) for step in upto}
    assert (tmp_path / "logs/top.log").read_text() == "line 0\nline 1\nline 2\nline 3\n"
    assert recorder.look().latest["top"]["step"] == 20 and recorder.look().fault == ""


def test_every_scalar_comes_back_at_its_step_and_time(recorder, tmp_path):
    recorder.append(parcel(0, range(1, 8)))
    read = board(tmp_path)
    assert set(read.Tags()["scalars"]) == {"train/loss/child", "speed/steps_per_second"}
    events = read.Scalars("speed/steps_per_second")
    assert [(e.step, e.wall_time) for e in events] == [(step, 1_000.0 + step) for step in range(1, 8)]
    assert [e.value for e in events] == [10.0 * step for step in range(1, 8)]


def test_only_what_is_to_be_plotted_reaches_tensorboard_and_the_records_have_all(recorder, tmp_path):
    chosen = Parcel("top", 0, 0, tuple(record(step) for step in range(1, 11)), (4, 9), ())
    recorder.append(chosen)
    assert steps_on_disk(tmp_path) == list(range(1, 11))
    assert sorted(scalars(tmp_path)) == [5, 10]


def test_a_parcel_that_comes_twice_is_written_once(recorder, tmp_path):
    first, second = parcel(0, [1, 2], log=("once\n",)), parcel(1, [3])
    for again in (first, first, second, first, second):
        recorder.append(again)
    assert steps_on_disk(tmp_path) == [1, 2, 3] and sorted(scalars(tmp_path)) == [1, 2, 3]
    assert (tmp_path / "logs/top.log").read_text() == "once\n"


def test_records_are_readable_after_any_cut(recorder, tmp_path):
    recorder.append(parcel(0, range(1, 4)))
    path = tmp_path / "records/top.jsonl"
    whole = path.read_bytes()
    from topology import status

    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = min(3, whole[:cut].count(b"\n"))  # the fourth line is the seal
        assert steps_on_disk(tmp_path) == list(range(1, complete + 1))
        assert status._latest(path).get("step", 0) == complete


def test_tensorboard_reads_its_file_up_to_any_cut(recorder, tmp_path):
    recorder.append(parcel(0, range(1, 4)))
    (path,) = (tmp_path / "tensorboard/top").iterdir()
    whole = path.read_bytes()
    seen = set()
    for cut in range(0, len(whole) + 1, 7):
        path.write_bytes(whole[:cut])
        found = sorted(scalars(tmp_path))
        assert found == list(range(1, len(found) + 1))
        seen.add(len(found))
    assert {0, 1, 2} <= seen


def test_two_writers_of_a_learner_in_the_same_second_lose_nothing(tmp_path, monkeypatch):
    """Case 17: file names are per second and host; a second writer overwrote the first one's file."""
    monkeypatch.setattr("actors.recorder.time.time", lambda: 1_700_000_000.0)
    for incarnation in range(3):
        for again in range(2):  # reopened within the second, in the same process
            writer = Recorder(str(tmp_path))
            steps, start = [10 * incarnation + 5 * again + 1], 10 * incarnation
            writer.append(parcel(again, steps, incarnation=incarnation, start=start))
            writer.close()
    assert sorted(scalars(tmp_path)) == [1, 6, 11, 16, 21, 26] == steps_on_disk(tmp_path)


def test_32_learners_at_once_each_in_a_directory_of_its_own(recorder, tmp_path):
    """Cases 17 and 18."""
    names = [f"learner-{number}" for number in range(32)]
    for sequence in range(3):
        for name in names:
            recorder.append(parcel(sequence, [sequence + 1], learner=name))
    assert sorted(path.name for path in (tmp_path / "tensorboard").iterdir()) == sorted(names)
    for name in names:
        assert sorted(scalars(tmp_path, learner=name)) == [1, 2, 3] == steps_on_disk(tmp_path, name)


def test_layout_picture_text_and_hyperparameters_are_there(recorder, tmp_path):
    """Case 23, for what is written before the first step."""
    picture = np.full((20, 30, 3), 200, np.uint8)
    recorder.describe(picture, {"top": {"optimizer.learning_rate": 1e-3, "hidden": "[8]", "on": True}}, "version: 1")
    recorder.append(parcel(0, [1, 2]))
    shared = board(tmp_path, "topology")
    (layout,) = shared.Tensors("custom_scalars__config__")
    parsed = layout_pb2.Layout.FromString(layout.tensor_proto.string_val[0])
    charts = {chart.title: list(chart.multiline.tag) for category in parsed.category for chart in category.chart}
    assert charts == {title: tags for title, (_, tags) in LAYOUT["Machworks"].items()}
    (image,) = shared.Images("topology")
    assert (image.width, image.height) == (30, 20) and image.encoded_image_string.startswith(b"\x89PNG")
    (text,) = shared.Tensors("run file/text_summary")
    assert b"version: 1" in text.tensor_proto.string_val[0]
    values = {}
    for path in (tmp_path / "tensorboard/top").iterdir():
        for event in event_file_loader.EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "hparams":
                    data = plugin_data_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content)
                    values |= dict(data.session_start_info.hparams)
    assert values["optimizer.learning_rate"].number_value == pytest.approx(1e-3)
    assert values["hidden"].string_value == "[8]" and values["on"].bool_value is True
    assert sorted(scalars(tmp_path)) == [1, 2]


def test_a_worker_of_random_bases_has_charts_of_its_own_beside_those_of_all(recorder, tmp_path):
    recorder.describe(np.zeros((2, 3, 3), np.uint8), {"top": {"kind": "mach"}, "worker": {"kind": "rbd"}}, "")
    (layout,) = board(tmp_path, "topology").Tensors("custom_scalars__config__")
    parsed = layout_pb2.Layout.FromString(layout.tensor_proto.string_val[0])
    assert [category.title for category in parsed.category] == [*LAYOUT, *WORKERS]
    shown = {}
    for learner in ("top", "worker"):
        for path in (tmp_path / "tensorboard" / learner).iterdir():
            for event in event_file_loader.EventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    content = value.metadata.plugin_data.content
                    infos = plugin_data_pb2.HParamsPluginData.FromString(content).experiment.metric_infos
                    shown[learner] = shown.get(learner, []) + [info.name.tag for info in infos]
    assert shown == {"top": ["test/accuracy/child", "test/accuracy/synthetic"], "worker": ["test/accuracy"]}


class Killed(BaseException):
    """Stands for SIGKILL: no handler of the program sees it."""


def killed_after(budget, monkeypatch):
    """From now on so many bytes reach the disk, in whichever file; then the process is gone."""
    left, write = [budget], os.pwrite

    def pwrite(descriptor, content, at):
        part = content[: left[0]]
        left[0] -= len(part)
        if part:
            write(descriptor, part, at)
        if len(part) < len(content):
            raise Killed
        return len(part)

    monkeypatch.setattr("actors.recorder.os.pwrite", pwrite)


PARCELS = [
    parcel(0, [1, 2], log=("a\n",)),
    parcel(1, [3, 4], log=("b\n",)),
    parcel(2, [5, 6, 7]),
    parcel(0, [4, 5], incarnation=1, start=3, log=("c\n",)),
    parcel(1, [6, 7, 8], incarnation=1, start=3, log=("d\n",)),
]


@pytest.mark.parametrize("budget", range(0, 4000, 163))
def test_a_recorder_killed_at_any_byte_and_its_successor_write_all_once(tmp_path, monkeypatch, budget):
    """Kill after so many bytes, wherever that is; senders send again what was not acknowledged."""
    writer = Recorder(str(tmp_path))
    writer.describe(np.zeros((4, 4, 3), np.uint8), {"top": {"a": 1.0}}, "version: 1")
    done = 0
    with monkeypatch.context() as patched:
        killed_after(budget, patched)
        try:
            for one in PARCELS:
                writer.append(one)
                done += 1
        except Killed:
            pass
    writer = Recorder(str(tmp_path))
    for one in PARCELS[done:]:
        writer.append(one)
    assert steps_on_disk(tmp_path) == list(range(1, 9))
    assert [event.step for event in board(tmp_path).Scalars("train/loss/child")] == list(range(1, 9))
    assert (tmp_path / "logs/top.log").read_text() == "a\nb\nc\nd\n"
    assert writer.look().latest["top"]["step"] == 8


def test_a_later_incarnation_takes_back_what_lies_beyond_its_start(recorder, tmp_path):
    """Case 20: checkpoint at 3, death at 7, to 9: every step once, in TensorBoard and in records."""
    recorder.append(parcel(0, range(1, 8)))
    recorder.append(parcel(0, range(4, 10), incarnation=1, start=3))
    assert steps_on_disk(tmp_path) == list(range(1, 10))
    assert [event.step for event in board(tmp_path).Scalars("train/loss/child")] == list(range(1, 10))


def test_what_a_closed_incarnation_still_sends_is_acknowledged_and_does_not_count(recorder, tmp_path):
    """A frozen learner's calls may arrive after its successor's."""
    recorder.append(parcel(0, [1, 2]))
    recorder.append(parcel(0, [2, 3], incarnation=1, start=1))
    for writer in (recorder, Recorder(str(tmp_path))):
        writer.append(parcel(1, [3, 4, 5]))
        assert steps_on_disk(tmp_path) == [1, 2, 3] and writer.look().latest["top"]["step"] == 3


def test_a_refused_parcel_of_a_new_incarnation_takes_back_again(recorder, tmp_path, narrow):
    recorder.append(parcel(0, range(1, 6)))
    recorder.append(parcel(1, range(6, 12)))
    narrow(10)
    with pytest.raises(OSError):
        recorder.append(parcel(0, [3], incarnation=1, start=2))
    narrow(resource.RLIM_INFINITY)
    recorder.append(parcel(0, [3], incarnation=1, start=2))
    assert steps_on_disk(tmp_path) == [1, 2, 3]
    assert [event.step for event in board(tmp_path).Scalars("train/loss/child")] == [1, 2, 3]


@pytest.fixture
def narrow():
    """Sets how large a file may become, a full disk to who writes: a write is cut short, the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [1, 50, 150, 400, 700])
def test_a_parcel_that_the_disk_cuts_short_is_whole_when_it_comes_again(recorder, tmp_path, narrow, room):
    """Case 21: whatever part of whichever file was written, nothing is torn, doubled or lost."""
    recorder.append(parcel(0, [1, 2], log=("first\n",)))
    filled = max(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    narrow(filled + room)
    with pytest.raises(OSError) as raised:
        recorder.append(parcel(1, range(3, 20), log=("second\n",)))
    assert raised.value.errno == errno.EFBIG
    assert "File too large" in recorder.look().fault
    assert recorder.look().latest["top"]["step"] == 2
    narrow(resource.RLIM_INFINITY)
    recorder.append(parcel(1, range(3, 20), log=("second\n",)))
    assert recorder.look().fault == ""
    assert steps_on_disk(tmp_path) == list(range(1, 20)) == sorted(scalars(tmp_path))
    assert (tmp_path / "logs/top.log").read_text() == "first\nsecond\n"


def test_a_full_disk_is_named(recorder, tmp_path):
    for name in ("records", "tensorboard/top"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "records/top.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError):
        recorder.append(parcel(0, [1]))
    assert "No space left on device" in recorder.look().fault


def test_a_read_only_disk_is_named_and_recovers(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    recorder = Recorder(str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr("actors.recorder.os.open", refuse)
        with pytest.raises(OSError):
            recorder.append(parcel(0, [1]))
        assert "Read-only file system" in recorder.look().fault
    recorder.append(parcel(0, [1]))
    assert steps_on_disk(tmp_path) == [1] and recorder.look().fault == ""


def test_a_learner_whose_parcel_is_refused_does_not_stop_another(recorder, tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records/top.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError):
        recorder.append(parcel(0, [1]))
    recorder.append(parcel(0, [1, 2], learner="bottom"))
    assert steps_on_disk(tmp_path, "bottom") == [1, 2]


def test_a_value_that_is_not_a_number_leaves_the_records_readable(recorder, tmp_path):
    recorder.append(Parcel("top", 0, 0, (record(1, loss=float("nan"), other=2.0),), (0,), ()))
    line, _ = (tmp_path / "records/top.jsonl").read_text().splitlines()
    assert json.loads(line)["values"] == {"loss": None, "other": 2.0}
