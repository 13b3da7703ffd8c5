"""Five demonstrations of the reference trainer: each runs it for real, prints what happens, and ends with a verdict."""

from __future__ import annotations

# Name → what it shows; the module has the same name, with _ for -.
DEMOS = {
    "amp": "a batch that overflows in float16 is skipped, and the loss scale halves and recovers",
    "accumulation": "1 to 16 micro-batches train like one big batch, with one exchange of gradients a step",
    "resume": "a killed job goes on with exactly the losses of a job that was never interrupted",
    "sharded": "four ranks save four shards and a manifest, and every kind of damage is refused",
    "end-to-end": "four ranks under DDP and ZeRO-1 in float16 are killed, start again, and lose nothing",
}
