"""The judge: all oracles over one stored case, and the one verdict that comes of it.

Responsible for: asking every oracle, and then for the cause, and never hiding one that crashes. Reads what was recorded, runs
nothing, imports no torch, so that a case can be judged again years later. Not responsible for: what holds (`harness.oracle`),
why it does not (`harness.diagnose`), or for saving and printing the verdict (`harness.case`, `harness.report`).
"""

from __future__ import annotations

from collections.abc import Callable

from harness.diagnose import diagnose
from harness.oracle.asynchrony import asynchrony
from harness.oracle.attributes import attributes
from harness.oracle.clarity import clarity
from harness.oracle.completion import completion
from harness.oracle.control import control
from harness.oracle.coverage import coverage
from harness.oracle.data import data
from harness.oracle.diagnosis import Diagnosis
from harness.oracle.durability import durability
from harness.oracle.execution import execution
from harness.oracle.finding import Finding, inconclusive
from harness.oracle.fired import fired
from harness.oracle.history import History
from harness.oracle.hygiene import hygiene
from harness.oracle.integrity import integrity
from harness.oracle.leftover import leftover
from harness.oracle.liveness import liveness
from harness.oracle.loss import largest_differences, loss, max_difference
from harness.oracle.memory import memory
from harness.oracle.noise import Noise, noise_of
from harness.oracle.numerics import numerics
from harness.oracle.progress import progress
from harness.oracle.refusal import refusal
from harness.oracle.retention import retention
from harness.oracle.state import state
from harness.oracle.unfelt import Unfelt, unfelt
from harness.oracle.unsaved import unsaved
from harness.oracle.verdict import FiredFault, Verdict, decide
from harness.scenario import FIXED_TOLERANCE
from harness.store import Baseline, Run

Oracle = Callable[[Run, Baseline], list[Finding]]

# Those that look at the records themselves first: their findings come first where weights are equal.
ORACLES: tuple[Oracle, ...] = (
    control,
    fired,
    liveness,
    execution,
    refusal,
    clarity,
    completion,
    unsaved,
    integrity,
    leftover,
    progress,
    retention,
    durability,
    asynchrony,
    data,
    coverage,
    loss,
    state,
    attributes,
    numerics,
    memory,
    hygiene,
)


def judge(run: Run, baseline: Baseline, oracles: tuple[Oracle, ...] = ORACLES) -> Verdict:
    """Judges a stored case.

    Args:
        run: the case.
        baseline: its uninterrupted run.
        oracles: which oracles to ask; each says nothing where it does not apply.

    Returns:
        The verdict, with all findings.
    """
    findings: list[Finding] = []
    for oracle in oracles:
        findings += _ask(oracle, run, baseline)
    facts = _Facts(run, baseline, findings)
    outcome, ordered, component = decide(findings + facts.problems)
    diagnosis, problems = _diagnosed(run, baseline, ordered, component, facts.fired)
    scenario = run.plan.scenario
    return Verdict(
        id=scenario.name,
        fault="; ".join(scenario.faults) or "none",
        outcome=outcome,
        findings=(*ordered, *problems),
        component=component,
        diagnosis=diagnosis,
        fired=facts.fired,
        max_loss_diff=facts.max_loss_diff,
        tolerance=FIXED_TOLERANCE if scenario.tolerance == "auto" else scenario.tolerance,
        noise=facts.noise,
        unfelt=facts.unfelt,
        same_world_size=scenario.same_world_size,
        resumed_from=facts.resumed_from,
        lost_steps=facts.lost_steps,
        replay=str(run.directory.plan_file),
        expect=scenario.expect,
        duration_s=sum(float(record.get("duration_s") or 0) for attempt in run.attempts for record in attempt.of("ended")),
    )


def _ask(oracle: Oracle, run: Run, baseline: Baseline) -> list[Finding]:
    try:
        return oracle(run, baseline)
    except Exception as error:  # noqa: BLE001  whatever it is, it is the harness's own fault and must be seen
        return [_crashed(oracle.__name__, error)]


def _diagnosed(
    run: Run, baseline: Baseline, findings: tuple[Finding, ...], component: str, fired: tuple[FiredFault, ...]
) -> tuple[Diagnosis | None, list[Finding]]:
    """The diagnosis; where that crashes, the verdict stands without one, and the crash is one more finding."""
    try:
        return diagnose(run, baseline, findings, component, fired), []
    except Exception as error:  # noqa: BLE001  as for the oracles
        return None, [_crashed("diagnosis", error)]


def _crashed(name: str, error: Exception) -> Finding:
    text = f"the {'' if name == 'diagnosis' else 'oracle '}{name} crashed: {type(error).__name__}: {error}"
    return inconclusive("harness-error", name, text, expected="a judgement", found=repr(error))


class _Facts:
    """What a report wants to know of a case beside the findings; a record that breaks it is one more finding."""

    def __init__(self, run: Run, baseline: Baseline, found: list[Finding]) -> None:
        self.problems: list[Finding] = []
        self.fired: tuple[FiredFault, ...] = ()
        self.max_loss_diff: float | None = None
        self.noise: Noise | None = None
        self.resumed_from: tuple[int, ...] = ()
        self.lost_steps: tuple[int, ...] = ()
        self.unfelt: tuple[Unfelt, ...] = ()
        try:
            self.fired = _fired_faults(run)
            self.max_loss_diff = max_difference(run, baseline)
            if run.plan.scenario.tolerance == "auto":
                self.noise = noise_of(run, baseline, largest_differences(run, baseline))
            history = History(run)
            resumes = [r for attempt in run.attempts if (r := history.resume_of(attempt.index)) is not None]
            self.resumed_from = tuple(resume.step for resume in resumes)
            self.lost_steps = tuple(resume.lost for resume in resumes)
            self.unfelt = unfelt(run, baseline, found)
        except Exception as error:  # noqa: BLE001  as for the oracles
            self.problems.append(_crashed("facts", error))


def _fired_faults(run: Run) -> tuple[FiredFault, ...]:
    found = [FiredFault(str(fault), None, None, None) for fault in run.plan.numeric]
    for attempt in run.attempts:
        for record in attempt.of("fired"):
            rank = record.get("rank")
            rank = rank if isinstance(rank, int) and rank >= 0 else None
            step = record.get("step")
            if not isinstance(step, int) and rank is not None:
                step = _step_before(run, attempt.index, rank, record.get("time_s"))
            found.append(FiredFault(str(record["fault"]), attempt.index, rank, step if isinstance(step, int) else None))
    return tuple(dict.fromkeys(found))  # `always` fires at every call; one line says it


def _step_before(run: Run, attempt: int, rank: int, time_s: object) -> int | None:
    """The step that a rank had completed when a fault hit it, by the time of its last batch before."""
    log = run.attempts[attempt].ranks.get(rank)
    if log is None or not isinstance(time_s, (int, float)):
        return None
    said = [r for r in log.records if r["event"] in ("batch", "resume") and float(r.get("time_s") or 0) <= time_s]
    step = said[-1].get("step") if said else None
    return step if isinstance(step, int) else None
