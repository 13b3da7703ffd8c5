"""Wakes the probe in every Python process of a command. Python imports this module by its name, when it starts.

Responsible for: the module of the same name that this one hides, if there is one, and for starting the probe. Whatever goes
wrong here must not stop the trainer.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys


def _hidden() -> None:
    """Runs the `sitecustomize` that stands further down the path, as Python would have done; it is the one by that name then."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  nothing is imported before the trainer needs it
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _watch() -> None:
    if os.environ.get("HARNESS_PROBE") and os.environ.get("HARNESS_EVENT_LOG"):
        from resume_probe import watch

        watch()


try:
    _hidden()  # what it raises Python says in its own words, as ever
finally:
    with contextlib.suppress(Exception):
        _watch()
