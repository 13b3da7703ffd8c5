"""The command: `python -m harness.reference.demo NAME [--out DIR]`, or `all` for one after the other.

Exit codes: 0 what the demo shows holds, 1 it does not, 2 wrong usage.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from harness.reference.demo import DEMOS


def main(argv: Sequence[str]) -> int:
    """Run the demo that is named first; the other arguments are its own."""
    if argv and argv[0] in DEMOS:
        # Only now: torch takes seconds to import, and the list of names needs none of it.
        module = importlib.import_module(f"harness.reference.demo.{argv[0].replace('-', '_')}")
        code: int = module.main(argv[1:])
        return code
    if argv[:1] == ["all"]:
        return max(run_apart(name, argv[1:]) for name in DEMOS)
    if argv:
        print(f"no demo is called {argv[0]!r}", file=sys.stderr)
    print("usage: python -m harness.reference.demo NAME|all [--out DIR] [--device cpu|cuda]", file=sys.stderr)
    for name, text in DEMOS.items():
        print(f"  {name:13s} {text}", file=sys.stderr)
    return 2


def run_apart(name: str, argv: Sequence[str]) -> int:
    """Run one of several demos in a process of its own, so that none sees what another has left behind.

    The processes are forked from one that has imported torch, which takes longer than most demos do.
    """
    importlib.import_module("harness.reference.train")
    print(f"== {name}", flush=True)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            out = [
                f"{argument}/{name}" if before == "--out" else argument
                for before, argument in zip(["", *argv], argv, strict=False)
            ]
            code = main([name, *out])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
