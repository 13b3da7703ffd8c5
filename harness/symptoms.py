"""What brings each planted defect out, and which healthy jobs must stay green beside it.

Responsible for: one scenario per defect of `harness.reference.defects` (which says what must be found), and the list of
healthy configurations. Not responsible for: running them (`harness bench --defects`, tests/quality).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.reference.defects import DEFECTS
from harness.scenario import FORMATS, Format, Scenario, job

KILL = "sigkill all ranks at step 10"
_SHORT = {"steps": 16, "batches_per_epoch": 8, "keep_last": 2}
_FP16 = {"precision": "fp16"}
_MLP = {"model": "mlp", "ema": 0.9}
_OVERFLOW = "overflow all ranks at batch 7"
# Of a job that hangs: waiting longer finds nothing more. A healthy one gets as long as any.
_HANG_DEADLINE_S = 20.0

# Defect → settings and faults that bring it out; a job of 16 batches that is killed in the second epoch, unless said otherwise.
_CASES: dict[str, dict[str, Any]] = {
    "no-scaler": _FP16,
    "no-epoch-order": {"sampler": "random"},
    "no-ema": _MLP,
    "no-buffers": _MLP,
    # The middle of an epoch: at its beginning there is no batch before, and one too many would be of another epoch.
    "repeats-batch": {"faults": "sigkill all ranks at step 14"},
    "skips-batch": {"faults": "sigkill all ranks at step 14"},
    "ema-frozen": {"ema": 0.9},
    # Its second run is the same as the first to the last bit, and overwrites its files.
    "from-scratch": {"format": "single"},
    "stops-early": {"faults": "sigkill all ranks at step 6"},
    "no-timeout": {"faults": "sigstop rank 1 at step 10", "collective_timeout_s": 5.0},
    "in-place": {"format": "single", "faults": "sigkill rank 0 during write checkpoint.pt at 50% occurrence 12"},
    # Rank 1 has renamed its shard over the old one; the manifest is still the old one.
    "reuse-directory": {"faults": "sigkill all ranks after rename latest/rank1.bin.tmp occurrence 3 by rank 1"},
    "no-fsync": {"format": "single", "faults": ()},
    "manifest-first": {"faults": "sigkill all ranks during write step-00000012/rank1.bin.tmp at 50%"},
    "pointer-first": {"faults": "sigkill rank 0 during write step-00000012.pt.*.tmp at 50%"},
    "no-directory-fsync": {"format": "single", "faults": ()},
    "delete-first": {"keep_last": 1, "faults": "sigkill rank 0 during write step-00000012.pt.*.tmp at 50%"},
    "missing-barrier": {
        "faults": [
            "hold rank 1 before rename step-00000012/rank1.bin.tmp until rank 0 rename step-00000012/manifest.json",
            "sigkill all ranks after rename step-00000012/manifest.json by rank 0",
        ]
    },
    "early-rename": {
        "faults": [
            "hold rank 1 before write .step-00000012/rank1.bin until rank 0 rename .step-00000012",
            "sigkill all ranks after rename .step-00000012 by rank 0",
        ]
    },
    "no-reshard": {"ranks": (2, 4), "reshard": True, "rng_scope": "global"},
    "no-rotation": {"faults": ()},
    "sync-save": {"format": "dcp-async", "faults": ()},
    "no-checksum": {"faults": [KILL, "flip newest/rank1.bin at 50%"]},
    "unsafe-load": {"format": "single", "faults": [KILL, "tamper newest with hostile-pickle"]},
    "no-skip": {**_FP16, "faults": [_OVERFLOW, KILL]},
    "no-clip": {"faults": ["spike all ranks at batch 7", KILL]},
    "clip-scaled": _FP16,
    "no-scaler-update": {**_FP16, "faults": [_OVERFLOW, KILL]},
    "fp16-range": {**_FP16, "faults": "sigkill all ranks after rename step-00000012/manifest.json by rank 0"},
    "loss-not-divided": {"accumulate": 3, "dropout": 0.0, "noise": 0.0, "compare_with": "plain"},
    "no-recompute": {"recompute": "full", "activation_limit": 300_000, "compare_with": "plain"},
}


def planted(name: str) -> Scenario:
    """The case in which a defect must be found.

    Raises:
        UsageError: unknown name.
    """
    limit = {"deadline_s": _HANG_DEADLINE_S} if DEFECTS[name].kind == "hang" else {}
    return _case(name, defects=(name,), name=f"planted-{name}", **limit)


def same_without(name: str) -> Scenario:
    """The same case with a healthy trainer, which must pass.

    Where the fault strikes a file that only the defect writes (`in-place`, `reuse-directory`, `early-rename`), without the fault.
    """
    own = name in ("in-place", "reuse-directory", "early-rename")
    return _case(name, name=f"healthy-{name}", **({"faults": ()} if own else {}))


# Over a change of the number of ranks the loss may differ by rounding, and ranks hold other parts than before.
OVER_RANKS = ("no-ema", "no-scaler", "no-scheduler")
# Every format, each split over the ranks in one way.
OVER_RANKS_IN = tuple(zip(FORMATS, itertools.cycle(("ddp", "zero1", "fsdp2")), strict=False))


def over_ranks(format: Format, parallelism: str, defect: str = "") -> Scenario:
    """A job of four ranks that is killed and goes on with two.

    Args:
        format: of the checkpoints.
        parallelism: how the job is split.
        defect: one of `OVER_RANKS`, or "" for a healthy trainer, which must pass.
    """
    settings = {**_SHORT, **_FP16, "ema": 0.9, "parallelism": parallelism, "rng_scope": "global", "reshard": True}
    name = "-".join(("over-ranks", format, defect or "healthy"))
    return job(format, ranks=(4, 2), faults=KILL, name=name, defects=(defect,) if defect else (), **settings)


def _case(defect: str, **more: Any) -> Scenario:
    formats = DEFECTS[defect].formats if defect in DEFECTS else ()
    settings = {"format": formats[0] if formats else "sharded", "ranks": 2, "faults": KILL, **_SHORT}
    return job(**{**settings, **_CASES.get(defect, {}), **more})


# What a healthy job can be made of. Each value is tried with each value of every other setting at least once; the last two, which
# change the data and not the training, are not multiplied out with the rest.
CHOICES: dict[str, tuple[Any, ...]] = {
    "format": ("single", "sharded", "dcp", "dcp-async", "safetensors"),
    "parallelism": ("ddp", "zero1", "fsdp2"),
    "ranks": (1, 2, 4),
    "precision": ("fp32", "fp16", "bf16"),
    "accumulate": (1, 3),
    "recompute": ("none", "full", "selective"),
    "sampler": ("distributed", "random"),
    "workers": (0, 2),
}


def healthy(*, everything: bool = False) -> list[Scenario]:
    """Healthy jobs that are killed and must resume exactly.

    Args:
        everything: all combinations of format, parallelism, ranks, precision, accumulation and recompute, with the ways to
            load the data in turn, instead of a set in which every two values of `CHOICES` meet.
    """
    names = list(CHOICES)
    rows = _all_rows() if everything else covering_rows(list(CHOICES.values()))
    plain = [_healthy(dict(zip(names, row, strict=True))) for row in rows]
    # The model with buffers and an average has no layers to compute again, so it stands apart.
    others = zip(FORMATS, itertools.cycle(CHOICES["parallelism"]), strict=False)
    return plain + [_healthy({"format": name, "parallelism": split, "ranks": 2, **_MLP}) for name, split in others]


def _all_rows() -> Iterator[tuple[Any, ...]]:
    *trained, samplers, workers = CHOICES.values()
    loading = itertools.cycle(itertools.product(samplers, workers))
    for row, loads in zip(itertools.product(*trained), loading, strict=False):
        yield (*row, *loads)


def _healthy(choice: Mapping[str, Any]) -> Scenario:
    label = "-".join(str(value) for value in choice.values())
    # One save after the kill is enough, and the job of two short epochs too.
    return job(
        **{**_SHORT, "steps": 12, "batches_per_epoch": 6, **choice}, faults="sigkill all ranks at step 7", name=f"healthy-{label}"
    )


def covering_rows(values: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Rows of one value per setting, few of them, in which every pair of values of two settings occurs.

    Greedy, and without chance: of all rows that fit, each time the first with the most pairs that are still missing. The
    rows of the two longest settings are the candidates' start, so the result is never longer than their product plus what
    the others still need.
    """
    pairs = set(_pairs_of_all(values))
    while pairs:
        best = max(_candidates(values, pairs), key=lambda row: len(pairs & set(_pairs(row))))
        pairs -= set(_pairs(best))
        yield best


