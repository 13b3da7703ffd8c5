"""The format `dcp`: `torch.distributed.checkpoint` inside a directory that `manifest.json` commits.

DCP spreads the tensors over the ranks and loads on any number of them, but has no checksums, and no fsync of the
directory: its `.metadata` alone is no proof of a complete checkpoint. So each rank hashes the files that it wrote, and
rank 0 lists them in a manifest of the same schema as the sharded format's, as the commit.

Only tensors go through DCP. Other values it would pickle, and unpickle on load with `weights_only=False`; everything
small is therefore packed into uint8 tensors that are decoded with `weights_only=True`. `.metadata` itself is a pickle
and cannot be avoided; `harness.reference.dcp_metadata` reads it without running anything in it.

Source: torch/distributed/checkpoint/{filesystem,default_planner,state_dict}.py of torch 2.13.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from harness.reference.atomic import fsync_directory
from harness.reference.comm import raise_together
from harness.reference.config import TrainConfig
from harness.reference.dcp_metadata import METADATA_NAME, CarefulReader, check_metadata, check_tensors
from harness.reference.dcp_writer import PlainWriter
from harness.reference.defects import omitted_parts
from harness.reference.errors import CheckpointError, mismatch, one_line
from harness.reference.formats import CheckpointHeader
from harness.reference.manifest import DirectoryFormat, ShardRecord, header_of, save_directory, verify_directory
from harness.reference.payload import settle
from harness.reference.rng import pack, unpack
from harness.reference.state import Training, apply_rng_states, apply_small_state, capture_rank_rng, small_state
from harness.reference.tensors import group_options
from harness.reference.zero1 import ShardedAdamW

ALONE_WARNING: dict[str, Any] = {"message": "torch.distributed is disabled", "category": UserWarning}


def rank_of_file(name: str) -> str:
    """Return the rank that wrote `__RANK_INDEX.distcp`; `.metadata` is rank 0's."""
    return name.removeprefix("__").split("_")[0] if name.startswith("__") else "0"


def build_tensors(training: Training) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the live tensors of model, optimizer and average by name, and the optimizer's options.

    Of FSDP2 they are `DTensor`s, by which DCP knows the whole and this rank's part.
    """
    average = {} if training.ema is None else {"ema": training.ema.tensors}
    if isinstance(training.optimizer, ShardedAdamW):
        # Its shares cross the borders of parameters, so they go in as what they are: parts of two flat vectors.
        flat = sharded_vectors(training.optimizer, training.world.world_size, training.device)
        groups = group_options(training.model, training.optimizer)
        return {"model": get_model_state_dict(training.model), "optimizer": {"zero1": flat}, **average}, groups
    model, optimizer = get_state_dict(training.model, training.optimizer)
    groups = cast("list[dict[str, Any]]", optimizer["param_groups"])
    return {"model": model, "optimizer": optimizer["state"], **average}, groups


def sharded_vectors(optimizer: ShardedAdamW, world_size: int, device: torch.device) -> dict[str, Tensor]:
    """Return ZeRO-1's live state as vectors over all parameters, split over the ranks."""
    vectors, numel = optimizer.vectors()
    if world_size == 1:
        return {**vectors, "step": optimizer.step_count}
    mesh = init_device_mesh(device.type, (world_size,))
    shape = torch.Size((numel,))
    split: dict[str, Tensor] = {
        key: DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=(1,))
        for key, local in vectors.items()
    }
    return {**split, "step": optimizer.step_count}


def build_state(training: Training) -> dict[str, Any]:
    """Return everything that DCP is to save: tensors only (see the module)."""
    tensors, groups = build_tensors(training)
    return {
        **tensors,
        "small": pack({**small_state(training), "param_groups": groups}),
        # A key per rank: equal keys would be taken for copies of one value, and one of them kept.
        f"rng_rank{training.world.rank}": pack(capture_rank_rng(training)),
    }


def write_files(training: Training, path: Path) -> list[ShardRecord]:
    """Let DCP write its files, and hash the ones of this rank. Collective.

    Raises:
        CheckpointError: DCP failed on some rank; the text names rank and system error.
    """
    writer = PlainWriter(path)
    try:
        with quiet_without_group():
            save(build_state(training), storage_writer=writer, no_dist=not dist.is_initialized())
    except CheckpointException as error:  # derives from BaseException: `except Exception` would let it pass
        return report_failure(error, training.world.rank, path)
    return list_files(training.world.rank, path)


def report_failure(error: CheckpointException, rank: int, path: Path) -> list[ShardRecord]:
    """Raise `CheckpointError` on a rank that has failed; return no records on the others.

    Every rank is given every rank's failure. Each reports its own, and the others wait for it in the exchange.
    """
    if error.failures and rank not in error.failures:
        return []
    raise CheckpointError(f"{path / f'__{rank}_0.distcp'}: {word_failure(error)}") from error


