"""Counts what the harness holds while it runs a night of some hundred cases: nothing may pile up (`scripts/flat-night`)."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
from known import job

from harness.case import Workbench
from harness.chaos.found import Request
from harness.chaos.night import run_night
from harness.session import Session

CASES, JOBS, BUDGET_S, SEED = 200, 2, 1500.0, 7
# What Python keeps of an import or a buffer is not held for a case; a leak of a kilobyte a case is seen over some thousands.
MOST_GROWTH_KIB = 8 << 10


def held() -> Counter[str]:
    """What this process holds: descriptors by kind, mounts, processes below it, threads; and its memory in KiB."""
    found = Counter[str]()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one with which the folder was read
            continue
        found["descriptors"] += 1
        found["sockets"] += target.startswith("socket:")
    found["mounts"] = len(Path("/proc/self/mountinfo").read_text().splitlines())
    found["shared memory"] = len(os.listdir("/dev/shm"))
    found["processes"] = len(psutil.Process().children(recursive=True))
    found["threads"] = psutil.Process().num_threads()
    found["memory_kib"] = psutil.Process().memory_info().rss >> 10
    return found


def night(cases: int, folder: Path) -> tuple[list[tuple[int, Counter[str]]], int]:
    """What was held after so many cases, and how many of them failed."""
    seen: list[tuple[int, Counter[str]]] = []
    session = Session.new()
    try:
        bench = Workbench(folder, folder / "baselines", session.warm())
        seen.append((0, held()))

        def tick(done: int, failing: int, of: int) -> None:
            if done % max(1, cases // 4) == 0:
                seen.append((done, held()))

        request = Request(job(), SEED, BUDGET_S, JOBS, launch="cold", canary=False, most=cases)
        (folder / "night").mkdir()
        found = run_night(request, bench, folder / "night", lambda _: None, tick)
        seen.append((len(found.ran), held()))
    finally:
        session.close()
    return seen, found.count("FAIL")


def main() -> None:
    """The command: prints the counts, and ends with exit code 1 where something has piled up or a healthy job has failed."""
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else CASES
    folder = Path(tempfile.mkdtemp(prefix="flat-night-"))
    began = time.monotonic()
    try:
        seen, failed = night(cases, folder)
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
    print(f"{seen[-1][0]} cases in {time.monotonic() - began:.0f} s, {failed} failed; {', '.join(piled) or 'nothing'} piled up")
    sys.exit(1 if piled or failed else 0)


if __name__ == "__main__":
    main()
