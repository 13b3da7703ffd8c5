"""One file per oracle; each is a pure function `(Run, Baseline) -> list[Finding]` of what was recorded.

Responsible for: saying what does not hold, in which attempt, at which step, on which rank, in which file.
Not responsible for: which finding is the root (`verdict`), how it is printed (`harness.report`), or making anything run.
An oracle reports a FAIL only on what the harness did not cause itself; where it cannot know, it says INCONCLUSIVE or
leaves the question to the oracle that can.
"""

from __future__ import annotations