def list_files(rank: int, path: Path) -> list[ShardRecord]:
    """Make this rank's files and their names durable, and hash the files."""
    # DCP syncs no names. Those must be durable before the manifest that lists them has one.
    fsync_directory(path)
    own = sorted(path.glob(f"__{rank}_*.distcp"))
    if rank == 0:
        own.append(path / METADATA_NAME)
    return [record_of(file) for file in own]


def record_of(path: Path) -> ShardRecord:
    """Hash a file that has been written, and make its content durable.

    Raises:
        OSError: It cannot be read or synced.
    """
    with path.open("rb") as file:
        # DCP syncs `.metadata` before its last bytes have left the stream's buffer.
        os.fsync(file.fileno())
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return ShardRecord(path.name, file.tell(), sha256)


@contextlib.contextmanager
def quiet_without_group() -> Iterator[None]:
    """Silence DCP's warning that it saves or loads in one process: with one rank that is what is wanted."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", **ALONE_WARNING)
        yield


def word_failure(error: CheckpointException) -> str:
    """Put DCP's report, which holds a traceback per rank, into one line."""
    causes = dict.fromkeys(one_line(cause) for cause, _ in error.failures.values())
    return "; ".join(causes) or one_line(error)


class DcpFormat(DirectoryFormat):
    """See the module; `omitted` are the parts that a planted defect does not restore, no `checksums` is another."""

    def __init__(self, omitted: frozenset[str], *, checksums: bool = True) -> None:
        self._omitted = omitted
        self._checksums = checksums

    def verify(self, path: Path) -> CheckpointHeader:
        """Check every byte of every file, and that they are the files and parts of one checkpoint."""
        manifest, header = verify_directory(path, rank_of_file, checksums=self._checksums)
        names = {record.name for record in manifest.shards}
        if METADATA_NAME not in names:
            raise mismatch("shard file missing", path / "manifest.json", METADATA_NAME, ", ".join(sorted(names)))
        check_metadata(path, names, manifest.world_size)
        return header

    def save(self, training: Training, path: Path) -> bool:
        """Let DCP write, then commit together."""
        save_directory(header_of(training), path, lambda: write_files(training, path))
        return True

    def load(self, training: Training, path: Path) -> str | None:
        """Restore this rank, whatever the number of ranks that saved."""
        error: BaseException | None = None
        warning = None
        try:
            warning = self._load(training, path)
        except CheckpointException as caught:
            error = CheckpointError(f"{path}: {word_failure(caught)}")
        except (OSError, CheckpointError) as caught:
            error = caught
        raise_together(error, f"load {path.name}")
        return warning

    def _load(self, training: Training, path: Path) -> str | None:
        reader = CarefulReader(path)
        found = reader.read_metadata().state_dict_metadata
        tensors, _ = build_tensors(training)
        check_tensors(found, tensors, path)
        for part in self._omitted & tensors.keys():
            tensors[part] = copy.deepcopy(tensors[part])  # so that the live tensors are not loaded into
        packed = {key: _empty(found, key, path) for key in found if key == "small" or key.startswith("rng_rank")}
        # In place, into the live tensors of model and optimizer and into the empty ones for what is packed.
        with quiet_without_group():
            load({**tensors, **packed}, storage_reader=reader, no_dist=not dist.is_initialized())
        small = unpack(packed.pop("small"))
        self._apply_tensors(training, tensors, small["param_groups"], path)
        apply_small_state(training, small, path, self._omitted)
        states = [unpack(packed[f"rng_rank{rank}"]) for rank in range(small["world_size"])]
        return apply_rng_states(training, states, self._omitted)

    def _apply_tensors(self, training: Training, tensors: dict[str, Any], groups: list[dict[str, Any]], path: Path) -> None:
        if isinstance(training.optimizer, ShardedAdamW):
            settle(training, groups, path, self._omitted)
            return
        set_model_state_dict(training.model, tensors["model"])
        if "optimizer" not in self._omitted:
            state = {"state": tensors["optimizer"], "param_groups": groups}
            set_optimizer_state_dict(training.model, training.optimizer, state)


def _empty(found: dict[str, Any], key: str, path: Path) -> Tensor:
    size = getattr(found[key], "size", None)
    if size is None:
        raise mismatch("cannot decode", path / METADATA_NAME, f"a tensor {key}", type(found[key]).__name__)
    return torch.empty(size, dtype=torch.uint8)


def build_format(config: TrainConfig) -> DcpFormat:
    """Return the format as the configuration wants it."""
    return DcpFormat(omitted_parts(config.defect), checksums="no-checksum" not in config.defect)
