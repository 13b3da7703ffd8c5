"""A case that must fail: the reference trainer with a planted defect. A harness that lets it pass would let anything pass.

Responsible for: the case, and what its verdict says of the harness. Not responsible for: running it.
"""

from __future__ import annotations

from harness.chaos.running import Ran
from harness.scenario import Scenario, job

DEFECT, KIND, COMPONENT = "no-optimizer", "diverged", "optimizer"


def canary() -> Scenario:
    """The case: killed between two saves, a job forgets its optimizer's state."""
    small = {"steps": 4, "save_every": 2, "keep_last": 1, "batches_per_epoch": 4, "width": 8}
    faults = "sigkill all ranks at step 3 by rank 0"
    return job("single", ranks=1, faults=faults, defects=(DEFECT,), name="canary", **small)


def judged(ran: Ran) -> str:
    """What is wrong with the harness, in words; "" if the canary failed as it must."""
    if (ran.outcome, ran.kind, ran.component) == ("FAIL", KIND, COMPONENT):
        return ""
    found = f"{ran.outcome} {ran.kind or ''} ({ran.component})" + (f": {ran.message}" if ran.message else "")
    return (
        f"the canary did not fail as it must: expected FAIL {KIND} ({COMPONENT}), since the reference trainer was made to forget "
        f"its optimizer (--defect {DEFECT}); found {found}. Nothing that the harness says here can be trusted; `harness doctor` "
        "looks at this machine"
    )
