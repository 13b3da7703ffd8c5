"""`harness check`: a job attacked wherever it can be interrupted."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click
import psutil

from harness.cli.common import EXITS, make_writable, new_folder, no_folder, write
from harness.cli.outputs import Outputs, output_options


def _began() -> float:
    """When this program was started, which is when its user began to wait, as `time.monotonic` counts."""
    return time.monotonic() - (time.time() - psutil.Process().create_time())


@click.command(name="check")
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
@click.option(
    "--control-command",
    default=None,
    metavar="TEXT",
    help="What does the same work otherwise (without saving), for the same numbers.",
)
@click.option("--world-sizes", default=None, metavar="LIST", help="Other numbers of ranks to resume on. [default: 1 and twice]")
@click.option(
    "--tolerance", default=None, help="Largest difference of a loss that is taken for equal; auto: measured. [default: 1e-4]"
)
@click.option("--python", default=None, metavar="PATH", help="The interpreter that stands for {python} in the command.")
@click.option(
    "--resume-python", default=None, metavar="PATH", help="The interpreter of restarts: one version saves, another resumes."
)
@click.option(
    "--loss-log", default=None, metavar="FILE", help="Read losses from this file (-: from what is printed) instead of watching."
)
@click.option(
    "--loss-regex", default=None, metavar="REGEX", help="Which lines say one: groups step and loss. [default: usual ones]"
)
@click.option(
    "--shard",
    default=None,
    metavar="i/n",
    help="Run share i of n, split over machines; put together by `harness report --merge`.",
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where run directories go.")
@output_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def check_command(out: Path, outputs: Outputs, **options: Any) -> int:
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
    from harness.report.checked import check_document
    from harness.report.document import RESULT_FILE, now, to_text
    from harness.report.exploration import check_text
    from harness.report.progress import Ticker
    from harness.report.summary import text
    from harness.session import Session

    began = now()
    request = parse_request(options, [*no_folder(out), *outputs.problems(out)])
    make_writable(out)
    session = Session.new()
    try:
        bench = Workbench(out.resolve(), out.resolve() / "baselines", session.warm())
        with new_folder(out.resolve(), request.scenario.name) as folder, Ticker() as ticker:
            if options["command"]:
                found = check_command(request, bench, folder, ticker.part, ticker.tick, ticker.note, _began())
            else:
                found = check(request, bench, folder, ticker.part, ticker.tick)
            document = check_document(["harness", *sys.argv[1:]], found, began)
            write(folder / RESULT_FILE, to_text(document))  # what passed leaves no run directory
    finally:
        session.close()
    click.echo(text(document) if options["command"] else check_text(found))
    outputs.write(document, [folder])
    return EXITS[found.outcome]
