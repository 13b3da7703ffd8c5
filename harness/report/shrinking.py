"""What `harness shrink` has made of a case, as text."""

from __future__ import annotations

from pathlib import Path

from harness.plan import replay_line
from harness.scenario import Scenario
from harness.shrink.search import Smaller


def shrunk_text(before: Scenario, smaller: Smaller) -> str:
    """From what to what, in how many runs, and where the files are."""
    kind, component = smaller.group
    end = "nothing simpler fails in this way" if smaller.complete else "the budget ended; a longer one may find less (--budget)"
    lines = [
        f"FAIL {kind} ({component}): {_short(before)}",
        f"  smallest: {_short(smaller.scenario)}",
        f"  {smaller.num_runs} runs in {smaller.took_s:.0f} s; {end}",
        f"  test: {smaller.files.test}",
        f"  strace: {smaller.files.strace}" if smaller.files.strace else f"  no strace line: {smaller.files.why_no_strace}",
        f"  repeat: {replay_line(smaller.files.replay)}",
    ]
    return "\n".join(lines)


def nothing_to_shrink(file: Path, outcome: str) -> str:
    """For a case that does not fail."""
    return f"{file} does not fail here: {outcome}; there is nothing to make smaller. {replay_line(file)} says more"


def _short(scenario: Scenario) -> str:
    ranks = " → ".join(map(str, scenario.world_sizes))
    return f"ranks {ranks}; " + ("; ".join(scenario.faults) or "no fault")
