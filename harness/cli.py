"""The command line. Responsible for words and exit codes only; every command is a call of one function below.

Exit codes: 0 all PASS, 1 a FAIL, 2 wrong usage, 3 no FAIL but something INCONCLUSIVE, 4 the harness's own fault or a
machine that cannot do it, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness import __version__
from harness.errors import (
    EXIT_FAIL,
    EXIT_HARNESS,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_PASS,
    EXIT_USAGE,
    HarnessError,
    UsageError,
)

if TYPE_CHECKING:
    from harness.oracle.verdict import Verdict

_EXITS = {"PASS": EXIT_PASS, "FAIL": EXIT_FAIL, "INCONCLUSIVE": EXIT_INCONCLUSIVE}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="harness")
def cli() -> None:
    """Proves that a PyTorch training job resumes exactly, whenever it dies."""


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where the new run directory goes."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Also write the result as JSON.")
def replay(file: Path, out: Path, json_file: Path | None) -> int:
    """Runs the case of a replay file (a plan.toml, or the run directory that holds it) once more.

    Example: harness replay runs/test_x/plan.toml
    """
    from harness.case import Workbench, run_case
    from harness.plan import read_plan, versions
    from harness.report.result import result, to_text
    from harness.report.text import render
    from harness.session import Session
    from harness.store import read_baseline

    problems = [*_no_folder(out), *_no_place_for(json_file, out)]
    try:
        plan = read_plan(file)
    except UsageError as error:
        raise UsageError([*error.problems, *problems]) from None
    if problems:
        raise UsageError(problems)
    for name, recorded in plan.versions.items():
        if versions().get(name) != recorded:
            click.echo(f"note: recorded with {name} {recorded}, repeated with {versions().get(name)}", err=True)
    _writable(out)
    session = Session.new()
    try:
        verdict, directory = run_case(plan.scenario, Workbench(out.resolve(), out.resolve() / "baselines", session.warm()))
    finally:
        session.close()
    click.echo(render(verdict, directory.path))
    if json_file:
        document = result(["harness", *sys.argv[1:]], plan.scenario, read_baseline(directory.golden), [verdict])
        _write(json_file, to_text(document))
    return _exit_code(verdict)


@cli.command(name="check", context_settings={"ignore_unknown_options": False})
@click.option("--reference", "format", default=None, metavar="FORMAT", help="Check the reference trainer, saving in this format.")
@click.option("--world-size", default=None, help="Number of ranks. [default: what the command says; 2 for --reference]")
@click.option("--steps", default=None, help="Batches of the whole job. [default: 3 for --reference]")
@click.option("--save", default=None, help="Which save of the job is attacked: a number from 1, or all. [default: 2]")
@click.option(
    "--crash-points",
    default=None,
    help="all, or a number: a sample of that many crash states. [default: all; of a command as many as the budget has room for]",
)
@click.option(
    "--power-cut",
    type=click.Choice(["model", "real", "both", "none"]),
    default="model",
    show_default=True,
    help="Also cut the power: every state that the model knows, or for real at 8 points (root and loop devices needed).",
)
@click.option("--filesystem", type=click.Choice(["ext4", "xfs"]), default="ext4", show_default=True, help="Whose power is cut.")
@click.option("--recovery/--no-recovery", default=True, show_default=True, help="Also crash the restart after a crash.")
@click.option(
    "--interleavings/--no-interleavings", default=True, show_default=True, help="Also hold one rank against the others."
)
@click.option("--damage/--no-damage", default=False, show_default=True, help="Also damage the newest checkpoint in every way.")
@click.option("--errors/--no-errors", default=False, show_default=True, help="Also let each file operation of the job fail once.")
@click.option("--defect", multiple=True, metavar="NAME", help="Plant a defect in the reference trainer, to see it found.")
@click.option("--seed", default="0", show_default=True, help="Of the training job.")
@click.option("--jobs", default=None, help="Resumes at a time. [default: one more than the processors]")
@click.option(
    "--launch",
    type=click.Choice(["auto", "warm", "cold"]),
    default="auto",
    show_default=True,
    help="How a command is started: warm, from a preloaded process; cold, as it stands; auto, warm if it gives the same numbers.",
)
@click.option("--budget", default=None, help="Stop after so long: 90s, 10m, 2h. [default: 5m for a command, else none]")
@click.option("--resume-command", default=None, metavar="TEXT", help="What is run after the first launch, where it is another.")
@click.option("--world-sizes", default=None, metavar="LIST", help="Other numbers of ranks to resume on. [default: 1 and twice]")
@click.option("--tolerance", default=None, help="Largest difference of a loss that is taken for equal. [default: 1e-4]")
@click.option("--python", default=None, metavar="PATH", help="The interpreter that stands for {python} in the command.")
@click.option(
    "--loss-log", default=None, metavar="FILE", help="Read losses from this file (-: from what is printed) instead of watching."
)
@click.option(
    "--loss-regex", default=None, metavar="REGEX", help="Which lines say one: groups step and loss. [default: usual ones]"
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where run directories go.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Also write the result as JSON.")
@click.option("--junit", "junit_file", type=click.Path(path_type=Path), default=None, help="Also write it as JUnit XML.")
@click.option("--summary", "summary_file", type=click.Path(path_type=Path), default=None, help="Also write it as Markdown.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def check_command(out: Path, json_file: Path | None, junit_file: Path | None, summary_file: Path | None, **options: Any) -> int:
    """Attacks a job wherever it can be interrupted, gives what is left to a real resume, and judges it.

    The job is the reference trainer, or any COMMAND that trains with PyTorch and, started again, goes on where it was; {ckpt} in
    it is the checkpoint directory, {world_size} the number of ranks. Of a command everything is tried that the budget has room
    for: kills between and within saves, power cuts, errors of the disk, damage, SIGTERM, hung ranks, overflows, other numbers of
    ranks; what was left out is said. Exit code: 0 nothing found, 1 something, 2 wrong usage, 3 where it could not be judged.

    Example: harness check --budget 2m -- torchrun --nproc-per-node 2 train.py --out {ckpt}
    """
    from harness.case import Workbench
    from harness.check import check
    from harness.check_command import check_command
    from harness.check_request import parse_request
    from harness.report import findings
    from harness.report.exploration import check_json, check_text
    from harness.report.progress import Ticker
    from harness.report.result import to_text
    from harness.session import Session

    problems = [text for file in (json_file, junit_file, summary_file) for text in _no_place_for(file, out)]
    request = parse_request(options, [*_no_folder(out), *problems])
    _writable(out)
    run = check_command if options["command"] else check
    session = Session.new()
    try:
        bench = Workbench(out.resolve(), out.resolve() / "baselines", session.warm())
        with _folder(out.resolve(), request.scenario.name) as folder, Ticker() as ticker:
            found = run(request, bench, folder, ticker.part, ticker.tick)
    finally:
        session.close()
    click.echo(findings.text(found) if options["command"] else check_text(found))
    if json_file:
        _write(json_file, to_text(check_json(["harness", *sys.argv[1:]], found)))
    if junit_file:
        _write(junit_file, findings.junit(found))
    if summary_file:
        _write(summary_file, findings.markdown(found))
    return _EXITS[found.outcome]


@cli.command(name="trace")
@click.option("--reference", "format", default=None, metavar="FORMAT", help="Trace the reference trainer, saving in this format.")
@click.option("--world-size", default=None, help="Number of ranks. [default: what the command says; 2 for --reference]")
@click.option("--steps", default=None, help="Batches of the whole job. [default: 3 for --reference]")
@click.option("--once", is_flag=True, help="Run the job once only: nothing is learnt of which order is enforced.")
@click.option("--defect", multiple=True, metavar="NAME", help="Plant a defect in the reference trainer.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where run directories go.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Also write the trace as JSON.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def trace_command(json_file: Path | None, out: Path, once: bool, **options: Any) -> int:
    """Runs a job and prints what it wrote: every operation of all ranks in order, save by save, and its crash points.

    It says what was not durable when each save returned, and which ranks' operations are ordered by nothing but luck (for that
    the job is run once more per writing rank, with that rank always last). Any COMMAND can be traced; {ckpt} in it is the
    checkpoint directory.

    Example: harness trace -- torchrun --nproc-per-node 2 train.py --out {ckpt}
    """
    from harness.case import Workbench
    from harness.check_request import parse_trace_request
    from harness.report.result import to_text
    from harness.report.tracing import trace_json, trace_text
    from harness.session import Session
    from harness.tracing import trace_job

    scenario = parse_trace_request(options, [*_no_folder(out), *_no_place_for(json_file, out)])
    _writable(out)
    session = Session.new()
    try:
        bench = Workbench(out.resolve(), out.resolve() / "baselines", session.warm())
        with _folder(out.resolve(), scenario.name) as folder:
            found = trace_job(scenario, bench, folder, once=once)
    finally:
        session.close()
    click.echo(trace_text(found))
    if json_file:
        _write(json_file, to_text(trace_json(found)))
    return EXIT_INCONCLUSIVE if found.inconclusive else EXIT_PASS


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
def judge(run: Path) -> int:
    """Judges a stored run directory again, without running anything, and saves the verdict in it (verdict.json).

    Where it cannot be saved, that is said, and the exit code is still the verdict's.

    Example: harness judge runs/test_x
    """
    from harness.case import judge_again, save_verdict
    from harness.report.text import render

    if not run.is_dir():
        raise UsageError([f"{run} is no run directory; expected one that a run has written, such as runs/CASE"])
    verdict = judge_again(run)
    click.echo(render(verdict, run))
    if problem := save_verdict(verdict, run):
        click.echo(f"harness: {problem}", err=True)
    return _exit_code(verdict)


@cli.command()
def doctor() -> int:
    """Says what this machine can do, by trying it, and what is lost without each.

    Example: harness doctor
    """
    from harness.doctor import run_checks
    from harness.report.tables import doctor_table

    results = run_checks()
    doctor_table(results)
    return EXIT_PASS if all(result.works or not result.check.required for result in results) else EXIT_HARNESS


@cli.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Also write the figures as JSON.")
@click.option("--cases", default="10", show_default=True, help="Warm cases to time.")
@click.option("--cold-cases", default="2", show_default=True, help="Cases through torchrun to time.")
@click.option("--save-width", default="896", show_default=True, help="Width of the model that is saved (896: 232 MB).")
@click.option("--states", default=None, help="Crash states of a save to explore. [default: all]")
@click.option("--defects", is_flag=True, help="Instead: run every planted defect and the healthy jobs, print the two rates.")
@click.option("--everything", is_flag=True, help="With --defects: all combinations of healthy settings (half an hour or more).")
def bench(
    json_file: Path | None, cases: str, cold_cases: str, save_width: str, states: str | None, defects: bool, everything: bool
) -> int:
    """Measures this machine: cases per minute warm and through torchrun, the gate's cost, memory per rank. Prints ratios.

    With --defects it measures the judge: how many planted defects it names rightly, and its false alarms. The exit code is
    then 1 if either is not perfect.

    Example: harness bench --json bench.json
    """
    from harness.bench import Request, defect_rates, measure, to_json
    from harness.report.tables import bench_table

    problems = _no_place_for(json_file)
    if everything and not defects:
        problems.append("--everything is for --defects; expected --defects with it")
    request = Request.parse(cases, cold_cases, save_width, states, problems)

    if defects:
        rates = defect_rates(everything, lambda text: click.echo(text, err=True))
        click.echo(f"named correctly / planted: {rates['defects_named']} / {rates['defects_planted']}")
        click.echo(f"false alarms / healthy:    {rates['false_alarms']} / {rates['healthy']}")
        if json_file:
            _write(json_file, to_json(rates))
        return EXIT_PASS if rates["defects_named"] == rates["defects_planted"] and not rates["false_alarms"] else EXIT_FAIL

    figures = measure(
        request.cases, request.cold_cases, request.save_width, request.states, lambda text: click.echo(text, err=True)
    )
    bench_table(figures)
    if json_file:
        _write(json_file, to_json(figures))
    return EXIT_PASS


@cli.command()
@click.option("--format", default="sharded", show_default=True, help="Checkpoint format, as in the README.")
@click.option("--ranks", default="2", show_default=True, help="Ranks of the job whose saves are timed.")
@click.option("--machine-mtbf", default=None, help="Mean time between failures of one machine, in hours. [default: 6300]")
@click.option("--machines", default="1", show_default=True, help="Machines of the job; any one that fails stops it.")
@click.option("--save-cost", default=None, help="Cost of one save, in seconds, instead of measuring it.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Also write the figures as JSON.")
def interval(
    format: str, ranks: str, machine_mtbf: str | None, machines: str, save_cost: str | None, json_file: Path | None
) -> int:
    """Says how often to save: Young's formula, with the cost of a save measured here, beside a simulation.

    The default of --machine-mtbf is that of the Llama 3 report: 419 unexpected interruptions of 2,048 machines in 54 days.
    With --save-cost nothing is measured, and --format and --ranks are only checked.

    Example: harness interval --format sharded --machines 128
    """
    from harness.interval import DEFAULT_MACHINE_MTBF_H, Request, report, to_json
    from harness.report.tables import interval_table

    problems = _no_place_for(json_file)
    try:
        request = Request.parse(
            format, ranks, str(DEFAULT_MACHINE_MTBF_H) if machine_mtbf is None else machine_mtbf, machines, save_cost
        )
    except UsageError as error:
        raise UsageError([*error.problems, *problems]) from None
    if problems:
        raise UsageError(problems)
    figures = report(request, lambda text: click.echo(text, err=True))
    interval_table(figures)
    if json_file:
        _write(json_file, to_json(figures))
    return EXIT_PASS


def _exit_code(verdict: Verdict) -> int:
    return _EXITS[verdict.outcome]


@contextlib.contextmanager
def _folder(out: Path, name: str) -> Iterator[Path]:
    """A new folder: the name, numbered where it is taken. It is removed again where nothing was put into it."""
    for number in itertools.count(1):
        path = out / (name if number == 1 else f"{name}.{number}")
        try:
            path.mkdir(parents=True)  # made at once: another command may look for a free name at this moment
            break
        except FileExistsError:
            continue
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()


def _writable(folder: Path) -> None:
    """Makes the folder, once all that was asked for is known to be right."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError([_cannot(folder, error.strerror)]) from None


