"""A verdict as text: what happened, where, the likely cause, and the one command that repeats it. Pure.

Responsible for: the shape that `shared/design.md` promises under "Error text". Not responsible for: colour, or where it
is printed.
"""

from __future__ import annotations

import math
from pathlib import Path

from harness.oracle.control import UNENDED
from harness.oracle.finding import Finding
from harness.oracle.history import parse_quietly
from harness.oracle.noise import Noise
from harness.oracle.state import BEFORE_SAVE, IN_BASELINE, is_digest, short
from harness.oracle.unfelt import told
from harness.oracle.verdict import FiredFault, Verdict, likely_causes
from harness.plan import replay_line

_SHOWN_LOST = 6
_NEXT = {
    "fault-did-not-fire": "see in the attempt's operations.jsonl what the job does there, or choose another point for the fault",
    "baseline-unstable": "make two fault-free runs equal first: seed every generator, use deterministic algorithms",
    "foreign-death": "look for the out-of-memory killer (`dmesg`), run fewer cases at once, then run this one again",
    "not-comparable": "look at the logs in the run directory, then run the case again",
    "out-of-time": "run it again with a larger budget",
    "harness-error": "report this with the run directory: it is a fault of the harness, not of the training job",
}
_UNENDED = "judge it again once it has ended; where nothing runs any more, run the case again"


def render(verdict: Verdict, run_directory: Path) -> str:
    """A verdict as lines of text, without a line end after the last.

    Args:
        verdict: what to say.
        run_directory: where the case lies; stands in the command that repeats it.
    """
    root = verdict.root
    if root is None:
        return _pass(verdict)
    lines = [f"{verdict.outcome} {root.kind}: {root.message}"]
    if verdict.outcome == "FAIL":
        lines += _values(root, verdict.tolerance if root.limit is None else root.limit)
    lines += _noise(verdict.noise)
    causes = likely_causes(root, verdict.findings)
    lines += _lost(causes)
    lines += [f"also: {finding.kind}: {finding.message}" for finding in _others(root, verdict.findings)]
    if verdict.diagnosis is not None:
        lines.append(f"diagnosis: {verdict.diagnosis.text}")
    lines += [f"fault: {_fault(fired)}" for fired in verdict.fired] or ["fault: none fired"]
    if verdict.outcome == "INCONCLUSIVE":
        lines.append(f"next: {_UNENDED if root.message.endswith(UNENDED) else _NEXT[root.kind]}")
    lines.append(f"repeat: {replay_line(run_directory / 'plan.toml')}")
    return "\n  ".join(lines)


def _pass(verdict: Verdict) -> str:
    if verdict.resumed_from:
        steps = ", then ".join(map(str, verdict.resumed_from))
        lost = ", then ".join(map(str, verdict.lost_steps))
        resumed = f"resumed from step {steps}, lost {lost} step{'s' * (verdict.lost_steps != (1,))}"
    else:
        resumed = "no resume"
    if verdict.expect == "refuses":
        resumed += ", refused as it was to, nothing changed"
    unfelt = [f"note: {text}"] if (text := told(verdict.unfelt)) else []
    return "\n  ".join([f"PASS {verdict.id}: {resumed}, {_difference(verdict)}", *_noise(verdict.noise), *unfelt])


def _noise(noise: Noise | None) -> list[str]:
    """How far a difference is from what one flipped last bit makes, and how much that makes of it."""
    if noise is None:
        return []
    flip = f"one flipped last bit of every weight after batch {noise.after} makes {noise.first:.1e} at once"
    flip += f" and {noise.last:.1e} within {noise.num_batches} batches"
    times = "" if noise.times is None else f"the largest difference is {_times(noise.times)} what it makes"
    chaotic = ""
    if noise.is_chaotic:
        chaotic = "; the job is chaotic: an error below that cannot be told from rounding, so that nothing is known of small ones"
    return [f"noise: {'; '.join(filter(None, (flip, times)))}{chaotic}"]


def _times(times: float) -> str:
    if times == 0:
        return "0×"
    return f"{times:.1f}×" if 0.1 <= times < 100 else f"{times:.1e}×"


