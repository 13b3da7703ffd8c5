"""Planted defects: switches that break one thing on purpose, to see whether the harness finds and names it.

All are off by default. Each stands for a mistake met in real training code. `kind` and `component` are what the harness
must say when the defect is on and a run is interrupted at the moment that brings it out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """One planted mistake.

    Attributes:
        name: The word for `--defect`.
        effect: What the trainer then does wrong.
        kinds: The failure kinds that name it rightly, the first being the best one.
        component: What the harness must name as lost or damaged.
        formats: The checkpoint formats it exists in; empty for all.
        omits: The part of the checkpoint that is not restored, if that is the mistake.
    """

    name: str
    effect: str
    kinds: tuple[str, ...]
    component: str
    formats: tuple[str, ...] = ()
    omits: str | None = None


_ALL = (
    Defect("no-rng", "the generators are not restored", ("state-lost", "diverged"), "rng", omits="rng"),
    Defect("no-optimizer", "AdamW's moments are not restored", ("state-lost", "diverged"), "optimizer", omits="optimizer"),
    Defect("no-scheduler", "warm-up starts again on resume", ("state-lost", "diverged"), "scheduler", omits="scheduler"),
    Defect("no-scaler", "the loss scale starts again on resume", ("state-lost",), "scaler", omits="scaler"),
    Defect(
        "in-place",
        "one fixed file is opened under its final name and overwritten, so a kill in a save destroys the only checkpoint",
        ("last-good-lost", "bad-refusal"),
        "checkpoint-files",
        formats=("single",),
    ),
    Defect(
        "manifest-first",
        "the manifest is committed before the shards are written, so a kill leaves a checkpoint that looks complete",
        ("last-good-lost", "lost-work"),
        "checkpoint-files",
        formats=("sharded",),
    ),
    Defect(
        "unsafe-load",
        "checkpoints are unpickled with weights_only=False, so whoever can write one can run code in the trainer",
        ("code-executed",),
        "checkpoint-files",
        formats=("single",),
    ),
    Defect(
        "no-skip",
        "losses and gradients are not checked: the optimizer steps on non-finite numbers",
        ("numerics", "diverged"),
        "gradients",
    ),
)
DEFECTS: dict[str, Defect] = {defect.name: defect for defect in _ALL}


def check_defects(names: Collection[str], format_name: str) -> list[str]:
    """Return what is wrong with a choice of defects: unknown names, and defects that this format does not have."""
    problems = [f"--defect {name}: unknown, choose from {', '.join(DEFECTS)}" for name in names if name not in DEFECTS]
    for name in names:
        formats = DEFECTS[name].formats if name in DEFECTS else ()
        if formats and format_name not in formats:
            problems.append(f"--defect {name} exists in --format {' or '.join(formats)} only, found {format_name}")
    return problems


def omitted_parts(names: Collection[str]) -> frozenset[str]:
    """Return the parts of a checkpoint that the chosen defects leave unrestored; empty in a healthy trainer."""
    return frozenset(omits for name in names if (omits := DEFECTS[name].omits) is not None)
