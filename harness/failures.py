"""The words that a verdict may use: kinds of failure, reasons for not judging, components of the training state.

Responsible for: the lists, which replay files and findings are checked against. Not responsible for: what they mean
(the oracles say it, docs/check-your-trainer.md explains them).
"""

from __future__ import annotations

FAIL_KINDS = (
    "diverged",
    "state-lost",
    "data-repeated",
    "data-skipped",
    "lost-work",
    "restarted-from-scratch",
    "resume-crashed",
    "corrupt-accepted",
    "last-good-lost",
    "silent-exit",
    "hang",
    "retention",
    "leak",
    "code-executed",
    "bad-refusal",
    "numerics",
    "job-failed",
    "not-durable",
    "blocking-save",
    "load-memory",
)
INCONCLUSIVE_REASONS = (
    "fault-did-not-fire",
    "baseline-unstable",
    "foreign-death",
    "not-comparable",
    "out-of-time",
    "harness-error",
)
COMPONENTS = (
    "model",
    "buffers",
    "optimizer",
    "scheduler",
    "scaler",
    "rng",
    "ema",
    "data",
    "counters",
    "gradients",
    "checkpoint-files",
    "process",
    "none",
)
