"""The files that a command can leave its results in: --json, --junit, --summary and --html, the same for all commands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.common import no_place_for, write
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.report.document import Document
    from harness.report.history import Night

SHOWN_RUNS = 12
_OPTIONS = {
    "json": "Also write the result as JSON.",
    "junit": "Also write it as JUnit XML.",
    "summary": "Also write it as Markdown.",
    "html": "Also write it as one page for a browser, with plots (the extra 'report').",
}


@dataclass(frozen=True)
class Outputs:
    """Where results go; None where they are not asked for."""

    json: Path | None = None
    junit: Path | None = None
    summary: Path | None = None
    html: Path | None = None

    def problems(self, out: Path | None = None) -> list[str]:
        """What is wrong with them, found before hours of work; `out` is a folder that will be made by then."""
        found = [text for file in (self.json, self.junit, self.summary, self.html) for text in no_place_for(file, out)]
        if self.html is not None:
            from harness.report.extra import missing_extra

            found += missing_extra()
        return found

    def write(
        self, document: Document, folders: Sequence[Path], nights: Sequence[Night] = (), num_runs: int = SHOWN_RUNS
    ) -> None:
        """Writes all that is asked for; one that cannot be written keeps no other from it.

        Args:
            document: the results.
            folders: where the run directories lie that the page shows.
            nights: what is known of earlier ones.
            num_runs: how many runs the page shows in full.

        Raises:
            UsageError: with everything that could not be written.
        """
        problems: list[str] = []
        for path, text in self._texts(document, folders, nights, num_runs):
            try:
                write(path, text())
            except UsageError as error:
                problems += error.problems
        if problems:
            raise UsageError(problems)

    def _texts(
        self, document: Document, folders: Sequence[Path], nights: Sequence[Night], num_runs: int
    ) -> Iterator[tuple[Path, Callable[[], str]]]:
        from harness.report import document as documents
        from harness.report.junit import junit
        from harness.report.summary import markdown

        if self.json:
            yield self.json, lambda: documents.to_text(document)
        if self.junit:
            yield self.junit, lambda: junit(document)
        if self.summary:
            yield self.summary, lambda: markdown(document)
        if self.html:
            from harness.report.page import page
            from harness.report.stored import stored_runs

            yield self.html, lambda: page(document, stored_runs(folders), nights, num_runs)


def output_options(command: Callable[..., int]) -> Callable[..., int]:
    """Adds the options to a command, which gets them as its argument `outputs`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **options: Any) -> int:
        files = {name: options.pop(f"{name}_file") for name in _OPTIONS}
        return command(*args, outputs=Outputs(**files), **options)

    for name, text in reversed(_OPTIONS.items()):
        kind = click.Path(path_type=Path)
        wrapped = click.option(f"--{name}", f"{name}_file", type=kind, default=None, metavar="FILE", help=text)(wrapped)
    return wrapped
