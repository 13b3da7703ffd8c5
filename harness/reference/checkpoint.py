"""The checkpoints of one job: find the newest valid one, resume from it, save new ones, rotate old ones.

What is decided here, in words:
- At the start rank 0 looks at the committed checkpoints, newest first, reads each completely, and takes the first whose
  every checksum holds. All ranks are told which, so that they cannot resume from different ones.
- A damaged one is passed over and reported. It stays where it is until a good one of a higher number is committed, and
  then rotation removes it. If training comes to its very number again, it is removed (or, being a single file,
  replaced in one step) just before that save: the older good one that the job resumed from is still there then.
- One that is not damaged and does not fit (other names or shapes of tensors, other options, another number of ranks) is a
  refusal, not a reason to look at older ones: it is what the job has come to, and to go back would lose that work silently.
- If there are checkpoints and all are damaged, the job refuses to start and touches nothing: to train from scratch in
  that directory would first hide and then rotate away what could perhaps be repaired.
- Left-overs of saves that were cut short are removed only after that decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.reference.comm import rank0_decides
from harness.reference.errors import CheckpointError, RefusalError, one_line
from harness.reference.formats import CheckpointFormat, CheckpointHeader
from harness.reference.hooks import SkippedCheckpoint, TrainingHooks
from harness.reference.rotation import (
    committed_checkpoints,
    make_room,
    remove_checkpoint,
    remove_leftovers,
    rotate_checkpoints,
)
from harness.reference.state import Training

Print = Callable[[str], None]


@dataclass(frozen=True)
class ScanResult:
    """What a look at the checkpoint directory found.

    Attributes:
        path: The newest valid checkpoint, or None if there is none at all.
        header: What it says about itself.
        skipped: Newer ones that are damaged, newest first.
    """

    path: Path | None
    header: CheckpointHeader | None
    skipped: tuple[SkippedCheckpoint, ...]


@dataclass(frozen=True)
class Resumption:
    """How a job started.

    Attributes:
        scan: What was found.
        warning: Something that the user should know, or None.
    """

    scan: ScanResult
    warning: str | None


def find_newest_valid(checkpoint_format: CheckpointFormat, parent: Path) -> ScanResult:
    """Look for the newest checkpoint that is intact, reading every byte of each candidate. Changes nothing. One rank.

    Raises:
        RefusalError: There are checkpoints, but none is intact, or one could not be read, or its shards are of different
            models, or they are of another format; the text names each file, expected, found.
    """
    skipped: list[SkippedCheckpoint] = []
    found = checkpoint_format.find(parent)
    others = sorted(path.name for path in committed_checkpoints(parent) if path not in found)
    if others:
        # Rotation would count them as this job's own, and a job that started afresh beside them would push out its own.
        raise RefusalError(f"checkpoints of another format: {parent}: expected none, found {', '.join(others)}")
    for path in found:
        try:
            return ScanResult(path, checkpoint_format.verify(path), tuple(skipped))
        except RefusalError:
            raise
        except CheckpointError as error:
            skipped.append(SkippedCheckpoint(path.name, str(error)))
        except OSError as error:
            # The disk did not give it out: that says nothing against the checkpoint, and the next attempt may read it.
            text = f"cannot read {path}: expected its bytes, found {one_line(error)}; nothing was changed, start the job again"
            raise RefusalError(text) from error
    if skipped:
        reasons = "; ".join(damaged.reason for damaged in skipped)
        raise RefusalError(f"no valid checkpoint among {len(skipped)} in {parent}, nothing was changed: {reasons}")
    return ScanResult(None, None, ())


@dataclass(frozen=True)
class _Saving:
    """A save that has begun and whose outcome is not known yet."""

    step: int
    path: Path


class CheckpointStore:
    """The checkpoint directory of a running job.

    Args:
        checkpoint_format: How a checkpoint is stored.
        parent: Directory of the checkpoints; made at the first save.
        keep_last: Checkpoints kept by rotation.
    """

    def __init__(self, checkpoint_format: CheckpointFormat, parent: Path, keep_last: int) -> None:
        self._format = checkpoint_format
        self._parent = parent
        self._keep_last = keep_last
        self._corrupt: set[Path] = set()
        self._saving: _Saving | None = None

    def resume(self, training: Training) -> Resumption:
        """Restore the job from the newest valid checkpoint, or leave it as it is if there is none. Collective.

        Raises:
            RefusalError: None is valid, or the newest valid one does not fit this job or this number of ranks.
        """
        if "from-scratch" in training.config.defect:
            return Resumption(ScanResult(None, None, ()), None)
        scan = rank0_decides(lambda: find_newest_valid(self._format, self._parent))
        self._corrupt = {self._parent / damaged.path for damaged in scan.skipped}
        warning = None
        if scan.path is not None:
            try:
                warning = self._format.load(training, scan.path)
            except CheckpointError as error:
                raise RefusalError(str(error)) from error
        rank0_decides(lambda: remove_leftovers(self._parent))
        return Resumption(scan, warning)

    def save(self, training: Training, hooks: TrainingHooks, say: Print) -> None:
        """Save the job and rotate, or follow `--on-save-error`. Collective.

        An asynchronous save goes on in the background; `poll` and `finish` see to its end. The next save waits for it.

        Raises:
            CheckpointError: On every rank, if it failed on any and the job is to fail then. What was saved before is
                untouched.
        """
        self.finish(training, hooks, say)
        path = self._format.path_for(self._parent, training.state.batch)
        self._saving = _Saving(training.state.step, path)
        hooks.state("save", training)
        hooks.save_begin(training.state.step, path.name)
        try:
            if path in self._corrupt and training.config.format != "single":
                rank0_decides(lambda: remove_checkpoint(path))
            if "delete-first" in training.config.defect:
                rank0_decides(lambda: make_room(self._parent, self._keep_last))
            committed = self._format.save(training, path)
        except CheckpointError as error:
            self._failed(training, error, hooks, say)
            return
        if committed:
            self._committed(training, hooks, say)

    def poll(self, training: Training, hooks: TrainingHooks, say: Print) -> None:
        """Commit a save that has been going on in the background, if every rank is through. Collective; never waits.

        Raises:
            CheckpointError: As for `save`.
        """
        self._end_saving(training, hooks, say, wait=False)

    def finish(self, training: Training, hooks: TrainingHooks, say: Print) -> None:
        """Wait for a save that is going on in the background, and commit it. Collective.

        Raises:
            CheckpointError: As for `save`.
        """
        self._end_saving(training, hooks, say, wait=True)

    def _end_saving(self, training: Training, hooks: TrainingHooks, say: Print, *, wait: bool) -> None:
        if self._saving is None:
            return
        try:
            done = self._format.finish(wait)
        except CheckpointError as error:
            self._failed(training, error, hooks, say)
            return
        if done:
            self._committed(training, hooks, say)

    def _committed(self, training: Training, hooks: TrainingHooks, say: Print) -> None:
        assert self._saving is not None
        self._corrupt.discard(self._saving.path)
        hooks.save_end(self._saving.step, self._saving.path.name)
        self._saving = None
        if "no-rotation" in training.config.defect:
            return
        try:
            rank0_decides(lambda: rotate_checkpoints(self._parent, self._keep_last, self._corrupt))
        except CheckpointError as error:
            _fail_or_go_on(training, error, say)

    def _failed(self, training: Training, error: CheckpointError, hooks: TrainingHooks, say: Print) -> None:
        assert self._saving is not None
        hooks.save_failed(self._saving.step, self._saving.path.name, str(error))
        self._saving = None
        _fail_or_go_on(training, error, say)


def _fail_or_go_on(training: Training, error: CheckpointError, say: Print) -> None:
    if training.config.on_save_error == "fail":
        raise error
    say(f"warning: {error}; training goes on, the next save is due after {training.config.save_every} batches")