def _no_folder(folder: Path) -> list[str]:
    """Why no folder can be made there, and nothing in it; found without leaving anything behind."""
    place = next((path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path)), Path("/"))
    try:
        if not place.is_dir():
            return [_cannot(folder, f"{place} is no directory")]
        with tempfile.TemporaryFile(dir=place):
            return []
    except OSError as error:
        return [_cannot(folder, error.strerror)]


def _cannot(folder: Path, why: str | None) -> str:
    return f"cannot write to {folder}: {why}; expected a directory for run directories (--out)"


def _no_place_for(file: Path | None, out: Path | None = None) -> list[str]:
    """Why a result cannot be written to that file; said before hours of work, and found without leaving anything behind.

    `out` is a folder that will be made by then.
    """
    if file is None:
        return []
    folder = file.absolute().parent
    try:
        if not folder.is_dir():
            will_be = out is not None and folder == out.absolute()
            return [] if will_be else [f"cannot write {file}: there is no directory {folder}"]
        if not file.exists():
            with tempfile.TemporaryFile(dir=folder):
                return []
        if file.is_dir() or not os.access(file, os.W_OK):
            return [f"cannot write {file}: it is {'a directory' if file.is_dir() else 'read-only'}; expected a file"]
    except OSError as error:
        return [f"cannot write {file}: {error.strerror}; expected a file in a writable directory"]
    return []


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError([f"cannot write {path}: {error.strerror}"]) from None


def main(arguments: list[str] | None = None) -> None:
    """The console script. An error of the user is shown as text, one of ours with its traceback; neither is hidden."""
    try:
        code = cli.main(arguments, prog_name="harness", standalone_mode=False)
    except click.exceptions.Abort:
        code = EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = EXIT_USAGE
    except HarnessError as error:
        click.echo(f"harness: {error}", err=True)
        code = error.exit_code
    except KeyboardInterrupt:
        click.echo("harness: interrupted", err=True)
        code = EXIT_INTERRUPTED
    except Exception:  # noqa: BLE001 - the last resort, and it shows everything
        traceback.print_exc()
        click.echo("harness: this is a defect of the harness itself; please report it with the text above", err=True)
        code = EXIT_HARNESS
    sys.exit(code or EXIT_PASS)


if __name__ == "__main__":
    main()
