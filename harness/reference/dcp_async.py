"""The format `dcp-async`: as `dcp`, but training goes on while the files are being written.

`save` blocks for the staging copy only: a copy of the state in memory, which the next batches cannot change. A background
thread writes it. When every rank's thread is through, the ranks hash their files and rank 0 commits the manifest; until then
there is no checkpoint, and a crash falls back to the one before. One save at a time: the next waits for the last.

The copy's memory is kept from save to save, as much as the rank's part of model, optimizer and average has: to get fresh memory
from the system takes longer than to copy into it.

The thread's collectives go through a process group of their own: in the training's group they would be taken for the
collectives of the main thread, which runs at the same time.

Source: torch/distributed/checkpoint/state_dict_saver.py, `async_save`.
"""

from __future__ import annotations

import warnings
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

from harness.reference.comm import any_rank, rank0_decides
from harness.reference.config import TrainConfig
from harness.reference.dcp import ALONE_WARNING, DcpFormat, build_state, list_files, report_failure, write_files
from harness.reference.dcp_writer import PlainWriter
from harness.reference.defects import omitted_parts
from harness.reference.errors import CheckpointError
from harness.reference.formats import CheckpointHeader
from harness.reference.manifest import ShardRecord, commit_directory, header_of, prepare_directory, save_directory
from harness.reference.state import Training


@dataclass(frozen=True)
class _Pending:
    """A save that is being written."""

    future: Future[Any]
    header: CheckpointHeader
    path: Path


class DcpAsyncFormat(DcpFormat):
    """See the module.

    Args:
        omitted: Parts that a planted defect does not restore.
        synchronous: The planted defect `sync-save`: everything is written before `save` returns.
    """

    def __init__(self, omitted: frozenset[str], synchronous: bool) -> None:
        super().__init__(omitted)
        self._synchronous = synchronous
        self._group: dist.ProcessGroup | None = None
        self._pending: _Pending | None = None
        # Keeps the copies of what has the same memory at the next save. Each option False: pinned and shared memory, a thread
        # that copies while training goes on, copies that the device has not ended yet.
        self._stager = DefaultStager(StagingOptions(False, False, False, False))

    def save(self, training: Training, path: Path) -> bool:
        """Copy the state and start writing it; the caller has seen to it that nothing is being written.

        Raises:
            CheckpointError: The directory could not be made.
            RuntimeError: The last save is still being written, from the very memory that would be overwritten.
        """
        if self._pending is not None:
            raise RuntimeError(f"{self._pending.path} is still being written, so {path} cannot be: call finish(wait=True) first")
        if self._synchronous:
            save_directory(header_of(training), path, lambda: write_files(training, path))
            return True
        if self._group is None and dist.is_initialized():
            self._group = dist.new_group(backend="gloo")
        rank0_decides(lambda: prepare_directory(path))
        if self._group is None:
            # For good: the thread says it too, at some time, and a filter for a while would be of the main thread's while.
            warnings.filterwarnings("ignore", **ALONE_WARNING)
        future = async_save(
            build_state(training),
            storage_writer=PlainWriter(path),
            process_group=self._group,
            async_stager=self._stager,
            no_dist=not dist.is_initialized(),
        )
        assert isinstance(future, Future)  # a response object comes only with asynchronous staging
        self._pending = _Pending(future, header_of(training), path)
        return False

    def finish(self, wait: bool) -> bool:
        """Commit what the threads have written, once those of all ranks are through."""
        pending = self._pending
        if pending is None:
            return True
        if not wait and any_rank(not pending.future.done(), torch.device("cpu")):
            return False
        self._pending = None
        commit_directory(pending.header, pending.path, lambda: _written(pending))
        return True


def _written(pending: _Pending) -> list[ShardRecord]:
    """Wait for this rank's thread and list its files.

    Raises:
        CheckpointError: It has failed.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    try:
        pending.future.result()
    except CheckpointException as error:  # derives from BaseException
        return report_failure(error, rank, pending.path)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{pending.path}: {type(error).__name__}: {error}") from error
    return list_files(rank, pending.path)


def build_format(config: TrainConfig) -> DcpAsyncFormat:
    """Return the format as the configuration wants it."""
    return DcpAsyncFormat(omitted_parts(config.defect), "sync-save" in config.defect)
