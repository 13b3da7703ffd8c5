"""Which file of a checkpoint holds what was lost, by the names of its files. Opens none of them."""

from __future__ import annotations

import re

from harness.diagnose.evidence import Evidence

# Component → words by which trainers call its file.
_WORDS = {
    "model": ("model", "weights", "pytorch_model"),
    "buffers": ("model",),
    "optimizer": ("optimizer", "optim"),
    "scheduler": ("scheduler", "sched"),
    "scaler": ("scaler",),
    "rng": ("rng", "random_states", "random"),
    "ema": ("ema",),
    "data": ("sampler", "dataloader", "data"),
    "counters": ("trainer_state", "state"),
    "gradients": ("gradients", "grads"),
}


def file_of(evidence: Evidence, component: str) -> str | None:
    """The path of the one file that is called after the component or the rank; else the checkpoint; None where none was read."""
    name = evidence.root.file or (evidence.resume.name if evidence.resume is not None else "") or None
    if name is None or "/" in name:
        return name
    paths = [path for path in _paths(evidence, name) if path.startswith(name + "/")]
    ranks = [finding.rank for finding in evidence.causes if finding.component == component and finding.rank is not None]
    by_word = [path for path in paths if _called(path, component)]
    by_rank = [path for path in paths if len(set(ranks)) == 1 and _is_of_rank(path, ranks[0])]
    both = [path for path in by_word if path in by_rank]
    return next((found[0] for found in (both, by_word, by_rank) if len(found) == 1), name)


def _paths(evidence: Evidence, name: str) -> list[str]:
    """The files of a checkpoint, as they were committed, or else as they stood when it was read."""
    commits = [c for c in evidence.history.standing(evidence.attempt.index) if name in c.tops and c.files is not None]
    files = commits[-1].files if commits else evidence.attempt.files("begin")
    return sorted(files or {})


def _called(path: str, component: str) -> bool:
    pieces = re.split(r"[^a-z]+", path.rpartition("/")[2].lower())
    joined = "_".join(pieces)
    return any(word in pieces or (len(word) > 4 and word in joined) for word in _WORDS.get(component.partition(".")[0], ()))


def _is_of_rank(path: str, rank: int) -> bool:
    return re.search(rf"(?:rank|shard|rng_state|random_states)[-_]?0*{rank}(?!\d)|__{rank}_", path) is not None
