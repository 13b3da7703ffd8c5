"""`harness doctor`: what this machine can do."""

from __future__ import annotations

import click

from harness.errors import EXIT_HARNESS, EXIT_PASS


@click.command(name="doctor")
def doctor() -> int:
    """Says what this machine can do, by trying it, and what is lost without each.

    Example: harness doctor
    """
    from harness.doctor import run_checks
    from harness.report.tables import doctor_table

    results = run_checks()
    doctor_table(results)
    return EXIT_PASS if all(result.works or not result.check.required for result in results) else EXIT_HARNESS
