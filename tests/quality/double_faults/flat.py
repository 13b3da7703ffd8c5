"""Counts what the harness holds while it runs a night of some hundred cases: nothing may pile up (`scripts/flat-night`).

`flat.py [CASES [FORMAT]]`: of the job without torch that lies here, or of the reference trainer on two ranks with this format.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
from known import job as small_job

from harness.case import Workbench
from harness.chaos.found import Found, Request
from harness.chaos.night import run_night
from harness.chaos.request import REFERENCE
from harness.scenario import Scenario
from harness.scenario import job as reference_job
from harness.session import Session

CASES, JOBS, BUDGET_S, SEED = 200, 3, 14400.0, 7
# What Python keeps of an import or a buffer is not held for a case; a leak of a kilobyte a case is seen over some thousands.
MOST_GROWTH_KIB = 8 << 10


def held() -> Counter[str]:
    """What this process holds: descriptors by kind, mounts, processes below it, threads; and its memory in KiB."""
    found = Counter[str]()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the one with which the folder was read
            continue
        found["descriptors"] += 1
        found["sockets"] += target.startswith("socket:")
    found["mounts"] = len(Path("/proc/self/mountinfo").read_text().splitlines())
    found["shared memory"] = len(os.listdir("/dev/shm"))
    found["processes"] = len(psutil.Process().children(recursive=True))
    found["threads"] = psutil.Process().num_threads()
    found["memory_kib"] = psutil.Process().memory_info().rss >> 10
    return found


def night(cases: int, scenario: Scenario, folder: Path) -> tuple[list[tuple[int, Counter[str]]], Found]:
    """What was held after so many cases, and what they have come to."""
    seen: list[tuple[int, Counter[str]]] = []
    session = Session.new()
    try:
        bench = Workbench(folder, folder / "baselines", session.warm())
        seen.append((0, held()))

        def tick(done: int, failing: int, of: int) -> None:
            if done % max(1, cases // 4) == 0:
                seen.append((done, held()))

        request = Request(scenario, SEED, BUDGET_S, JOBS, launch=scenario.launch, canary=False, most=cases)
        (folder / "night").mkdir()
        found = run_night(request, bench, folder / "night", _only_trouble, tick)
        seen.append((len(found.ran), held()))
    finally:
        session.close()
    return seen, found


def _only_trouble(text: str) -> None:
    if "FAIL" in text or "INCONCLUSIVE" in text:
        print(text, flush=True)


def main() -> None:
    """The command: prints the counts, and ends with exit code 1 where something has piled up or a healthy job has failed."""
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else CASES
    saved_as = sys.argv[2] if len(sys.argv) > 2 else ""
    scenario = reference_job(saved_as, ranks=2, name=f"flat-{saved_as}", **REFERENCE) if saved_as else small_job()
    folder = Path(tempfile.mkdtemp(prefix="flat-night-"))
    began = time.monotonic()
    try:
        seen, found = night(cases, scenario, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    words = list(seen[0][1] | seen[-1][1])
    print(f"{'cases':>6} " + " ".join(f"{word:>13}" for word in words))
    for done, counts in seen:
        print(f"{done:>6} " + " ".join(f"{counts[word]:>13}" for word in words))
    first, last = seen[0][1], seen[-1][1]
    early = next(counts for done, counts in seen if done)  # after the first cases everything has been imported
    piled = [word for word in words if word not in ("memory_kib", "threads") and last[word] > first[word]]
    if last["memory_kib"] > early["memory_kib"] + MOST_GROWTH_KIB:
        piled.append("memory_kib")
    ran = [(case, case.ran) for case in found.ran if case.ran]
    missed = sum(one.missed for _, one in ran)
    trouble = [(case, one) for case, one in ran if one.outcome != "PASS" and not one.missed]
    for case, one in trouble:
        print(f"{one.outcome} {one.kind} {one.component} ({one.message}): {'; '.join(case.scenario.faults)}")
    took = f"{len(ran)} cases in {time.monotonic() - began:.0f} s"
    print(f"{took}, {len(trouble)} failed; of {missed} not every fault fired; {', '.join(piled) or 'nothing'} piled up")
    sys.exit(1 if piled or trouble else 0)


if __name__ == "__main__":
    main()
