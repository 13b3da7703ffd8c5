"""Runs the little trainers of `probed/` with and without the probe, in forks of a process that has imported torch.

Run as a program, this file answers each line, a run in JSON, with the exit codes of its ranks.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from ranks import ROOT, ask, run_ranks, running_program

from harness.baseline import noisy_components
from harness.launch.command import torchrun_environment
from harness.launch.ports import reserved_port
from harness.store import RankLog, read_rank_logs

SCRIPTS = Path(__file__).parent / "probed"
INJECTED = ROOT / "harness" / "probe" / "injected"
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@dataclass
class Seen:
    """What a run has left behind."""

    codes: list[int]
    said: str
    errors: str
    files: dict[str, bytes]
    logs: dict[int, RankLog] = field(default_factory=dict)

    @property
    def log(self) -> RankLog:
        """Of the one rank."""
        return self.logs[0]

    @property
    def losses(self) -> list[str]:
        """What was printed, of one rank."""
        return [line for line in self.said.splitlines() if line.startswith(("0x", "-0x"))]


class Runs:
    """Starts trainers.

    Args:
        process: This file, running as a program; None for interpreters of their own.
        folder: For everything.
    """

    def __init__(self, process: subprocess.Popen[str] | None, folder: Path) -> None:
        self._process = process
        self.folder = folder
        self._runs = 0

    def run(
        self,
        *words: str,
        probe: bool = True,
        ranks: int = 1,
        goes_on: str = "",
        golden: str = "",
        faults: str = "",
        cold: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        name: str = "",
    ) -> Seen:
        """Runs `script.py words… --out DIR`.

        Args:
            goes_on: name of the run whose checkpoints it finds there; golden: the one that it is compared with.
            cold: the command that runs the script, in place of a fork.
        """
        self._runs += 1
        name = name or f"run-{self._runs}"
        # Two runs that are compared have their checkpoints at the same place, since some files hold their own names.
        out, logs = self.folder / "out", self.folder / name / "logs"
        shutil.rmtree(out, ignore_errors=True)
        logs.mkdir(parents=True)
        if goes_on:
            shutil.copytree(self.folder / goes_on / "kept", out)
        else:
            out.mkdir()
        script = str(SCRIPTS / words[0])
        variables = {**THREADS, "HARNESS_EVENT_LOG": str(logs), "HARNESS_NUMERIC_FAULTS": faults, **(environment or {})}
        if probe:
            variables |= {"HARNESS_PROBE": str(out), "HARNESS_PROBE_GOLDEN": str(self.folder / golden / "logs") if golden else ""}
        arguments = [script, *words[1:], "--out", str(out)]
        codes = (self._cold if cold else self._warm)([*cold, *arguments], variables, logs, ranks)
        for left in self.folder.glob("out-*"):
            left.unlink()
        shutil.copytree(out, self.folder / name / "kept")
        texts = ["".join(path.read_text() for path in sorted(logs.glob(f"*.{kind}"))) for kind in ("stdout", "stderr")]
        files = {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
        return Seen(codes, *texts, files, read_rank_logs(logs))

    def _warm(self, arguments: list[str], variables: dict[str, str], logs: Path, ranks: int) -> list[int]:
        assert self._process is not None
        with reserved_port() as port:
            several = [torchrun_environment(rank, ranks, 0, port) if ranks > 1 else {} for rank in range(ranks)]
            question = {"arguments": arguments, "environments": [variables | one for one in several], "logs": str(logs)}
            return json.loads(ask(self._process, json.dumps(question)))

    def _cold(self, arguments: list[str], variables: dict[str, str], logs: Path, _ranks: int) -> list[int]:
        path = str(INJECTED) if "HARNESS_PROBE" in variables else ""
        base = {key: value for key, value in os.environ.items() if not key.startswith("HARNESS_") and key != "PYTHONPATH"}
        given = variables.get("PYTHONPATH", "")
        variables = {**base, **variables, "PYTHONPATH": os.pathsep.join(filter(None, [path, given]))}
        with (logs / "0.stdout").open("w") as out, (logs / "0.stderr").open("w") as err:
            process = subprocess.Popen(arguments, env=variables, stdout=out, stderr=err, cwd=logs)
            try:
                return [process.wait(timeout=120)]
            except BaseException:
                kill_tree(process)  # the ranks of a launcher have sessions of their own, and would outlive it
                raise


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and all that it has started."""
    program = psutil.Process(process.pid)
    program.suspend()  # starts no more
    for one in (*program.children(recursive=True), program):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


@contextlib.contextmanager
def running_probed():
    """Starts this file as a program, and ends it."""
    with running_program(__file__) as process:
        yield process


def differences(first: Seen, second: Seen) -> frozenset[str]:
    """Components whose digests differ between two runs."""
    return noisy_components(first.logs, second.logs)


# ---- the program ----------------------------------------------------------------------------------------------------


def serve() -> None:
    import numpy  # noqa: F401
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.utils.serialization.config  # noqa: F401

    from harness.probe.run_script import main

    gc.freeze()
    for line in sys.stdin:
        question = json.loads(line)
        codes = run_ranks(len(question["environments"]), lambda rank, asked=question: become(rank, asked, main))
        print(json.dumps(codes), flush=True)


def become(rank: int, question: dict[str, Any], main: Callable[[list[str]], int]) -> None:
    logs = Path(question["logs"])
    for number, kind in ((1, "stdout"), (2, "stderr")):
        descriptor = os.open(logs / f"{rank}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(logs)
    os.environ.pop("PYTHONPATH", None)
    os.environ.update(question["environments"][rank])
    code = main(question["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
