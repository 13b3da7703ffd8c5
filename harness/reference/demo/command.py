"""What the five commands share: their options, their directory, and their last line."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.reference.defects import check_defects
from harness.reference.demo import DEMOS
from harness.reference.devices import BACKENDS, missing_device
from harness.reference.world import World

# Of losses. On a CPU every sum is made in one order, so there is nothing to tolerate.
TOLERANCE = {"cpu": 0.0, "cuda": 1e-4}


class DemoError(Exception):
    """The demo could not be carried through: a process failed, or did not end before its deadline."""


def build_parser(name: str, *, format: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with the options that all demos have.

    Args:
        name: Of the demo.
        format: The checkpoint format in which `--defect` can plant its mistakes; None for a demo without that option.
    """
    parser = argparse.ArgumentParser(prog=f"python -m harness.reference.demo {name}", description=f"Shows that {DEMOS[name]}.")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="empty or new directory to keep all files in; default: none is kept"
    )
    parser.add_argument("--device", choices=tuple(BACKENDS), default="cpu", help="where to train; default cpu")
    if format is not None:

        def defect(text: str) -> str:
            if problems := check_defects([text], format):
                raise argparse.ArgumentTypeError("; ".join(problems))
            return text

        parser.add_argument(
            "--defect",
            type=defect,
            action="append",
            default=[],
            metavar="NAME",
            help="plant a mistake into the trainer (defects.py), to see the demo fail: no-optimizer, no-rng, …",
        )
    return parser


def lacks_device(name: str, world: World) -> bool:
    """Return whether this rank cannot train there, and say why. Not before a fork: it asks CUDA."""
    problem = missing_device(name, world)
    if problem is not None:
        print(f"usage error: {problem}", file=sys.stderr, flush=True)
    return problem is not None


@contextlib.contextmanager
def workplace(out: Path | None) -> Iterator[Path]:
    """Give the directory to work in: the one asked for, or a temporary one that is removed in the end.

    Raises:
        SystemExit: Code 2, if the directory is not empty: a job would resume from the checkpoints of an earlier one.
    """
    if out is None:
        with tempfile.TemporaryDirectory(prefix="reference-demo-") as directory:
            yield Path(directory)
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        print(f"usage error: --out {out} must be an empty or a new directory", file=sys.stderr)
        raise SystemExit(2)
    out.mkdir(parents=True, exist_ok=True)
    yield out.resolve()


def conclude(name: str, problems: Sequence[str], detail: str = "") -> int:
    """Print the verdict as the last line, and each problem before it; return the exit code.

    Args:
        name: What was to hold, for example `skip path`.
        problems: What does not hold, in words.
        detail: Added to a good verdict.
    """
    print()
    for problem in problems:
        print(f"does not hold: {problem}")
    tail = f": {detail}" if detail and not problems else ""
    print(f"{name.upper()} {'FAILED' if problems else 'VERIFIED'}{tail}", flush=True)
    return 1 if problems else 0