def _difference(verdict: Verdict) -> str:
    largest = verdict.max_loss_diff
    if largest is None:
        return "no loss was compared"
    if largest == 0:
        return "max |diff| 0, bit-equal"
    limit = "auto" if verdict.noise is not None else _shortest(verdict.tolerance)
    text = f"max |diff| {largest:.1e} (tolerance {limit})"
    return text + ", not bit-equal although the number of ranks is the same" if verdict.same_world_size else text


def _values(root: Finding, tolerance: float) -> list[str]:
    """The line of expected and found: as numbers where the loss is compared, else as they are, unless the headline has both."""
    if root.oracle == "loss" and root.kind == "diverged" and root.attempt is not None:
        line = f"uninterrupted {root.expected}   resumed {root.found}"
        numbers = [_number(text) for text in (root.expected, root.found)]
        if None in numbers:
            return [line]
        difference = abs((numbers[1] or 0.0) - (numbers[0] or 0.0))
        if math.isnan(difference):
            return [f"{line}   |diff| nan, which equals nothing"]
        return [f"{line}   |diff| {_beyond(difference, tolerance)} > {_shortest(tolerance)}"]
    if root.oracle == "state" or not (root.expected and root.found):
        return []
    found = root.found.splitlines()[0]
    return [f"expected {root.expected}   found {found}"]


def _number(text: str) -> float | None:
    try:
        return float.fromhex(text) if text.lstrip("-").startswith(("0x", "inf", "nan")) else None
    except ValueError:
        return None


def _beyond(difference: float, tolerance: float) -> str:
    # Rounded to two digits it could look like the tolerance itself.
    text = f"{difference:.1e}"
    return text if float(text) > tolerance else repr(difference)


def _shortest(number: float) -> str:
    if number == 0:
        return "0"
    return next((text for digits in range(17) if float(text := f"{number:.{digits}e}") == number), repr(number))


def _lost(causes: list[Finding]) -> list[str]:
    """One line per component and comparison; ranks of one component share it, shown by the first one's digests."""
    lines = [f"lost later: {finding.message}" for finding in causes if finding.late][:1]
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in (finding for finding in causes if not finding.late):
        groups.setdefault((finding.component, _place(finding)), []).append(finding)
    for (component, where), findings in groups.items():
        first = findings[0]
        ranks = ", ".join(str(finding.rank) for finding in findings)
        if is_digest(first.expected):
            values = f"digest {short(first.expected)} {where}, {short(first.found)} after the load"
        else:
            values = f"{first.expected} {where}, {first.found} after the load"
        lines.append(f"lost: {component} ({values}), rank{'s' * (len(findings) > 1)} {ranks}")
    hidden = len(lines) - _SHOWN_LOST
    return [*lines[:_SHOWN_LOST], f"lost: {hidden} more components"] if hidden > 0 else lines


def _place(finding: Finding) -> str:
    return IN_BASELINE if IN_BASELINE in finding.message else BEFORE_SAVE


def _others(root: Finding, findings: tuple[Finding, ...]) -> list[Finding]:
    """One finding of each further kind: enough to see that there is more, not so many that the root is lost."""
    others: dict[str, Finding] = {}
    for finding in findings:
        if finding.kind != root.kind and not (finding.oracle == "state" and likely_causes(root, findings)):
            others.setdefault(finding.kind, finding)
    return list(others.values())


def _fault(fired: FiredFault) -> str:
    if fired.attempt is None:
        return f"{fired.fault}, in every attempt"
    parts = [fired.fault]
    who = getattr(parse_quietly(fired.fault), "who", None)
    if fired.rank is not None and (who is None or who.ranks != (fired.rank,)):
        parts.append(f"rank {fired.rank}")
    if not fired.fault.endswith(f" attempt {fired.attempt}"):
        parts.append(f"attempt {fired.attempt}")
    if fired.step is not None and not fired.fault.endswith(f"at step {fired.step}"):
        parts.append(f"step {fired.step}")
    return ", ".join(parts)
