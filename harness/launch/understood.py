"""What a command line would start: `python train.py …` and `torchrun … train.py …`, read without running them.

Responsible for: telling whether a command can be started from the preloaded process, and as what. What it does not understand is
started as it stands: a guess would be another program than the user's.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PYTHON = re.compile(r"python(3(\.\d+)?)?$")
_FLAGS = ("--standalone", "--no-python")
_VALUED = (
    "--nproc-per-node",
    "--nnodes",
    "--node-rank",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--rdzv-conf",
    "--max-restarts",
    "--monitor-interval",
    "--start-method",
    "--role",
    "--log-dir",
    "--master-addr",
    "--master-port",
    "--local-addr",
)
_MODULES = ("torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True)
class Program:
    """A Python program, and how often it is started.

    Attributes:
        words: the script and its arguments, or `-m`, the module and its arguments.
        ranks: number of ranks; None for a plain program, which has no rank.
        own_interpreter: whether it would run in this very interpreter.
    """

    words: tuple[str, ...]
    ranks: int | None
    own_interpreter: bool


def understand(words: Sequence[str]) -> Program | None:
    """The program that a command line starts; None where it is anything else."""
    if not words:
        return None
    name = Path(words[0]).name
    if _PYTHON.match(name):
        return _python(list(words[1:]), _is_own(words[0]))
    if name == "torchrun":
        return _torchrun(list(words[1:]), _has_own_interpreter(words[0]))
    return None


def why_cold(words: Sequence[str]) -> str:
    """Why a command is not started from the preloaded process, in words; "" if it can be."""
    program = understand(words)
    if program is None:
        return "it is no `python SCRIPT` or `torchrun SCRIPT` on one machine"
    return (
        "" if program.own_interpreter else f"{words[0]} is another Python than the one that runs the harness ({sys.executable})"
    )


def keeps_out(words: Sequence[str]) -> str:
    """The option by which a command's interpreter reads no `PYTHONPATH`, or imports no `sitecustomize` from it; "" for none.

    Either way nobody can watch it from inside.
    """
    if not words:
        return ""
    options = list(words[1:]) if _PYTHON.match(Path(words[0]).name) else _of_script(words[0])
    while options and options[0].startswith("-") and options[0] != "-":
        word = options.pop(0)
        # Of letters that stand together the last one may take what follows, as `-W ignore` and `-m MODULE` do.
        flags, valued = re.match(r"-([^cmWX]*)([cmWX]?)", word).groups()  # type: ignore[union-attr]
        if not word.startswith("--") and (found := [letter for letter in flags if letter in "ESI"]):
            return f"-{found[0]}"
        if valued in ("c", "m"):
            break
        if valued and word.endswith(valued) and options:
            options.pop(0)
    return ""


def _of_script(program: str) -> list[str]:
    """The options that a script gives to its interpreter in its first line."""
    found = shutil.which(program)
    if found is None:
        return []
    with Path(found).open("rb") as file:
        first = os.fsdecode(file.readline(4096).strip()).split()
    at = next((place for place, word in enumerate(first) if _PYTHON.match(word.rpartition("/")[2].removeprefix("#!"))), None)
    return first[at + 1 :] if first and first[0].startswith("#!") and at is not None else []


def _python(words: list[str], own: bool) -> Program | None:
    while words and words[0] in ("-u", "-B"):
        words.pop(0)
    if not words or words[0] == "-" or (words[0].startswith("-") and words[0] != "-m"):
        return None
    if words[0] == "-m":
        if len(words) < 2:
            return None
        return _torchrun(words[2:], own) if words[1] in _MODULES else Program(tuple(words), None, own)
    return Program(tuple(words), None, own)


def _torchrun(words: list[str], own: bool) -> Program | None:
    options: dict[str, str] = {}
    while words and words[0].startswith("-"):
        word, _, value = words.pop(0).partition("=")
        word = word.replace("_", "-")
        if word in ("-m", "--module"):
            words.insert(0, "-m")
            break
        if word in _FLAGS:
            options[word] = ""
        elif word in _VALUED and (value or words):
            options[word] = value or words.pop(0)
        else:
            return None
    ranks = options.get("--nproc-per-node", "1")
    if not words or "--no-python" in options or options.get("--nnodes", "1") not in ("1", "1:1") or not ranks.isdigit():
        return None
    return Program(tuple(words), int(ranks), own)


def _is_own(program: str) -> bool:
    found = shutil.which(program)
    if found is None:
        return False
    # The same file behind a link is not enough: a virtual environment is told by where the link stands.
    same = Path(found).resolve() == Path(sys.executable).resolve()
    return same and Path(os.path.abspath(found)).parent == Path(os.path.abspath(sys.executable)).parent  # noqa: PTH100


def _has_own_interpreter(script: str) -> bool:
    found = shutil.which(script)
    if found is None:
        return False
    with Path(found).open("rb") as file:
        first = file.readline(4096)
    return first.startswith(b"#!") and _is_own(os.fsdecode(first[2:].strip().split(b" ")[0]))
