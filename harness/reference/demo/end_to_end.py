"""The whole way: 4 ranks, DDP, ZeRO-1, float16 with a GradScaler, sharded checkpoints, all ranks killed, all started again.

The checkpoint is that of step 10, and every rank is killed by SIGKILL after step 12. The new ranks must do steps 11 and 12 again
and go on to 20; each rank's own loss, the scale and the learning rate are compared with those of a job that nobody disturbed.
They must be the same bits: gradients are added up in rank order (see `harness.reference.parallel`), so nothing is tolerated. On
GPUs, some of whose kernels add up in no certain order, 1e-4 is, of losses alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from harness.reference.demo.command import TOLERANCE, DemoError, build_parser, conclude, workplace
from harness.reference.demo.ranks import LAUNCHERS, RankLog, kill_job_after, read_log, start_job

RANKS, STEPS, SAVE_AT, KILL_AFTER = 4, 20, 10, 12
RESUMED_STEPS = range(SAVE_AT + 1, STEPS + 1)
JOB = ["--steps", str(STEPS), "--save-every", str(SAVE_AT), "--format", "sharded", "--parallelism", "zero1"]


def main(argv: Sequence[str]) -> int:
    """Run the demo; return its exit code."""
    parser = build_parser("end-to-end", format="sharded")
    parser.add_argument("--precision", choices=("fp16", "fp32"), default="fp16", help="arithmetic; default fp16")
    parser.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="fork",
        help="how ranks are started: forked from one process that has imported torch (the default, fast), each as a fresh "
        "interpreter, or by torchrun",
    )
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    job = [*JOB, "--precision", options.precision, "--device", options.device]
    planted = [word for name in options.defect for word in ("--defect", name)]
    with workplace(options.out) as place:
        try:
            golden, resumed = run_jobs(place, options.launcher, [*job, *planted])
        except DemoError as error:
            return conclude("resume", [str(error)])
    print_table(golden, resumed)
    return verdict(golden, resumed, TOLERANCE[options.device])


def run_jobs(place: Path, launcher: str, arguments: Sequence[str]) -> tuple[list[RankLog], list[RankLog]]:
    """Run the uninterrupted job, the one that is killed, and its resumption; return the first and the last one's logs.

    Raises:
        DemoError: One of them did not end as it should.
    """

    def started_in(checkpoints: str) -> list[str]:
        return ["--out", str(place / checkpoints), *arguments]

    with start_job(launcher, RANKS, place / "log-uninterrupted", started_in("uninterrupted")) as golden:
        golden.succeed()
    with start_job(launcher, RANKS, place / "log-killed", started_in("interrupted"), KILL_AFTER) as killed:
        codes = kill_job_after(killed, RANKS, KILL_AFTER)
        print(f"{RANKS} ranks killed by SIGKILL after step {KILL_AFTER}, exit codes {codes}")
    with start_job(launcher, RANKS, place / "log-resumed", started_in("interrupted")) as resumed:
        resumed.succeed()
    logs = [[read_log(job.log, rank) for rank in range(RANKS)] for job in (golden, resumed)]
    old, new = [read_log(killed.log, rank).pid for rank in range(RANKS)], [log.pid for log in logs[1]]
    print(f"processes {old} are gone, {new} resumed from {', '.join(sorted({str(log.checkpoint) for log in logs[1]}))}\n")
    return logs[0], logs[1]


def print_table(golden: Sequence[RankLog], resumed: Sequence[RankLog]) -> None:
    """Print a line per step: the mean loss of both jobs as exact numbers, the scale, and how far each rank is off."""
    ranks = "  ".join(f"{f'|diff| rank {rank}':>13s}" for rank in range(RANKS))
    print(f"step  {'loss, uninterrupted':>21s}  {'loss, resumed':>21s}  {'scale':>7s}  {ranks}")
    for step in RESUMED_STEPS:
        if not all(step in log.rows for log in (*golden, *resumed)):
            continue
        own, other = golden[0].rows[step], resumed[0].rows[step]
        scale = "-" if other.scale is None else f"{other.scale:g}"
        differences = [abs(a.rows[step].loss - b.rows[step].loss) for a, b in zip(golden, resumed, strict=True)]
        ends = "  ".join(f"{difference:13.3e}" for difference in differences)
        print(f"{step:4d}  {own.global_loss.hex():>21s}  {other.global_loss.hex():>21s}  {scale:>7s}  {ends}")


def first_difference(golden: Sequence[RankLog], resumed: Sequence[RankLog], tolerance: float = 0.0) -> tuple[int, str] | None:
    """Return the first step at which some rank is off, and in what; None if every rank did every step as it should."""
    for step in RESUMED_STEPS:
        for rank, (own, other) in enumerate(zip(golden, resumed, strict=True)):
            if step not in own.rows or step not in other.rows:
                return step, f"rank {rank} has not done it in both jobs"
            # Of all values and not of the loss alone: a forgotten scaler is seen in the scale long before the loss.
            for name, value in vars(own.rows[step]).items():
                found = getattr(other.rows[step], name)
                if found != value and not (name in ("loss", "global_loss") and abs(found - value) <= tolerance):
                    return step, f"{name} on rank {rank}: {value} uninterrupted, {found} resumed"
    return None


def verdict(golden: Sequence[RankLog], resumed: Sequence[RankLog], tolerance: float) -> int:
    """Print what holds and what does not; return the exit code."""
    done = {tuple(sorted(log.rows)) for log in resumed}
    checkpoints = {log.checkpoint for log in resumed}
    found = first_difference(golden, resumed, tolerance)
    print()
    if checkpoints != {f"step-{SAVE_AT:08d}"} or done != {tuple(RESUMED_STEPS)}:
        print(f"does not hold: resumed from {checkpoints}, not from the checkpoint of step {SAVE_AT}")
        found = found or (SAVE_AT + 1, "")
    if found is None:
        same = (
            f"no loss differs by more than {tolerance:g}"
            if tolerance
            else "every loss, scale and learning rate has the same bits"
        )
        print(f"{RANKS} ranks, steps {SAVE_AT + 1} to {STEPS}: {same}")
        print("RESUME VERIFIED", flush=True)
        return 0
    print(f"does not hold: {found[1]}")
    print(f"RESUME FAILED at step {found[0]}", flush=True)
    return 1
