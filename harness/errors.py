"""The errors that a user of the harness may see, and the exit code that each one means.

Responsible for: the difference between *the user asked for something impossible* (`UsageError`), *this machine cannot
do it* (`CapabilityError`) and *the harness itself is broken* (any other exception, which is never hidden).
Not responsible for: verdicts on a training job; a failed case is a result, not an error.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_HARNESS = 4
EXIT_NOT_REPRODUCED = 5
EXIT_INTERRUPTED = 130


class HarnessError(Exception):
    """An error whose text is written for the user; shown without a traceback."""

    exit_code = EXIT_HARNESS


class UsageError(HarnessError):
    """Everything that is wrong with what the user asked for, in one error, before anything is started.

    Attributes:
        problems: one sentence per problem, each saying what was found and what was expected.
    """

    exit_code = EXIT_USAGE

    def __init__(self, problems: Sequence[str]) -> None:
        if not problems or isinstance(problems, str):
            raise ValueError(f"UsageError needs a sequence of at least one problem, found {problems!r}")
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[UsageError], tuple[tuple[str, ...]]]:
        # Worker processes hand errors over by pickle, which would otherwise call the class with the joined text.
        return type(self), (self.problems,)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        lines = "\n".join(f"  {n}. {text}" for n, text in enumerate(self.problems, 1))
        return f"{len(self.problems)} problems; nothing was started:\n{lines}"


class CapabilityError(HarnessError):
    """This machine lacks something that the case needs.

    Args:
        missing: what the kernel or the system refused, with its answer.
        needed_for: what the harness wanted it for.
        remedy: what the user can do about it.
    """

    def __init__(self, missing: str, needed_for: str, remedy: str) -> None:
        self.missing, self.needed_for, self.remedy = missing, needed_for, remedy
        super().__init__(f"this machine cannot {needed_for}: {missing}. {remedy} (`harness doctor` lists what it can do)")

    def __reduce__(self) -> tuple[type[CapabilityError], tuple[str, str, str]]:
        return type(self), (self.missing, self.needed_for, self.remedy)


class LaunchError(HarnessError):
    """The training processes could not be started at all (as against: they started and failed)."""


def is_full(error: OSError) -> bool:
    """Whether a disk has no room left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
