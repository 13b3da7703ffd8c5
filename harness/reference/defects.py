"""Planted defects: switches that break one thing on purpose, to see whether the harness finds and names it.

All are off by default. Each stands for a mistake met in real training code. `kind` and `component` are what the harness
must say when the defect is on and a run is interrupted at the moment that brings it out.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """One planted mistake.

    Attributes:
        name: The word for `--defect`.
        symptom: What people see, in the words in which they report it.
        effect: What the trainer then does wrong.
        kind: The failure kind that names it.
        component: What the harness must name as lost or damaged.
        formats: The checkpoint formats it exists in; empty for all.
        omits: The part of the checkpoint that is not restored, if that is the mistake.
    """

    name: str
    symptom: str
    effect: str
    kind: str
    component: str
    formats: tuple[str, ...] = ()
    omits: str | None = None


def _not_restored(part: str, symptom: str, kind: str, component: str, name: str = "") -> Defect:
    return Defect(name or f"no-{part}", symptom, f"{part} is not restored on resume", kind, component, omits=part)


_CURVE = "resumed loss curve differs"
_ALL = (
    # -- parts of the state that a resume forgets
    _not_restored("rng", _CURVE, "diverged", "rng"),
    _not_restored("rng.python", _CURVE, "diverged", "rng.python", "no-rng-python"),
    _not_restored("rng.numpy", _CURVE, "diverged", "rng.numpy", "no-rng-numpy"),
    _not_restored("rng.torch", _CURVE, "diverged", "rng.torch", "no-rng-torch"),
    _not_restored("rng.noise", _CURVE, "diverged", "rng.noise", "no-rng-noise"),
    _not_restored("optimizer", "momentum forgotten", "diverged", "optimizer"),
    _not_restored("scheduler", "warm-up starts again", "diverged", "scheduler"),
    _not_restored("scaler", "scale starts again", "state-lost", "scaler"),
    _not_restored("data", "other data order", "data-repeated", "data"),
    _not_restored("epoch-order", "other data order", "data-repeated", "data"),
    _not_restored("ema", "evaluation differs although the loss does not", "state-lost", "ema"),
    _not_restored("loss-history", "a jump of the loss after a resume goes unseen", "state-lost", "counters.loss_history"),
    _not_restored("buffers", "evaluation differs although the loss does not", "state-lost", "buffers"),
    Defect(
        "moments-by-number",
        "every parameter's moments belong to its neighbour",
        "the optimizer's state is loaded by number, and the parameters are passed in another order than at the save",
        "diverged",
        "optimizer",
    ),
    # -- a load that is right, and a job that is not
    Defect(
        "ema-frozen",
        "evaluation stops getting better after a resume",
        "the average of the weights is restored, and never moved on again",
        "state-lost",
        "ema",
    ),
    Defect(
        "repeats-batch",
        "a batch is seen twice around a resume",
        "the position in the epoch is off by one after a resume: the last batch before it is taken again",
        "data-repeated",
        "data",
    ),
    Defect(
        "skips-batch",
        "a batch is never seen around a resume",
        "the position in the epoch is off by one after a resume: the next batch is left out",
        "data-skipped",
        "data",
    ),
    Defect(
        "from-scratch",
        "a restarted job begins at step 0, and nobody notices",
        "the checkpoints that are there are not looked for",
        "restarted-from-scratch",
        "checkpoint-files",
    ),
    Defect(
        "stops-early",
        "a resumed job is reported as done, and is not",
        "the number of batches that are left is taken for the number of the last one",
        "silent-exit",
        "counters",
    ),
    Defect(
        "crashes-on-resume",
        "the job runs, and no restart of it does",
        "a part of the loaded state is asked for by the name that it had in another version",
        "resume-crashed",
        "process",
    ),
    # -- processes
    Defect(
        "hangs-on-resume",
        "a restarted job shows no progress and no error",
        "a rank waits for a lock that nobody releases, and the others for that rank",
        "hang",
        "process",
    ),
    Defect(
        "no-timeout",
        "the job stands still after one of its ranks has stopped",
        "the ranks wait for each other without a limit",
        "hang",
        "process",
    ),
    Defect(
        "never-exits",
        "all work is done and the job keeps its machines",
        "the end waits for a thread that nobody tells to end",
        "hang",
        "process",
    ),
    Defect(
        "leaves-helper",
        "processes pile up on the machine",
        "a helper process in a session of its own is started, and nobody ends it",
        "leak",
        "process",
    ),
    # -- checkpoints that are not what they seem
    Defect(
        "in-place",
        "no checkpoint left after a crash in a save",
        "one fixed file is opened under its final name and overwritten, so a kill in a save destroys the only checkpoint",
        "last-good-lost",
        "checkpoint-files",
        formats=("single",),
    ),
    Defect(
        "reuse-directory",
        "no checkpoint left after a crash in a save",
        "shards are renamed into the directory of the last checkpoint, so a kill between two renames destroys both",
        "last-good-lost",
        "checkpoint-files",
        formats=("sharded",),
    ),
    Defect(
        "no-fsync",
        "no checkpoint left after a power cut",
        "files are renamed to their names without having been synced",
        "not-durable",
        "checkpoint-files",
    ),
    Defect(
        "manifest-first",
        "NaN or nonsense long after a resume",
        "the manifest is committed before the shards are written, so a kill leaves a checkpoint that looks complete",
        "lost-work",
        "checkpoint-files",
        formats=("sharded",),
    ),
    Defect(
        "pointer-first",
        "the job does not start: the file that latest names is not there",
        "the pointer file latest is replaced before the checkpoint that it names is written, and a resume trusts it alone",
        "bad-refusal",
        "checkpoint-files",
        formats=("single",),
    ),
    Defect(
        "no-directory-fsync",
        "the newest checkpoints are gone after a power cut",
        "files are synced and renamed, but the directory that holds their new names is not synced",
        "not-durable",
        "checkpoint-files",
    ),
    Defect(
        "delete-first",
        "no checkpoint left after a crash in a save",
        "the old checkpoint is removed before the new one is written, so a kill in a save leaves none",
        "last-good-lost",
        "checkpoint-files",
        formats=("single", "sharded", "dcp", "safetensors"),
    ),
    Defect(
        "missing-barrier",
        "a shard is missing from a checkpoint that was reported as saved",
        "rank 0 commits the manifest, whose sizes are known beforehand, without waiting for the other ranks' shards",
        "lost-work",
        "checkpoint-files",
        formats=("sharded",),
    ),
    Defect(
        "early-rename",
        "the job does not start: a shard of the newest checkpoint is cut short",
        "each rank renames the shared directory to its final name when it is done itself, whatever the others still write",
        "bad-refusal",
        "checkpoint-files",
        formats=("sharded",),
    ),
    Defect(
        "partial-shard",
        "NaN 100 steps after a resume",
        "the last quarter of a shard is zeros behind a manifest that fits, as of a buffer that was reused too early",
        "diverged",
        "optimizer",
        formats=("sharded",),
    ),
    Defect(
        "short-shard",
        "sha256 mismatch on rank",
        "the last bytes of a shard never reach the file",
        "bad-refusal",
        "checkpoint-files",
        formats=("sharded",),
    ),
    Defect(
        "missing-shard",
        "shard file missing",
        "the last rank writes no file, and the manifest lists it",
        "bad-refusal",
        "checkpoint-files",
        formats=("sharded",),
    ),
    Defect(
        "odd-schema",
        "unknown schema",
        "saves under a schema that no loader knows",
        "bad-refusal",
        "checkpoint-files",
    ),
    Defect(
        "no-reshard",
        "world_size mismatch",
        "does not put the shards of another number of ranks together, although it was asked to",
        "bad-refusal",
        "checkpoint-files",
        formats=("sharded",),
    ),
    Defect("no-rotation", "disk fills in mid-run", "old checkpoints are never removed", "retention", "checkpoint-files"),
    Defect(
        "sync-save",
        "slow save blocks training",
        "everything is written before the asynchronous save returns",
        "blocking-save",
        "process",
        formats=("dcp-async",),
    ),
    Defect(
        "no-checksum",
        "loss is off after a resume although the load succeeded",
        "checksums are written and not compared at load; sizes are believed",
        "corrupt-accepted",
        "checkpoint-files",
        formats=("sharded", "single", "dcp", "safetensors"),
    ),
    Defect(
        "unsafe-load",
        "code runs at load",
        "checkpoints are unpickled with weights_only=False, so whoever can write one can run code in the trainer",
        "code-executed",
        "checkpoint-files",
        formats=("single",),
    ),
    # -- numbers
    Defect(
        "no-skip",
        "every weight NaN after a step",
        "losses and gradients are not checked: the optimizer steps on non-finite numbers",
        "numerics",
        "gradients",
    ),
    Defect("no-clip", "loss goes vertical after one batch", "gradients are not clipped", "numerics", "gradients"),
    Defect(
        "clip-scaled",
        "clip acts on scaled gradients",
        "clips before the unscale, so that nearly every step is far too small",
        "numerics",
        "gradients",
    ),
    Defect("no-scaler-update", "scale never changes", "the scaler is not told of a skip", "numerics", "scaler"),
    Defect(
        "fp16-range",
        "hundreds of skips per epoch",
        "the model's logits lie at the edge of what float16 can hold",
        "numerics",
        "scaler",
    ),
    Defect(
        "loss-not-divided",
        "optimizer step accum_steps times too big",
        "the micro-batches' losses are not divided by their number",
        "diverged",
        "gradients",
    ),
    Defect(
        "no-recompute",
        "activations do not fit",
        "activations are kept although recompute was asked for",
        "job-failed",
        "process",
    ),
)
DEFECTS: dict[str, Defect] = {defect.name: defect for defect in _ALL}


def check_defects(names: Collection[str], format_name: str) -> list[str]:
    """Return what is wrong with a choice of defects: unknown names, and defects that this format does not have."""
    # Not "--defect": they are arguments of functions and words of files as well.
    problems = [
        f"defect {name}: unknown{_meant(name)} Expected one of {', '.join(DEFECTS)}" for name in names if name not in DEFECTS
    ]
    for name in names:
        formats = DEFECTS[name].formats if name in DEFECTS else ()
        if formats and format_name not in formats:
            problems.append(f"defect {name}: exists in the format {' or '.join(formats)} only, found {format_name}")
    return problems


def _meant(name: str) -> str:
    near = difflib.get_close_matches(name, DEFECTS, 1)
    return f"; did you mean {near[0]}?" if near else "."


def omitted_parts(names: Collection[str]) -> frozenset[str]:
    """Return the parts of a checkpoint that the chosen defects leave unrestored; empty in a healthy trainer."""
    return frozenset(omits for name in names if (omits := DEFECTS[name].omits) is not None)
