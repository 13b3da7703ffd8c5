"""`harness judge`: a stored run judged again."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.common import exit_code
from harness.errors import UsageError


@click.command(name="judge")
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
    return exit_code(verdict)
