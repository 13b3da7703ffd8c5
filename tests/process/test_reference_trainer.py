"""The reference trainer as real processes: exact resume, other world sizes, refusals, failed saves, dead ranks.

Ranks are processes with RANK, WORLD_SIZE and LOCAL_RANK that meet through a file. Importing torch takes longer than
training, so most of them are forked from one process that has imported it (this file, run as a program).
"""

from __future__ import annotations

import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import DEADLINE_S, ROOT, ask, run_ranks, running_program

FORMATS = ("single", "sharded", "dcp", "dcp-async", "safetensors")
EXTRA = {"sharded": ["--reshard"]}
# Everything that is state: buffers, an average, an order of the data, gradients of micro-batches, skips.
EVERYTHING = [
    "--model",
    "mlp",
    "--ema",
    "0.9",
    "--sampler",
    "random",
    "--workers",
    "1",
    "--accumulate",
    "2",
    "--precision",
    "fp16",
]


# ---- the program that forks ranks -----------------------------------------------------------------------------------


def serve() -> None:
    import gc

    import harness.reference.dcp_async
    import harness.reference.safetensors_format
    import harness.reference.sharded  # noqa: F401
    from harness.probe import train_reference

    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        codes = run_ranks(job["world_size"], functools.partial(be_rank, job, train_reference.main))
        print(json.dumps(codes), flush=True)


def be_rank(job: dict, main, rank: int) -> None:
    code = 99
    try:
        log = Path(job["log"])
        log.mkdir(parents=True, exist_ok=True)
        os.dup2(os.open(log / f"stdout-{rank}", os.O_WRONLY | os.O_CREAT, 0o644), 1)
        os.dup2(os.open(log / f"stderr-{rank}", os.O_WRONLY | os.O_CREAT, 0o644), 2)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job["world_size"]))
        os.environ.update(job["environment"], HARNESS_EVENT_LOG=str(log))
        if str(rank) in job["file_limit"]:
            limit = job["file_limit"][str(rank)]
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if rank == job["killed_rank"]:
            kill_self_at(job["killed_when"])
        code = main(job["arguments"])
        sys.stdout.flush()
    finally:
        os._exit(code)


def kill_self_at(name: str) -> None:
    # Dies by SIGKILL at the moment at which a file of this name is to be opened for writing.
    def hook(event: str, arguments: tuple) -> None:
        if event == "open" and name in str(arguments[0]) and arguments[2] & os.O_ACCMODE != os.O_RDONLY:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


# ---- what the tests use ---------------------------------------------------------------------------------------------


class Launcher:
    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process
        self._runs = 0

    def run(self, log: Path, world_size: int, *arguments: str, environment=None, file_limit=None, kill=(None, "")):
        self._runs += 1
        shutil.rmtree(log, ignore_errors=True)
        log.mkdir(parents=True)
        meet = [] if world_size == 1 else ["--init-method", f"file://{log}/store"]
        job = {
            "world_size": world_size,
            "arguments": [*arguments, *meet],
            "log": str(log),
            "environment": environment or {},
            "file_limit": file_limit or {},
            "killed_rank": kill[0],
            "killed_when": kill[1],
        }
        return Outcome(json.loads(ask(self._process, json.dumps(job))), log)


class Outcome:
    def __init__(self, codes: list[int], log: Path) -> None:
        self.codes = codes
        self.log = log

    def events(self, rank: int) -> list[dict]:
        return [json.loads(line) for line in (self.log / f"rank-{rank}.jsonl").read_text().splitlines()]

    def event(self, rank: int, name: str, **fields) -> dict:
        found = [e for e in self.events(rank) if e["event"] == name and all(e[key] == fields[key] for key in fields)]
        assert found, (name, fields, self.stderr(rank))
        return found[-1]

    def batches(self, rank: int) -> dict[int, dict]:
        found = {}
        for event in self.events(rank):
            if event["event"] == "batch":
                found[event["batch"]] = {key: event[key] for key in event if key != "time_s"}
        return found

    def digests(self, rank: int, moment: str, step: int | None = None) -> dict[str, str]:
        fields = {"moment": moment} if step is None else {"moment": moment, "step": step}
        return self.event(rank, "state", **fields)["digests"]

    def stderr(self, rank: int) -> str:
        return (self.log / f"stderr-{rank}").read_text()


