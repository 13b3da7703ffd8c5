"""The reference training system: every part of resumable training done right, small enough to read in an hour.

It trains a mini GPT (or a small MLP) on a synthetic task, saves checkpoints that survive a kill at any moment, and resumes
exactly. It imports nothing else of `harness`: whoever wants to watch it passes a `TrainingHooks` (hooks.py).

Read in this order: `loop` (what happens), `state` (what must be kept), `checkpoint` (where it is kept), then one of the
formats `single`, `sharded`, `dcp`, `dcp_async`, `safetensors_format`.
"""
