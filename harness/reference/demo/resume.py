"""A job is killed after batch 10 of 24 and goes on in a new process: each of its losses is that of an uninterrupted job.

Everything that a resume can forget shows in the losses here: weights, AdamW's moments, the schedule in its warm-up or cosine,
the position inside an epoch, and every random generator (dropout, noise on the embeddings, augmentation).
The last checkpoint is that of batch 8, so that batches 9 and 10 are done a second time: they must come out the same again.
In float32 there is no loss scale to forget; the demo `end-to-end` has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from harness.reference.demo.command import TOLERANCE, DemoError, build_parser, conclude, workplace
from harness.reference.demo.ranks import RankLog, Row, kill_job_after, read_log, start_job

STEPS, SAVE_EVERY, KILL_AFTER = 24, 4, 10
LAST_SAVE = KILL_AFTER // SAVE_EVERY * SAVE_EVERY


def main(argv: Sequence[str]) -> int:
    """Run the demo; return its exit code."""
    options = build_parser("resume", format="single").parse_args(argv)
    torch.set_num_threads(1)
    with workplace(options.out) as place:
        try:
            golden, killed, resumed = run_jobs(place, options.device, options.defect)
        except DemoError as error:
            return conclude("resume", [str(error)])
    print(f"killed by SIGKILL after batch {KILL_AFTER}; the new process resumed from {resumed.checkpoint}\n")
    print_table(golden.rows, killed.rows, resumed.rows)
    differences = loss_differences(golden.rows, killed.rows, resumed.rows)
    problems = judge(differences, resumed, TOLERANCE[options.device])
    largest = max(differences.values(), default=0.0)
    return conclude("resume", problems, f"{len(differences)} losses compared, largest difference {largest:.1e}")


def run_jobs(place: Path, device: str, defects: Sequence[str]) -> tuple[RankLog, RankLog, RankLog]:
    """Run the uninterrupted job, the one that is killed, and its resumption.

    Raises:
        DemoError: One of them did not end as it should.
    """

    def arguments(checkpoints: str) -> list[str]:
        planted = [word for name in defects for word in ("--defect", name)]
        job = ["--steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--format", "single", "--device", device]
        return ["--out", str(place / checkpoints), *job, *planted]

    with (
        start_job("fork", 1, place / "log-uninterrupted", arguments("uninterrupted")) as golden,
        start_job("fork", 1, place / "log-killed", arguments("interrupted"), KILL_AFTER) as killed,
    ):
        print(f"process killed: exit code {kill_job_after(killed, 1, KILL_AFTER)[0]} (minus the signal)")
        with start_job("fork", 1, place / "log-resumed", arguments("interrupted")) as resumed:
            resumed.succeed()
        golden.succeed()
    return read_log(golden.log, 0), read_log(killed.log, 0), read_log(resumed.log, 0)


def loss_differences(
    golden: Mapping[int, Row], killed: Mapping[int, Row], resumed: Mapping[int, Row]
) -> dict[tuple[int, str], float]:
    """Return |difference| to the uninterrupted job by (batch, which job), in the order in which the batches were done."""
    parts = (("before the kill", killed), ("resumed", resumed))
    return {(batch, name): abs(rows[batch].loss - golden[batch].loss) for name, rows in parts for batch in sorted(rows)}


def judge(differences: Mapping[tuple[int, str], float], resumed: RankLog, tolerance: float) -> list[str]:
    """Return what does not hold, in words."""
    expected = [(batch, "before the kill") for batch in range(1, KILL_AFTER + 1)]
    expected += [(batch, "resumed") for batch in range(LAST_SAVE + 1, STEPS + 1)]
    problems = []
    if list(differences) != expected:
        problems.append(f"batches 1 to {KILL_AFTER}, then {LAST_SAVE + 1} to {STEPS} were to be done, found {list(differences)}")
    if resumed.checkpoint != f"step-{LAST_SAVE:08d}.pt":
        problems.append(f"it was to resume from the checkpoint of batch {LAST_SAVE}, found {resumed.checkpoint}")
    wrong = [(batch, name, value) for (batch, name), value in differences.items() if not value <= tolerance]
    if wrong:
        batch, name, value = wrong[0]
        problems.append(
            f"{len(wrong)} of {len(differences)} losses differ by more than {tolerance:g}; the first at batch {batch} ({name}), "
            f"by {value:.3e}; the largest difference is {max(value for _, _, value in wrong):.3e}"
        )
    return problems


def print_table(golden: Mapping[int, Row], killed: Mapping[int, Row], resumed: Mapping[int, Row]) -> None:
    """Print a line per batch: the loss of each job, and how far the interrupted one is off."""
    print(f"{'batch':>5s}  {'uninterrupted':>13s}  {'before the kill':>15s}  {'resumed':>13s}  {'|difference|':>12s}")
    for batch in sorted(golden):
        own = golden[batch].loss
        parts = [rows[batch].loss for rows in (killed, resumed) if batch in rows]
        texts = [f"{rows[batch].loss:.9f}" if batch in rows else "" for rows in (killed, resumed)]
        difference = max((abs(value - own) for value in parts), default=float("nan"))
        print(f"{batch:5d}  {own:13.9f}  {texts[0]:>15s}  {texts[1]:>13s}  {difference:12.3e}")
