"""The command line. Responsible for words and exit codes only; every command is a call of one function below.

Exit codes: 0 all PASS, 1 a FAIL, 2 wrong usage, 3 no FAIL but something INCONCLUSIVE, 4 the harness's own fault or a
machine that cannot do it, 5 what a replay file is kept for is not shown, 130 interrupted.
"""

from __future__ import annotations

import io
import sys
import traceback

import click

from harness import __version__
from harness.cli import bench, chaos, check, doctor, interval, judge, replay, report, report_bug, shrink, trace
from harness.errors import EXIT_HARNESS, EXIT_INTERRUPTED, EXIT_PASS, EXIT_USAGE, HarnessError, is_full


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="harness")
def cli() -> None:
    """Proves that a PyTorch training job resumes exactly, whenever it dies."""


for _command in (
    check.check_command,
    chaos.chaos,
    shrink.shrink,
    replay.replay,
    judge.judge,
    report.report,
    report_bug.report_bug,
    trace.trace_command,
    doctor.doctor,
    bench.bench,
    interval.interval,
):
    cli.add_command(_command)


def main(arguments: list[str] | None = None) -> None:
    """The console script. An error of the user is shown as text, one of ours with its traceback; neither is hidden."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file name may be no text at all
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
    except Exception as error:  # noqa: BLE001 - the last resort, and it shows everything
        if isinstance(error, OSError) and is_full(error):
            click.echo(f"harness: {_full_text(error)}", err=True)
        else:
            traceback.print_exc()
            click.echo("harness: this is a defect of the harness itself; please report it with the text above", err=True)
        code = EXIT_HARNESS
    sys.exit(code or EXIT_PASS)


def _full_text(error: OSError) -> str:
    where = f"under {error.filename}" if error.filename else "of the run directories (--out) or of temporary files (TMPDIR)"
    return (
        f"the disk {where} is full ({error.strerror}), so nothing more can be said; what was finished before is still there. "
        "Make room there, or name a folder on another one, and run this again"
    )
