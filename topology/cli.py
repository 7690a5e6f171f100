"""The command line of machworks.

Exit status: 0 done, 1 a learner failed for good or records could not be written, 2 the file or the command is wrong,
130 interrupted.
"""

import argparse
import errno
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from learners.options import Topology

if TYPE_CHECKING:
    from analysis.report import Report

Arguments = argparse.Namespace

ANSWER = timedelta(seconds=20)
"""How long a run may take to say what it does about a wish."""
OUTPUT = "logs/output.log"
"""In the run folder: what a detached run says on its terminal, if it had one."""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Entry point of `machworks`; returns the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(given)
    arguments.given = given
    if sys.stdout is None:  # closed by the caller; the next file to be opened would take its place
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        status = int(arguments.command(arguments))
        sys.stdout.flush()
        return status
    except ValueError as error:  # what people gave: a file, a key, a cluster that lacks something
        return _refused(arguments, error)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if isinstance(error, BrokenPipeError) or (error.errno == errno.ENOSPC and error.filename is None):
            return _unsaid(error)
        if error.filename is None:
            raise
        return _refused(arguments, ValueError(f"{error.filename}: {error.strerror}"))


def _unsaid(error: OSError) -> int:
    """Standard output has taken no more: its reader, such as `head`, has seen enough, or its disk is full."""
    from topology import view

    view.silence(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return 0
    print(f"standard output: {error.strerror}", file=sys.stderr)
    return 1


def _refused(arguments: Arguments, error: ValueError) -> int:
    from topology import parse, view
    from topology.findings import Unfit

    if isinstance(error, Unfit) and getattr(arguments, "file", None):
        error = parse.located(arguments.file, arguments.set, error.findings)
    lines, quiet = str(error).splitlines(), getattr(arguments, "json", False)
    stream = sys.stdout if quiet else sys.stderr
    try:
        print(json.dumps({"status": 2, "problems": lines}) if quiet else "\n".join(lines), file=stream, flush=True)
    except OSError:  # nobody listens; the status says it all the same
        view.silence(stream)
    return 2


def _load(arguments: Arguments) -> Topology:
    from topology import parse

    return parse.load(arguments.file, arguments.set)


# ---------------------------------------------------------------- commands


def _run(arguments: Arguments) -> int:
    from topology import driver

    topology = _load(arguments)
    if arguments.detach:
        return _detached(arguments)
    go = partial(driver.run, topology, runs=Path(arguments.runs), beside=Path(arguments.file).parent)
    return _watched(arguments, topology, go)


def _resume(arguments: Arguments) -> int:
    from topology import driver, parse, status

    folder = _folder(arguments)
    status.read(folder)  # it is a run's
    if arguments.detach:
        return _detached(arguments)
    topology = parse.load(folder / "chain.yaml")
    return _watched(arguments, topology, partial(driver.resume, folder))


def _watched(arguments: Arguments, topology: Topology, go: Callable[..., Any]) -> int:
    """Run or resume, shown live, and say what came of it."""
    from loguru import logger

    from topology import view

    logger.remove()  # the view tells what the log tells, and the run folder keeps it
    steps = {name: learner.steps for name, learner in topology.members.items()}
    with view.View(steps, plain=arguments.plain, quiet=arguments.json) as shown:
        outcome = go(address=arguments.address, tell=_and_notify(arguments, shown.tell), show=shown.show)
    try:
        _sum_up(arguments, outcome)
        sys.stdout.flush()
    except OSError as error:
        return int(outcome.status) or _unsaid(error)
    return int(outcome.status)


def _sum_up(arguments: Arguments, outcome: Any) -> None:
    from topology import view

    if arguments.json:
        print(json.dumps(outcome.as_json()))
        return
    view.printed(view.summary(outcome.as_json()))
    for name, reached in outcome.learners.items():
        if reached.missing:
            view.printed(f"learners.{name}: {reached.missing}")
    for line in outcome.events:
        view.printed(f"made good: {line}")
    for problem in outcome.problems:
        view.printed(problem, error=True)
    short = shlex.quote(_short(outcome.folder))
    view.printed(f"\nrun folder   {outcome.folder}\nlook at it   machworks tensorboard {short}")


def _detached(arguments: Arguments) -> int:
    """Start the same command in a session of its own, and return when its learners train, or it has failed."""
    given = [word for word in arguments.given if word not in ("--detach", "--json")]
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as output:  # until there is a run folder; see `_moved`
        process = subprocess.Popen(
            [sys.executable, "-m", "topology.cli", *given, "--plain", f"--notify={writing}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(writing,),
        )
        os.close(writing)
        try:
            with os.fdopen(reading) as pipe:
                said = pipe.read()  # until it writes where the run is, or ends
        except KeyboardInterrupt:
            process.terminate()
            raise
        if not said:
            status = process.wait()
            output.seek(0)
            print(output.read().decode(errors="replace"), end="", file=sys.stderr)
            return status
    folder = Path(said)
    log = folder / OUTPUT
    if arguments.json:
        print(json.dumps({"status": 0, "run": str(folder), "process": process.pid, "log": str(log)}))
        return 0
    short = shlex.quote(_short(folder))
    print(f"training; run folder {folder}\noutput goes to {log}")
    print(f"look at it   machworks status {short}\nend it       machworks stop {short}")
    return 0


def _and_notify(arguments: Arguments, tell: Callable[[str], None]) -> Callable[[str], None]:
    """Tell, and let whoever detached us know when the run folder is said."""
    if arguments.notify is None:
        return tell

    def told(line: str) -> None:
        tell(line)
        _, says, folder = line.partition("; run folder ")
        if says and arguments.notify is not None:
            _moved(Path(folder) / OUTPUT)
            with suppress(BrokenPipeError):  # who detached us is gone: the run goes on all the same
                os.write(arguments.notify, os.fsencode(folder))
            os.close(arguments.notify)
            arguments.notify = None

    return told


def _moved(log: Path) -> None:
    """What this process has said, and will say, goes to `log`; where it can't be written, nowhere."""
    sys.stdout.flush()
    size = os.fstat(1).st_size
    try:
        place = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(place, os.pread(1, size, 0))
    except OSError:  # the supervisor tells of a disk that refuses
        place = os.open(os.devnull, os.O_WRONLY)
    os.dup2(place, 1)
    os.dup2(place, 2)
    os.close(place)


def _stop(arguments: Arguments) -> int:
    from topology import status

    folder = _folder(arguments)
    state = status.stop(folder)
    print(json.dumps({"run": str(folder), "state": state}) if arguments.json else f"{_short(folder)}: {state}")
    return 0


def _scale(arguments: Arguments) -> int:
    from topology import parse, scaling, status

    folder = _folder(arguments)
    before = status.read(folder)
    if before["state"] != "running":
        raise ValueError(f"{folder}: this run does not go on: it is {before['state']}")
    group, _, count = arguments.wish.partition("=")
    if not count.isdigit():
        raise ValueError(f"scale: {arguments.wish!r} was given; GROUP=NUMBER was wanted, as worker=6")
    if refused := scaling.refusal(parse.load(folder / "chain.yaml"), group, int(count)):
        raise ValueError(f"scale: {refused}")
    scaling.ask(folder, group, int(count), ANSWER, lambda: status.read(folder)["state"] == "running")
    print(json.dumps({"run": str(folder), group: int(count)}) if arguments.json else f"{group}: {count} workers")
    return 0


def _export(arguments: Arguments) -> int:
    from topology import export, status

    folder = _folder(arguments)
    status.read(folder)  # it is a run's
    print(export.export(folder, arguments.learner, arguments.out and Path(arguments.out)))
    return 0


def _validate(arguments: Arguments) -> int:
    from topology import parse

    if arguments.schema:
        print(json.dumps(parse.schema(), indent=2))
        return 0
    if arguments.file is None:
        raise ValueError("validate: a file is wanted, or --schema")
    topology, notes = _load(arguments), []
    if topology.workers:
        from topology import findings, workers  # NumPy, as in check

        notes = workers.notes(topology, *findings.NAMED.get(topology.data.name, (None, 0)))
    unknown = [f"learners.{name}.network" for name, one in topology.workers.items() if one.has_own_network]
    if arguments.json:
        answer = {"status": 0, "learners": list(topology.learners), "unknown": unknown, "notes": notes}
        print(json.dumps(answer))
        return 0
    count = len(topology.learners)
    print(f"{arguments.file}: valid: {count} learner{'s' * (count > 1)}: {', '.join(topology.learners)}")
    for note in notes:
        print(note)
    for path in unknown:
        print(f"{path}: not built here, so what depends on its weights is not checked; plan and run do")
    return 0


def _options(arguments: Arguments) -> int:
    from topology import manual

    if arguments.md and arguments.word:
        raise ValueError("options: --md is the whole page; give a word or --md, not both")
    print(manual.markdown() if arguments.md else manual.text(arguments.word), end="" if arguments.md else "\n")
    return 0


def _plan(arguments: Arguments) -> int:
    from actors import data
    from topology import cluster, own, plan, view, workers

    topology, beside = _load(arguments), Path(arguments.file).parent
    dataset = data.load(topology.data, folder=beside)
    networks = own.networks(topology, dataset.shape, dataset.classes, beside, partial(view.printed, error=True))
    hosts = cluster.hosts_of(arguments.address)
    itemsize, about = dataset.train.inputs.dtype.itemsize, (dataset.shape, dataset.classes)
    full = workers.completed(topology, *about, networks)
    notes = workers.notes(topology, *about, networks)
    made = plan.plan(full, *about, itemsize, hosts, own=networks, notes=notes)
    status = 2 if made.lacks else 0
    if arguments.json:
        print(json.dumps({"status": status, "problems": [str(lack) for lack in made.lacks], **plan.as_json(made)}))
        return status
    view.printed(plan.render(made))
    return status


def _graph(arguments: Arguments) -> int:
    from topology import draw

    topology = _load(arguments)
    if arguments.out:
        Path(arguments.out).write_bytes(draw.png(topology))
        print(arguments.out)
        return 0
    print({"text": draw.text, "mermaid": draw.mermaid, "dot": draw.dot}[arguments.format](topology))
    return 0


def _status(arguments: Arguments) -> int:
    from topology import status, view

    if arguments.all and arguments.run is not None:
        raise ValueError(f"status: --all lists the runs in {arguments.runs}; give it or a run, not both")
    found = status.runs(Path(arguments.runs)) if arguments.all else [status.read(_folder(arguments))]
    if arguments.json:
        print(json.dumps({"runs": found} if arguments.all else found[0]))
    else:
        view.printed(status.table(found))
    return 0


def _analyse(arguments: Arguments) -> int:
    from analysis import report, table
    from topology import draw, parse, probe, status

    folder = _folder(arguments)
    state = status.read(folder)["state"]
    try:
        graph = draw.png(parse.load(folder / "chain.yaml"))
    except (OSError, ValueError):
        graph = None  # of a run of another version, say; its records still tell
    try:
        made = report.analyse(
            folder,
            Path(arguments.out) if arguments.out else None,
            _words(arguments.what),
            lambda: probe.probes(folder),
            state=state,
            graph=graph,
        )
    except table.Nothing as error:
        more = "wait for its first steps" if state == "running" else f"this run is {state}"
        raise ValueError(f"{error}; {more} (machworks status {_short(folder)})") from None
    return _reported(arguments, {"run": str(folder), "state": state}, f"{_short(folder)}: {state}", made)


def _compare(arguments: Arguments) -> int:
    from analysis import report
    from topology import status

    folders = [status.find(run, Path(arguments.runs)) for run in arguments.several]
    made = report.compare(folders, Path(arguments.out), _words(arguments.what))
    about = {"runs": [str(folder) for folder in folders]}
    return _reported(arguments, about, " and ".join(map(_short, folders)), made)


def _reported(arguments: Arguments, about: dict[str, Any], head: str, made: "Report") -> int:
    from topology import view

    if arguments.json:
        written = {name: [str(path) for path in paths] for name, paths in made.written.items()}
        files = {"report": str(made.page), "records": str(made.records)}
        print(json.dumps({**about, "ends": made.ends, "written": written, "left_out": made.left_out, **files}))
        return 0
    view.printed("\n".join([head, *(f"  {line}" for line in made.ends)]))
    for paths in made.written.values():
        view.printed(f"written   {_short(paths[0])} {' '.join(path.suffix for path in paths[1:])}")
    for name, why in made.left_out.items():
        view.printed(f"left out  {name}: {why}")
    view.printed(f"records   {_short(made.records)}")
    view.printed(f"report    {_short(made.page)} (opens in any browser)")
    return 0


def _words(given: str) -> list[str]:
    return [word for word in given.split(",") if word]


def _replay(arguments: Arguments) -> int:
    from topology import replay, status, view

    folder = _folder(arguments)
    status.read(folder)  # it is a run's
    found = list(replay.replay(folder, arguments.records, from_start=arguments.from_start))
    status_ = int(any(one.fault for one in found))
    if arguments.json:
        print(json.dumps({"status": status_, "run": str(folder), "groups": [asdict(one) for one in found]}))
        return status_
    for one in found:
        view.printed(str(one), error=bool(one.fault))
    return status_


def _tensorboard(arguments: Arguments) -> int:
    from actors import quiet

    logs = _folder(arguments) / "tensorboard"
    if not logs.is_dir():
        raise ValueError(f"{logs}: no such folder; a run makes it at its start")
    page = f"http://{arguments.host}:{arguments.port}/"
    where = ["--logdir", str(logs), "--host", arguments.host, "--port", str(arguments.port), "--reload_interval", "2"]
    print(f"TensorBoard of {_short(logs.parent)} on {page} (Ctrl-C ends it)", flush=True)
    command = [sys.executable, quiet.__file__, "tensorboard.main", *where]
    os.execv(sys.executable, command)  # signals reach it, and its status is ours
    raise AssertionError("unreachable")


def _bench(arguments: Arguments) -> int:
    folder = Path(__file__).resolve().parent.parent / "benchmarks"
    names = sorted(path.stem.replace("_", "-") for path in folder.glob("[!_]*.py"))
    if not names:
        raise ValueError("bench runs from a checkout of machworks: benchmarks/ is not part of what is installed")
    if arguments.name not in names:
        raise ValueError(f"bench: {arguments.name!r} is not a benchmark; one of {', '.join(names)}")
    module = f"benchmarks.{arguments.name.replace('-', '_')}"
    command = [sys.executable, "-m", module, *(["--json"] if arguments.json else [])]
    return subprocess.call([*command, *arguments.rest], cwd=folder.parent)


def _folder(arguments: Arguments) -> Path:
    from topology import status

    return status.find(arguments.run, Path(arguments.runs))


def _short(folder: Path) -> str:
    relative = os.path.relpath(folder)
    return str(folder) if relative.startswith("..") else relative


# ---------------------------------------------------------------- arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="machworks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Any, help: str, example: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=help,
            description=help,
            epilog=f"example: machworks {example}",
            allow_abbrev=False,  # a detached run must know the word that it leaves out
        )
        added.set_defaults(command=command)
        return added

    run = add("run", _run, "train what a file describes, to its end", "run chain.yaml --set learners.top.steps=500")
    _takes_file(run)
    _takes_address(run)
    _takes_runs(run)
    _takes_watching(run)

    resume = add(
        "resume", _resume, "go on with a run from its newest checkpoint set", "resume runs/digits-20260101-120000-ab12"
    )
    _takes_run(resume)
    _takes_address(resume)
    _takes_watching(resume)

    stop = add("stop", _stop, "end a run that goes on; it keeps what it has", "stop runs/digits-20260101-120000-ab12")
    _takes_run(stop)
    _takes_json(stop)

    scale = add(
        "scale",
        _scale,
        "add workers to a group of a live run, or retire some",
        "scale runs/rbd-group-20261201-120000-ab12 worker=4",
    )
    scale.add_argument("run", help=_RUN)
    scale.add_argument("wish", metavar="GROUP=NUMBER", help="how many workers there shall be")
    _takes_runs(scale)
    _takes_json(scale)

    export = add(
        "export",
        _export,
        "write one learner as a stand-alone Keras model",
        "export runs/digits-20260101-120000-ab12 top",
    )
    export.add_argument("run", help=_RUN)
    export.add_argument("learner")
    _takes_runs(export)
    export.add_argument("--out", help="the .keras file to write (default: in the run folder)")

    validate = add("validate", _validate, "check a file, report all its problems, start nothing", "validate chain.yaml")
    _takes_file(validate, optional=True)
    validate.add_argument("--schema", action="store_true", help="print the JSON Schema of run files, for editors")
    _takes_json(validate)

    options = add("options", _options, "every key of a run file: values, default, meaning", "options residual")
    options.add_argument("word", nargs="?", default="", help="only keys that hold it")
    options.add_argument("--md", action="store_true", help="as the page docs/options.md")

    plan = add("plan", _plan, "say what would run where, with which memory and bytes", "plan chain.yaml --address auto")
    _takes_file(plan)
    _takes_address(plan)
    _takes_json(plan)

    graph = add("graph", _graph, "draw the learners and their edges", "graph chain.yaml --out chain.png")
    _takes_file(graph)
    graph.add_argument("--format", choices=("text", "mermaid", "dot"), default="text")
    graph.add_argument("--out", help="a PNG file to write instead")

    status = add("status", _status, "what the newest run, or another, has reached", "status --all")
    _takes_run(status)
    status.add_argument("--all", action="store_true", help="of all runs, in the order of their start")
    _takes_json(status)

    analyse = add(
        "analyse",
        _analyse,
        "draw what a run has recorded, and what its checkpoint shows: PNG, SVG, CSV, one HTML page",
        "analyse --what curves,exchange",
    )
    _takes_run(analyse)
    analyse.add_argument("--what", default="", metavar="NAME,...", help="pictures (default: all that there are)")
    analyse.add_argument("--out", help="folder to write into (default: RUN/analysis)")
    _takes_json(analyse)

    compare = add(
        "compare",
        _compare,
        "draw two runs or more together, and say in what their files differ",
        "compare fashion-20260101-120000-0a1b fashion-20260101-130000-2c3d",
    )
    compare.add_argument("several", nargs="+", metavar="RUN", help="run folders, or their names under --runs")
    _takes_runs(compare)
    compare.add_argument("--what", default="", metavar="NAME,...", help="pictures (default: all that there are)")
    compare.add_argument("--out", default="comparison", help="folder to write into (default: %(default)s)")
    _takes_json(compare)

    replay = add(
        "replay",
        _replay,
        "rebuild the weights of a group of workers from its log, and compare the digests that were recorded",
        "replay runs/rbd-group-20261201-120000-ab12 --records 500",
    )
    _takes_run(replay)
    replay.add_argument("--records", type=int, help="so many records of the log, from its beginning (default: all)")
    replay.add_argument("--from-start", action="store_true", help="pass over snapshots: all is applied, all compared")
    _takes_json(replay)

    board = add("tensorboard", _tensorboard, "open TensorBoard on a run", "tensorboard --port 6007")
    _takes_run(board)
    board.add_argument("--port", type=int, default=6006)
    board.add_argument("--host", default="127.0.0.1", help="address to listen on; the default is this machine only")

    bench = add("bench", _bench, "measure (from a checkout)", "bench fashion --json")
    bench.add_argument("name", help="a file of benchmarks/, without .py, - for _")
    _takes_json(bench)
    bench.add_argument("rest", nargs=argparse.REMAINDER, help="options of that benchmark")
    return parser


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"machworks {version('machworks')}")
        parser.exit()


def _takes_file(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    parser.add_argument("file", nargs="?" if optional else None, help="the run file (YAML)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="replace a value: learners.top.steps=10"
    )


def _takes_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", help="of a running Ray cluster (auto: this machine's); default: a fresh one")


def _takes_watching(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plain", action="store_true", help="lines instead of a live table")
    parser.add_argument(
        "--detach", action="store_true", help="return when the learners train; the run goes on by itself"
    )
    parser.add_argument("--notify", type=int, help=argparse.SUPPRESS)  # where a detached run says its folder
    _takes_json(parser)


def _takes_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", default="runs", help="folder of the run folders (default: runs)")


_RUN = "a run folder, or its name in the folder of run folders"


def _takes_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help=f"{_RUN} (default: the newest)")
    _takes_runs(parser)


def _takes_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


if __name__ == "__main__":
    sys.exit(main())
