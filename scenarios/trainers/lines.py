"""The command lines of the scripts, and the error by which an expected failure is told from any other."""

from __future__ import annotations

from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


class StillFailsError(Exception):
    """It fails exactly as it is written down."""


def command(script: str, ranks: int) -> list[str]:
    """How a script is started, its name with its options, on so many ranks."""
    name, *arguments = script.split()
    start = ["python"] if ranks == 1 and not name.startswith("fsdp2") else ["torchrun", "--nproc-per-node", str(ranks)]
    return [*start, str(SCRIPTS / f"{name}.py"), "--out", "{ckpt}", *arguments]
