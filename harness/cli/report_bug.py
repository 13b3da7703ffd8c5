"""`harness report-bug`: a failed run as a folder that can be given away."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.common import no_folder
from harness.errors import EXIT_PASS, UsageError


@click.command(name="report-bug")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=None, help="A new folder for it. [default: bug-CASE]")
@click.option("--with-script", is_flag=True, help="Also copy the trainer's script, a single file of at most 64 KiB.")
def report_bug(run: Path, out: Path | None, with_script: bool) -> int:
    """Writes what is needed to report a bug, from the run directory of a failure.

    That is the replay file, the diagnosis, versions, the shortest log that shows it, and the text of an issue. Paths, user names
    and host names are replaced.

    Example: harness report-bug runs/test_x --out bug --with-script
    """
    from harness.bug_report import make_report, write_report
    from harness.report.issue import issue_text

    folder = out or Path(f"bug-{run.resolve().name}")
    problems = no_folder(folder)
    if folder.is_dir() and any(folder.iterdir()):
        problems.append(f"{folder} is not empty; expected a new folder (--out)")
    try:
        report = make_report(run, with_script)
    except UsageError as error:
        raise UsageError([*error.problems, *problems]) from None
    if problems:
        raise UsageError(problems)
    write_report(report, folder, issue_text(report))
    click.echo(f"{folder}: replay.toml, issue.md, {', '.join(sorted({name.split('/')[0] for name in report.files}))}")
    for note in report.notes:
        click.echo(f"  {note}")
    click.echo(f"read it before you send it: {folder / 'issue.md'}")
    return EXIT_PASS
