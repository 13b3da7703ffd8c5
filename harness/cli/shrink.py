"""`harness shrink`: a failing case made as small as it can be."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.common import make_writable, new_folder, no_folder
from harness.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, UsageError


@click.command(name="shrink")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--budget", default="10m", show_default=True, help="Stop after so long: 90s, 10m, 2h.")
@click.option("--jobs", default=None, help="Cases at a time. [default: one more than the processors]")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where the files go.")
def shrink(file: Path, budget: str, jobs: str | None, out: Path) -> int:
    """Makes the case of a replay file smaller while the same kind and component fail.

    FILE is a plan.toml, or the run directory that holds it. What comes of it: a replay file, a pytest file that can be dropped
    into any repository, and where the faults can be said that way, lines of strace. Exit code: 1 it fails and was made smaller,
    2 wrong usage, 3 it does not fail.

    Example: harness shrink runs/test_x/plan.toml
    """
    from harness.case import Workbench
    from harness.check_request import default_jobs, duration, whole
    from harness.plan import read_plan
    from harness.report.progress import Ticker
    from harness.report.shrinking import nothing_to_shrink, shrunk_text
    from harness.session import Session
    from harness.shrink.search import reproduced
    from harness.shrink.search import shrink as make_smaller

    problems = no_folder(out)
    budget_s = duration(budget, problems)
    num_jobs = default_jobs() if jobs is None else whole(jobs, "--jobs", "a number from 1", problems, most=256)
    try:
        plan = read_plan(file)
    except UsageError as error:
        raise UsageError([*error.problems, *problems]) from None
    if problems:
        raise UsageError(problems)
    make_writable(out)
    session = Session.new()
    try:
        with new_folder(out.resolve(), f"shrink-{plan.scenario.name}"[:180]) as folder, Ticker() as ticker:
            bench = Workbench(folder / "tries", out.resolve() / "baselines", session.warm(), forked=True)
            ticker.say(f"seeing it fail: {'; '.join(plan.scenario.faults) or 'no fault'}")
            outcome, failure = reproduced(plan.scenario, bench)
            if failure is None:
                click.echo(nothing_to_shrink(file, outcome))
                return EXIT_INCONCLUSIVE
            smaller = make_smaller(failure, bench, folder, budget_s, num_jobs, ticker.say)
    finally:
        session.close()
    click.echo(shrunk_text(plan.scenario, smaller))
    return EXIT_FAIL