def _pairs(row: Sequence[Any]) -> Iterator[tuple[int, Any, int, Any]]:
    for (i, one), (j, other) in itertools.combinations(enumerate(row), 2):
        yield i, one, j, other


def _pairs_of_all(values: Sequence[Sequence[Any]]) -> Iterator[tuple[int, Any, int, Any]]:
    for (i, ones), (j, others) in itertools.combinations(enumerate(values), 2):
        for one, other in itertools.product(ones, others):
            yield i, one, j, other


def _candidates(values: Sequence[Sequence[Any]], pairs: set[tuple[int, Any, int, Any]]) -> Iterable[tuple[Any, ...]]:
    """Rows that contain a missing pair; the other settings are filled one by one, each as well as possible."""
    for i, one, j, other in sorted(pairs, key=repr)[:40]:
        row: dict[int, Any] = {i: one, j: other}
        for k, options in enumerate(values):
            if k not in row:
                row[k] = max(options, key=lambda option: _gain(row, k, option, pairs))
        yield tuple(row[k] for k in range(len(values)))


def _gain(row: Mapping[int, Any], place: int, option: Any, pairs: set[tuple[int, Any, int, Any]]) -> int:
    return sum(((k, v, place, option) if k < place else (place, option, k, v)) in pairs for k, v in row.items())
