"""The command: `python -m harness.reference.demo NAME [--out DIR]`.

Exit codes: 0 what the demo shows holds, 1 it does not, 2 wrong usage.
"""

from __future__ import annotations

import importlib
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
    if argv:
        print(f"no demo is called {argv[0]!r}", file=sys.stderr)
    print("usage: python -m harness.reference.demo NAME [--out DIR]", file=sys.stderr)
    for name, text in DEMOS.items():
        print(f"  {name:13s} {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
