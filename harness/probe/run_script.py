"""A user's script in a fork of the preloaded process, as if an interpreter had just been started for it.

Responsible for: what a script can see of how it was started: `sys.argv`, `sys.path`, `__main__`, unseeded generators; and for
the probe, which an interpreter would have found on its path. What a script still sees is that modules are imported already;
`harness check` therefore compares a warm run with a cold one before it trusts it.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import os
import random
import runpy
import sys
import threading
import types
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Runs `SCRIPT ARGUMENTS…` or `-m MODULE ARGUMENTS…`, and what an interpreter does at its end.

    Args:
        arguments: what follows the interpreter on the command line.

    Returns:
        The exit code.
    """
    code = 0
    try:
        _run(arguments)
    except SystemExit as error:
        code = _code_of(error)
    except BaseException as error:  # noqa: BLE001  as the interpreter does: said, and not passed on
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    probe = sys.modules.get("resume_probe")
    if probe is not None:
        probe.exit_code = code  # type: ignore[attr-defined]
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return code


def _code_of(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1


def _run(arguments: list[str]) -> None:
    sys.orig_argv[:] = [sys.executable, *arguments]
    _seed_by_chance()
    # Where the preloaded process was started has nothing to do with the script.
    del sys.path[0]
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*given, *(entry for entry in sys.path if entry not in given)]
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = str(Path.cwd())  # type: ignore[attr-defined]
    script, is_module = arguments[0], arguments[0] == "-m"
    sys.path.insert(0, str(Path.cwd() if is_module else Path(script).resolve().parent))
    if os.environ.get("HARNESS_PROBE"):
        _watch()
    if is_module:
        sys.argv[:] = arguments[1:]
        # What the program has in its globals lives to the end of the process.
        _kept.append(runpy.run_module(arguments[1], run_name="__main__", alter_sys=True))
        return
    sys.argv[:] = arguments
    module = types.ModuleType("__main__")
    module.__file__ = script
    module.__dict__["__builtins__"] = builtins
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", script)
    sys.modules["__main__"] = module
    exec(compile(Path(script).read_bytes(), script, "exec"), module.__dict__)  # noqa: S102  it is what is asked for


_kept: list[dict[str, object]] = []


def _seed_by_chance() -> None:
    """The fork has its generators as the preloaded process had them; a new interpreter seeds them by chance."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _watch() -> None:
    """As `sitecustomize` does; the folder stands on the path for the interpreters that the script starts, and here as well."""
    folder = str(Path(__file__).parent / "injected")
    if folder not in sys.path:
        sys.path.insert(1, folder)
    import resume_probe  # type: ignore[import-not-found, unused-ignore]

    resume_probe.watch()
