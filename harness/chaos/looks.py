"""What must be known of a job before schedules can be drawn for it: a few runs of it that are looked at.

Responsible for: the undisturbed run, a restart with all that it reads, and of a command whether it falls back from a damaged
checkpoint and whether it gives up when a write fails. Not responsible for: judging (`harness.judge`), drawing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import psutil

from harness import check_plan
from harness.case import Workbench, run_case
from harness.chaos import drawing
from harness.chaos.places import JobMap, Place, checkpoint_patterns, read_places, recovery_places
from harness.oracle.verdict import Verdict
from harness.scenario import Reference, Scenario
from harness.store import AttemptRun, RunDirectory, read_attempt

# A fault that never fires, and for whose sake the reads of a restart are written down.
_READS = "EIO rank 0 on read nothing-has-this-name attempt 1"
_MOST_RANKS, _MEMORY_SHARE = 4, 0.9
Say = Callable[[str], None]


@dataclass(frozen=True)
class Looked:
    """What came of it.

    Attributes:
        job: what is known of the job; None where it cannot be attacked.
        verdict: of the undisturbed run.
        path: its run directory, where it is kept.
        why_not: why it cannot be attacked, in words.
        took_s: seconds of the undisturbed run.
    """

    job: JobMap | None
    verdict: Verdict
    path: RunDirectory
    why_not: str = ""
    took_s: float = 0.0


def look(
    scenario: Scenario, bench: Workbench, families: Sequence[str], say: Say, world_sizes: Sequence[int] | None = None
) -> Looked:
    """Runs a job undisturbed, then a few times with one fault, and learns from it.

    Args:
        scenario: the job.
        bench: where it runs.
        families: of `drawing.FAMILIES`; what none of them needs is not tried.
        say: is told of each run that begins.
        world_sizes: other numbers of ranks to be drawn; None for those that suggest themselves.

    Raises:
        UsageError, LaunchError, CapabilityError: it could not be run.
    """
    say("looking at the job: undisturbed")
    verdict, directory, attempts = _run(scenario, bench, "control")
    if verdict.outcome != "PASS":
        return Looked(None, verdict, directory, "the job does not pass undisturbed")
    job = _read(scenario, attempts[0], families, world_sizes)
    shutil.rmtree(directory.path, ignore_errors=True)
    looked = Looked(job, verdict, directory, took_s=verdict.duration_s)
    if not job.told or not job.places:
        what = "says no step" if not job.told else "writes nothing below its checkpoint directory"
        return replace(looked, job=None, why_not=f"there is nothing to draw from: the undisturbed job {what}")
    job = _with_recovery(job, scenario, bench, say)
    return replace(looked, job=_with_habits(job, scenario, bench, families, say))


def _run(scenario: Scenario, bench: Workbench, name: str, *faults: str) -> tuple[Verdict, RunDirectory, list[AttemptRun]]:
    changes = {"name": name, "faults": faults, "max_attempts": 3, "expect": "resumes"}
    verdict, directory = run_case(scenario.model_copy(update=changes), bench)
    return verdict, directory, [read_attempt(folder) for folder in directory.attempts()]


def _read(scenario: Scenario, attempt: AttemptRun, families: Sequence[str], world_sizes: Sequence[int] | None) -> JobMap:
    places, steps_at, starts = read_places(attempt.operations)
    batches = [batch for log in attempt.ranks.values() for batch in log.batches]
    standing, files, size = checkpoint_patterns({path: size for path, (size, _) in (attempt.files("end") or {}).items()})
    return JobMap(
        ranks=scenario.world_size(0),
        steps=max((batch.step for batch in batches), default=0),
        batches=max((batch.batch for batch in batches), default=0),
        places=places,
        steps_at=steps_at,
        starts=starts,
        sizes=_sizes(scenario, attempt, world_sizes) if drawing.SIZES in families else (),
        standing=standing,
        files=files,
        save_bytes=size,
        scaled=any(batch.scale is not None for batch in batches),
        reshards=isinstance(scenario.workload, Reference),
        told=tuple(sorted(steps_at.get(0, {}))),
    )


def _sizes(scenario: Scenario, attempt: AttemptRun, asked: Sequence[int] | None) -> tuple[int, ...]:
    workload, ranks = scenario.workload, scenario.world_size(0)
    if isinstance(workload, Reference):
        if not workload.reshard or workload.model == "mlp":
            return ()
        shared = workload.global_batch // workload.accumulate
        found = [size for size in (asked or range(1, _MOST_RANKS + 1)) if shared % size == 0]
        return tuple(size for size in found if size != ranks)
    if not any("{world_size}" in word for word in workload.command):
        return ()
    memory = 1024.0 * max((record.get("max_memory_kib", 0) for record in attempt.of("exited")), default=0)
    free = _MEMORY_SHARE * psutil.virtual_memory().available
    return check_plan.fitting(check_plan.other_sizes(ranks, asked), memory, free)[0]


def _with_recovery(job: JobMap, scenario: Scenario, bench: Workbench, say: Say) -> JobMap:
    """The job after a kill between two saves, with all that its restart reads."""
    saved = job.starts[1].step if len(job.starts) > 1 else 0
    step = next((told for told in job.told if told > saved), job.told[-1])
    say(f"looking at the job: killed at step {step}, and started again")
    _, directory, attempts = _run(scenario, bench, "restart", _kill(step), _READS)
    recovery = recovery_places(attempts[1].operations) if len(attempts) > 1 else ()
    shutil.rmtree(directory.path, ignore_errors=True)
    return replace(job, recovery=recovery)


def _with_habits(job: JobMap, scenario: Scenario, bench: Workbench, families: Sequence[str], say: Say) -> JobMap:
    """Whether the job falls back, and whether it gives up: of the reference trainer it is known."""
    workload = scenario.workload
    if isinstance(workload, Reference):
        return replace(job, gives_up=workload.on_save_error == "fail")
    if drawing.DAMAGES in families and job.standing > 1:
        say("looking at the job: its newest checkpoint cut to half")
        _, directory, attempts = _run(scenario, bench, "damaged", _kill(job.told[-1]), "truncate newest to 50%")
        resumed = [record for attempt in attempts[1:2] for log in attempt.ranks.values() for record in log.of("resume")]
        job = replace(job, falls_back=any(record["step"] > 0 for record in resumed))
        shutil.rmtree(directory.path, ignore_errors=True)
    else:
        job = replace(job, falls_back=False)
    if drawing.ASKS in families:
        job = replace(job, saves_when_asked=_saves_when_asked(job, scenario, bench, say))
    writes = [place for place in job.places if place.size_bytes]
    if {drawing.ERRORS, drawing.DISKS} & set(families) and writes:
        say("looking at the job: a write of it fails")
        _, directory, attempts = _run(scenario, bench, "error", _failing(job, writes[len(writes) // 2]))
        ended = attempts[0].of("ended")
        job = replace(job, gives_up=bool(ended) and ended[-1].get("outcome") != "done")
        shutil.rmtree(directory.path, ignore_errors=True)
    return job


def _saves_when_asked(job: JobMap, scenario: Scenario, bench: Workbench, say: Say) -> bool:
    saved = [start.step for start in job.starts]
    step = next((told for told in job.told if told not in saved and told > saved[min(1, len(saved) - 1)]), job.told[-1])
    say(f"looking at the job: asked to end at step {step}")
    _, directory, attempts = _run(scenario, bench, "asked", f"sigterm all ranks at step {step} by rank 0")
    resumed = [record["step"] for attempt in attempts[1:2] for log in attempt.ranks.values() for record in log.of("resume")]
    shutil.rmtree(directory.path, ignore_errors=True)
    return bool(resumed) and min(resumed) == step


def _failing(job: JobMap, place: Place) -> str:
    count = job.occurrence(place, job.starts[0])
    return f"ENOSPC rank {place.rank} on write {place.pattern}" + (f" occurrence {count}" if count > 1 else "")


def _kill(step: int) -> str:
    return f"sigkill all ranks at step {step} by rank 0"
