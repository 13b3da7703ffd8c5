"""Trainers of other projects, as their documentation shows them, killed at every point of a save (of two ranks: a sample).

Expected failures: each library is what it is, in the version of constraints.txt, and no oracle is softened for it. A trainer that
passes one day, or that fails in another way, makes its test fail. docs/findings.md has each cause in words.
"""

from __future__ import annotations

import pytest
from lines import StillFailsError, command

TORN = ("gap", "resume-crashed", "process")
LOST = ("gap", "last-good-lost", "checkpoint-files")
DATA = ("resume", "data-repeated", "data")
RNG = ("resume", "diverged", "rng.torch")
# One rank's shard of this save, the other's of the one before: whether a sample has it depends on which rank came first.
MIXED = ("order", "diverged", "optimizer")
EARLY = ("gap", "silent-exit", "process")
RNG_TORN = ("gap", "diverged", "rng.torch")
OPTIMIZER = ("resume", "diverged", "optimizer")
HF_TORN = "a half-written checkpoint is the newest one to get_last_checkpoint, and every restart dies of it"
ACCELERATE_TORN = "save_state writes straight into the folder that is looked for, so a half-written one is loaded"


def fails(script, *causes, reason, ranks=1, maybe=()):
    mark = pytest.mark.xfail(strict=True, raises=StillFailsError, reason=reason)
    return pytest.param(script, ranks, set(causes), set(maybe), marks=mark, id=f"{script}-{ranks}")


@pytest.mark.parametrize(
    ("script", "ranks", "causes", "maybe"),
    [
        fails("nanogpt_style", LOST, DATA, reason="the one checkpoint is overwritten in place; its batches are drawn anew"),
        fails("hf_trainer", TORN, reason=HF_TORN),
        fails("hf_trainer --save-total-limit 1", TORN, reason=HF_TORN),
        fails("hf_trainer --save-only-model", TORN, OPTIMIZER, reason="save_only_model goes on with a new optimizer, silently"),
        fails("accelerate_state", TORN, RNG, reason=f"{ACCELERATE_TORN}; the order of a shuffled epoch is drawn anew"),
        fails("accelerate_state --seedable-sampler", TORN, RNG, reason=f"{ACCELERATE_TORN}; the loader draws after the restore"),
        fails("lightning_fit", DATA, reason="a plain DataLoader begins its epoch again in the middle of it"),
        fails(
            "lightning_fit --stateful",
            RNG,
            EARLY,
            reason="no generator is restored; after an epoch's last batch it trains nothing",
        ),
        # The text file that names the newest checkpoint is written in place: between its open and its write it names none.
        fails("fsdp2_dcp", RNG, maybe=[TORN], ranks=2, reason="the tutorial's AppState holds no generator"),
        fails(
            "fsdp2_dcp --one-id", LOST, RNG, maybe=[MIXED], ranks=2, reason="DCP empties the shards that the only .metadata names"
        ),
    ],
)
def test_a_kill_at_any_point_of_a_save(attack, script, ranks, causes, maybe):
    found, said = attack(command(script, ranks), limit=None if ranks == 1 else 16, power=False)
    assert "preloaded process" in said
    assert found.inconclusive == ""
    print(*[f"{cause.sort} {cause.sentence}" for cause in found.causes], sep="\n")
    named = {(cause.sort, cause.kind, cause.component) for cause in found.causes}
    if named - maybe == causes:
        raise StillFailsError("; ".join(cause.text for cause in found.causes))
    assert named == set(), [cause.sentence for cause in found.causes]