@pytest.fixture(scope="module")
def launcher():
    with running_program(__file__) as process:
        yield Launcher(process)


def checkpoints(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


def keep_until(out: Path, batch: int) -> None:
    for path in out.iterdir():
        if int(path.name.removesuffix(".pt").removeprefix("step-")) > batch:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def payload_file(checkpoint: Path) -> Path:
    return checkpoint if checkpoint.is_file() else max(checkpoint.iterdir(), key=lambda path: path.stat().st_size)


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def content(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("name", FORMATS)
def test_resume_is_equal_to_the_last_bit(launcher, tmp_path, name, world_size):
    arguments = ["--format", name, "--out", str(tmp_path / "out"), "--keep-last", "9"]
    golden = launcher.run(tmp_path / "golden", world_size, *arguments)
    assert golden.codes == [0] * world_size
    keep_until(tmp_path / "out", 8)
    resumed = launcher.run(tmp_path / "resumed", world_size, *arguments)
    assert resumed.codes == [0] * world_size
    for rank in range(world_size):
        assert resumed.event(rank, "resume")["step"] == 8
        assert resumed.digests(rank, "load") == golden.digests(rank, "save", 8)
        assert sorted(resumed.batches(rank)) == list(range(9, 25))
        for batch, event in resumed.batches(rank).items():
            assert event == golden.batches(rank)[batch]
        assert resumed.digests(rank, "end") == golden.digests(rank, "end")


@pytest.mark.parametrize("parallelism", ["ddp", "zero1", "fsdp2"])
@pytest.mark.parametrize("name", FORMATS)
def test_resume_is_equal_however_the_job_is_spread(launcher, tmp_path, name, parallelism):
    fault = json.dumps([{"effect": "overflow", "ranks": [1], "batch": 8, "times": 1}])
    arguments = ["--format", name, "--parallelism", parallelism, *EVERYTHING]
    arguments += ["--out", str(tmp_path / "out"), "--steps", "12", "--batches-per-epoch", "10", "--keep-last", "9"]
    golden = launcher.run(tmp_path / "golden", 2, *arguments, environment={"HARNESS_NUMERIC_FAULTS": fault})
    assert golden.codes == [0, 0], golden.stderr(0)
    assert golden.batches(0)[8]["tag"] == "SKIP"
    keep_until(tmp_path / "out", 8)
    resumed = launcher.run(tmp_path / "resumed", 2, *arguments)
    assert resumed.codes == [0, 0], resumed.stderr(0)
    for rank in (0, 1):
        assert resumed.event(rank, "resume")["step"] == 7
        assert {"buffers", "ema", "scaler"} <= resumed.digests(rank, "load").keys()
        assert resumed.digests(rank, "load") == golden.digests(rank, "save", 7)
        for batch, event in resumed.batches(rank).items():
            assert event == golden.batches(rank)[batch]
        assert resumed.digests(rank, "end") == golden.digests(rank, "end")


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_resume_is_equal_in_low_precision(launcher, tmp_path, precision):
    arguments = ["--precision", precision, "--out", str(tmp_path / "out"), "--keep-last", "9"]
    golden = launcher.run(tmp_path / "golden", 2, *arguments)
    keep_until(tmp_path / "out", 12)
    resumed = launcher.run(tmp_path / "resumed", 2, *arguments)
    assert resumed.digests(1, "load") == golden.digests(1, "save", 12)
    assert resumed.digests(1, "end") == golden.digests(1, "end")
    assert ("scaler" in golden.digests(0, "end")) == (precision == "fp16")


@pytest.fixture(scope="module")
def saved_by(launcher, tmp_path_factory):
    made = {}

    def make(name: str, world_size: int):
        if (name, world_size) not in made:
            folder = tmp_path_factory.mktemp(f"{name}-{world_size}")
            arguments = reshape_arguments(name, folder / "out")
            made[name, world_size] = (folder / "out", launcher.run(folder / "log", world_size, *arguments))
            keep_until(folder / "out", 4)
        return made[name, world_size]

    return make


def reshape_arguments(name: str, out: Path) -> list[str]:
    return [
        "--format",
        name,
        "--out",
        str(out),
        "--rng-scope",
        "global",
        "--steps",
        "34",
        "--keep-last",
        "9",
        *EXTRA.get(name, []),
    ]


@pytest.mark.parametrize(("saved", "resumed"), [(4, 2), (2, 4), (2, 1), (1, 3)])
@pytest.mark.parametrize("name", FORMATS)
def test_another_world_size_gives_the_same_loss(launcher, saved_by, tmp_path, name, saved, resumed):
    source, golden = saved_by(name, saved)
    shutil.copytree(source, tmp_path / "out")
    outcome = launcher.run(tmp_path / "log", resumed, *reshape_arguments(name, tmp_path / "out"))
    assert outcome.codes == [0] * resumed
    assert outcome.event(0, "resume")["world_size_saved"] == saved
    assert sorted(outcome.batches(0)) == list(range(5, 35))
    for batch, event in outcome.batches(0).items():
        expected = golden.batches(0)[batch]
        assert abs(float.fromhex(event["global_loss"]) - float.fromhex(expected["global_loss"])) <= 1e-4
        seen = sorted(sample for rank in range(resumed) for sample in outcome.batches(rank)[batch]["samples"])
        assert seen == sorted(sample for rank in range(saved) for sample in golden.batches(rank)[batch]["samples"])


def test_streams_per_rank_are_seeded_afresh_on_another_world_size(launcher, tmp_path):
    arguments = ["--out", str(tmp_path / "out"), "--steps", "8"]
    launcher.run(tmp_path / "golden", 2, *arguments)
    keep_until(tmp_path / "out", 4)
    shutil.copytree(tmp_path / "out", tmp_path / "again")
    outcome = launcher.run(tmp_path / "one", 4, *arguments)
    assert "generators seeded afresh" in (outcome.log / "stdout-0").read_text()
    assert len({outcome.digests(rank, "load")["rng.torch"] for rank in range(4)}) == 4
    again = launcher.run(tmp_path / "two", 4, "--out", str(tmp_path / "again"), "--steps", "8")
    assert again.digests(0, "end") == outcome.digests(0, "end")


def test_refuses_another_world_size_without_reshard(launcher, tmp_path):
    arguments = ["--format", "sharded", "--out", str(tmp_path / "out"), "--steps", "4"]
    launcher.run(tmp_path / "first", 2, *arguments)
    before = content(tmp_path / "out")
    outcome = launcher.run(tmp_path / "second", 4, *arguments)
    assert outcome.codes == [3] * 4
    error = outcome.event(3, "refuse")["error"]
    assert "world_size mismatch" in error
    assert "manifest.json: expected 4, found 2" in error
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize("name", FORMATS)
def test_refuses_when_nothing_valid_is_left(launcher, tmp_path, name):
    arguments = ["--format", name, "--out", str(tmp_path / "out"), "--steps", "8"]
    launcher.run(tmp_path / "first", 2, *arguments)
    for path in (tmp_path / "out").iterdir():
        flip_bit(payload_file(path))
    before = content(tmp_path / "out")
    outcome = launcher.run(tmp_path / "second", 2, *arguments)
    assert outcome.codes == [3, 3]
    error = outcome.event(1, "refuse")["error"]
    for path in (tmp_path / "out").iterdir():
        assert path.name in error
    assert "sha256 mismatch" in error
    assert "expected" in error
    assert "Traceback" not in outcome.stderr(0)
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize("name", FORMATS)
def test_passes_over_a_corrupt_checkpoint_and_later_replaces_it(launcher, tmp_path, name):
    arguments = ["--format", name, "--out", str(tmp_path / "out"), "--keep-last", "2"]
    golden = launcher.run(tmp_path / "golden", 2, *arguments, "--keep-last", "9")
    keep_until(tmp_path / "out", 16)
    for path in (tmp_path / "out").iterdir():
        if "12" in path.name or "16" in path.name:
            flip_bit(payload_file(path))
    outcome = launcher.run(tmp_path / "second", 2, *arguments)
    assert outcome.codes == [0, 0]
    resume = outcome.event(1, "resume")
    assert resume["step"] == 8
    assert [skipped["path"].removesuffix(".pt") for skipped in resume["skipped"]] == ["step-00000016", "step-00000012"]
    assert "sha256 mismatch" in resume["skipped"][0]["reason"]
    assert [one.removesuffix(".pt") for one in checkpoints(tmp_path / "out")] == ["step-00000020", "step-00000024"]
    assert outcome.digests(0, "end") == golden.digests(0, "end")
    assert launcher.run(tmp_path / "third", 2, *arguments).event(0, "resume")["skipped"] == []


def test_a_finished_job_does_nothing_more(launcher, tmp_path):
    arguments = ["--out", str(tmp_path / "out"), "--steps", "6"]
    launcher.run(tmp_path / "first", 2, *arguments)
    before = content(tmp_path / "out")
    outcome = launcher.run(tmp_path / "second", 2, *arguments)
    assert outcome.codes == [0, 0]
    assert outcome.batches(0) == {}
    assert outcome.event(1, "end")["batches"] == 6
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize("name", ["sharded", "dcp", "dcp-async"])
def test_a_save_that_fails_on_one_rank_fails_on_all(launcher, tmp_path, name):
    arguments = ["--format", name, "--out", str(tmp_path / "out")]
    launcher.run(tmp_path / "first", 2, *arguments, "--steps", "4")
    before = content(tmp_path / "out")
    outcome = launcher.run(tmp_path / "second", 2, *arguments, file_limit={"1": 60000})
    assert outcome.codes == [1, 1]
    for rank in (0, 1):
        error = outcome.event(rank, "save", moment="failed")["error"]
        assert "rank 1: " in error
        assert "File too large" in error
        assert "rank1.bin" in error or "__1_0.distcp" in error
        assert len(outcome.stderr(rank).splitlines()) == 1
    assert content(tmp_path / "out") == before


def test_training_goes_on_after_a_failed_save_if_told_so(launcher, tmp_path):
    arguments = ["--out", str(tmp_path / "out"), "--steps", "8"]
    outcome = launcher.run(tmp_path / "log", 2, *arguments, "--on-save-error", "continue", file_limit={"0": 60000})
    assert outcome.codes == [0, 0]
    assert len([e for e in outcome.events(1) if e["event"] == "save" and e["moment"] == "failed"]) == 2
    assert outcome.event(1, "end")["batches"] == 8
    assert checkpoints(tmp_path / "out") == []
    assert launcher.run(tmp_path / "again", 2, *arguments).codes == [0, 0]


@pytest.mark.parametrize(
    ("name", "rank", "when"),
    [
        ("single", 0, "step-00000012.pt"),
        ("sharded", 1, "step-00000012/rank1.bin.tmp"),
        ("sharded", 0, "step-00000012/manifest.json.tmp"),
        ("dcp", 1, "step-00000012/__1_0.distcp"),
        ("dcp-async", 1, "step-00000012/__1_0.distcp"),
        ("dcp-async", 0, "step-00000012/manifest.json.tmp"),
        ("safetensors", 0, "step-00000012/model.safetensors.tmp"),
        ("safetensors", 0, "step-00000012/training.bin.tmp"),
    ],
)
def test_a_rank_killed_in_a_save_costs_that_save_only(launcher, tmp_path, name, rank, when):
    arguments = ["--format", name, "--out", str(tmp_path / "out"), "--collective-timeout-s", "20"]
    golden = launcher.run(tmp_path / "golden", 2, *arguments)
    shutil.rmtree(tmp_path / "out")
    killed = launcher.run(tmp_path / "killed", 2, *arguments, kill=(rank, when))
    assert killed.codes[rank] == -signal.SIGKILL
    assert killed.codes[1 - rank] == 1
    assert len(killed.stderr(1 - rank).splitlines()) == 1
    resumed = launcher.run(tmp_path / "resumed", 2, *arguments)
    assert resumed.codes == [0, 0]
    assert resumed.event(0, "resume")["step"] == 8
    assert resumed.digests(1, "end") == golden.digests(1, "end")
    assert len(checkpoints(tmp_path / "out")) == 3


@pytest.mark.parametrize(
    ("effect", "reason"),
    [("overflow", "non_finite_loss"), ("nan", "non_finite_loss"), ("nonfinite-grad", "non_finite_grad")],
)
def test_a_bad_batch_on_one_rank_is_skipped_on_all(launcher, tmp_path, effect, reason):
    fault = json.dumps([{"effect": effect, "ranks": [1], "batch": 6, "times": 1}])
    arguments = ["--precision", "fp16", "--out", str(tmp_path / "out"), "--steps", "8"]
    outcome = launcher.run(tmp_path / "log", 2, *arguments, environment={"HARNESS_NUMERIC_FAULTS": fault})
    assert outcome.codes == [0, 0]
    for rank in (0, 1):
        batches = outcome.batches(rank)
        assert (batches[6]["tag"], batches[6]["reason"], batches[6]["step"]) == ("SKIP", reason, 5)
        assert float.fromhex(batches[7]["scale"]) == float.fromhex(batches[6]["scale"]) / 2
        assert batches[7]["learning_rate"] == batches[6]["learning_rate"]
        assert batches[8]["parameters_finite"]
    assert outcome.event(0, "end") | {"time_s": 0} == {"event": "end", "rank": 0, "time_s": 0, "step": 7, "batches": 8}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("defect", "lost"),
    [
        ("no-rng", {"rng.python", "rng.numpy", "rng.torch", "rng.noise"}),
        ("no-optimizer", {"optimizer"}),
        ("no-scheduler", {"scheduler"}),
        ("no-scaler", {"scaler"}),
    ],
)
def test_planted_defects_lose_what_they_say(launcher, tmp_path, name, defect, lost):
    arguments = ["--format", name, "--precision", "fp16", "--out", str(tmp_path / "out"), "--defect", defect]
    golden = launcher.run(tmp_path / "golden", 1, *arguments, "--steps", "20", "--keep-last", "9")
    keep_until(tmp_path / "out", 16)
    resumed = launcher.run(tmp_path / "resumed", 1, *arguments, "--steps", "20")
    before, after = golden.digests(0, "save", 16), resumed.digests(0, "load")
    assert {name for name in before if before[name] != after[name]} == lost


def test_planted_defect_in_place_loses_the_only_checkpoint(launcher, tmp_path):
    arguments = ["--out", str(tmp_path / "out"), "--defect", "in-place"]
    launcher.run(tmp_path / "first", 1, *arguments, "--steps", "4")
    torn = launcher.run(tmp_path / "second", 1, *arguments, file_limit={"0": 60000})
    assert torn.codes == [1]
    assert checkpoints(tmp_path / "out") == ["checkpoint.pt"]
    assert launcher.run(tmp_path / "third", 1, *arguments).codes == [3]


def test_planted_defect_manifest_first_commits_what_is_not_there(launcher, tmp_path):
    arguments = ["--format", "sharded", "--out", str(tmp_path / "out"), "--defect", "manifest-first"]
    killed = launcher.run(tmp_path / "killed", 2, *arguments, kill=(1, "step-00000008/rank1.bin.tmp"))
    assert killed.codes[1] == -signal.SIGKILL
    assert (tmp_path / "out/step-00000008/manifest.json").exists()
    skipped = launcher.run(tmp_path / "resumed", 2, *arguments).event(0, "resume")["skipped"]
    assert "shard file missing" in skipped[0]["reason"]


def test_planted_defect_no_skip_ruins_the_weights(launcher, tmp_path):
    fault = json.dumps([{"effect": "nan", "ranks": None, "batch": 2, "times": 1}])
    arguments = ["--out", str(tmp_path / "out"), "--steps", "4", "--defect", "no-skip"]
    outcome = launcher.run(tmp_path / "log", 1, *arguments, environment={"HARNESS_NUMERIC_FAULTS": fault})
    assert not outcome.batches(0)[4]["parameters_finite"]


def test_the_command_alone_with_one_process_per_rank(tmp_path):
    ranks = []
    for rank in range(2):
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "harness.reference.train", "--steps", "4", "--format", "dcp"]
        command += ["--out", str(tmp_path / "out"), "--init-method", f"file://{tmp_path}/store"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        ranks.append(subprocess.Popen(command, cwd=ROOT, env=environment, **pipes))
    outputs = [process.communicate(timeout=DEADLINE_S) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    assert len(outputs[0][0].splitlines()) == 4
    assert outputs[1][0] == ""
    assert checkpoints(tmp_path / "out") == ["step-00000004"]


if __name__ == "__main__":
    serve()
