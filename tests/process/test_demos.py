"""The five demos of the reference trainer, as a reader runs them: the exit code, and the facts that they print.

What is printed is read as numbers and checked again here, so that a demo whose own verdict has gone blind is found.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 150.0


def demo(*arguments: str) -> tuple[int, list[str], str]:
    """Exit code, lines of standard output, standard error."""
    command = [sys.executable, "-m", "harness.reference.demo", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Path:
    """Where the demos have run, all in one command and once for all workers: importing torch takes longer than most of them."""
    shared = tmp_path_factory.getbasetemp().parent / "demos"
    with FileLock(f"{shared}.lock", timeout=DEADLINE_S):
        if not shared.exists():
            code, lines, errors = demo("all", "--out", str(shared / "out"))
            shared.mkdir(exist_ok=True)
            (shared / "said.json").write_text(json.dumps([code, lines, errors]))
    return shared


def verified(place: Path, name: str) -> list[str]:
    """What a demo has printed; it must say that what it shows holds."""
    code, lines, errors = json.loads((place / "said.json").read_text())
    begin = lines.index(f"== {name}") + 1
    end = next((n for n in range(begin, len(lines)) if lines[n].startswith("== ")), len(lines))
    assert "VERIFIED" in lines[end - 1], "\n".join([*lines[begin:end], errors])
    assert code == 0
    return lines[begin:end]


def rows(lines: list[str], pattern: str) -> list[tuple[str, ...]]:
    return [match.groups() for line in lines if (match := re.fullmatch(pattern, line.strip()))]


def test_amp(place):
    lines = verified(place, "amp")
    pattern = r"batch +(\d+)  step +(\d+)  loss (\S+)  next lr (\S+)  skip rate (\S+)  scale (\S+)(?:  \w+)?  (STEP|SKIP).*"
    found = rows(lines, pattern)
    assert [int(row[0]) for row in found] == list(range(1, 21))
    assert [int(row[0]) for row in found if row[6] == "SKIP"] == [10]
    assert [int(row[1]) for row in found] == [*range(1, 10), *range(9, 20)]
    scales = [float(row[5]) for row in found]
    assert scales == [1024.0] * 7 + [2048.0] * 2 + [1024.0] * 8 + [2048.0] * 3
    assert found[8][3] == found[9][3] != found[10][3]  # the schedule waits for a skipped batch
    assert [float(row[4]) for row in found] == pytest.approx([0.0] * 9 + [1 / n for n in range(10, 21)], abs=6e-4)
    assert rows(lines, r"rolling skip rate of the last (\d+) batches: (\S+)") == [("20", "0.0500")]
    ((weights, of),) = rows(lines, r"batch 10: (\d+) of (\d+) weights changed")
    assert (weights, int(of) > 10000) == ("0", True)
    assert rows(lines, r"batch 10: (\d+) of \d+ moments changed") == [("0",)]


def test_accumulation(place):
    lines = verified(place, "accumulation")
    sweep = rows(lines, r"(\d+) +(\d+) +(\d\.\d{9}) +(\d\.\d{3}e[+-]\d\d) +(\d[\d, ]*)")
    assert [int(row[0]) for row in sweep] == [1, 2, 4, 8, 16]
    assert {int(row[0]) * int(row[1]) for row in sweep} == {16}
    assert {row[4] for row in sweep} == {"1"}
    assert max(float(row[3]) for row in sweep) <= 1e-6
    losses = [float(row[2]) for row in sweep]
    assert max(losses) - min(losses) <= 2e-6
    curve = rows(lines, r"(\d+) +(\d\.\d{9}) +(\d\.\d{9}) +(\d\.\d{3}e[+-]\d\d)")
    assert [int(row[0]) for row in curve] == list(range(10, 101, 10))
    assert all(float(row[1]) == pytest.approx(float(row[2]), abs=1e-3) for row in curve)
    assert float(curve[-1][1]) < float(curve[0][1]) - 0.2


def test_resume(place):
    lines = verified(place, "resume")
    assert rows(lines, r"process killed: exit code (-\d+) .*") == [("-9",)]
    assert any("resumed from step-00000008.pt" in line for line in lines)
    table = [line.split() for line in lines if re.match(r" *\d+  ", line)]
    assert [int(row[0]) for row in table] == list(range(1, 25))
    # Batches 9 and 10 were done before the kill and once more after it.
    assert [len(row) for row in table] == [4] * 8 + [5] * 2 + [4] * 14
    assert all(len(set(row[1:-1])) == 1 and float(row[-1]) == 0.0 for row in table)
    assert len({row[1] for row in table}) > 20  # losses of a job that trains, not one number
    assert "26 losses compared, largest difference 0.0e+00" in lines[-1]


def test_sharded(place):
    lines = verified(place, "sharded")
    manifest = json.loads("\n".join(lines[: lines.index("}") + 1]))
    assert (manifest["world_size"], [shard["name"] for shard in manifest["shards"]]) == (4, [f"rank{n}.bin" for n in range(4)])
    assert all(re.fullmatch("[0-9a-f]{64}", shard["sha256"]) and shard["size"] > 0 for shard in manifest["shards"])
    offsets = [shard["offset"] for shard in manifest["shards"]]
    assert offsets == [sum(shard["numel"] for shard in manifest["shards"][:n]) for n in range(4)]
    messages = {
        line.removesuffix(": refused"): lines[n + 1].strip() for n, line in enumerate(lines) if line.endswith(": refused")
    }
    expected = {
        "wrong world size": r"world_size mismatch: .*manifest.json: expected 3, found 4 .*",
        "altered byte": r"sha256 mismatch on rank 2: .*rank2.bin: expected \d+ bytes with sha256 (\w{64}), found .* (?!\1)\w{64}",
        "missing shard": r"shard file missing: .*rank1.bin: expected \d+ bytes, found no file",
        "unknown schema": r"unknown schema: .*: expected ckpt.v\d, found 'ckpt.v999'",
        "unsafe shard path": r"unsafe shard path: .*: expected a plain file name, found '../rank3.bin'",
        "duplicate rank": r"duplicate rank: .*: expected each shard once, found rank0.bin more than once",
    }
    assert list(messages) == list(expected)
    for name, pattern in expected.items():
        assert re.fullmatch(pattern, messages[name]), (name, messages[name])


def test_end_to_end(place):
    lines = verified(place, "end-to-end")
    assert lines[-1] == "RESUME VERIFIED"
    assert lines[0] == "4 ranks killed by SIGKILL after step 12, exit codes [-9, -9, -9, -9]"
    ((old, new),) = rows(lines, r"processes \[(.*)\] are gone, \[(.*)\] resumed from step-00000010")
    assert len({*old.split(", "), *new.split(", ")}) == 8
    table = [line.split() for line in lines if re.match(r" *\d+  ", line)]
    assert [int(row[0]) for row in table] == list(range(11, 21))
    assert all(float.fromhex(row[1]) == float.fromhex(row[2]) and float(row[3]) >= 1024 for row in table)
    assert all([float(value) for value in row[4:]] == [0.0] * 4 for row in table)
    # On every rank, its own loss, from the logs and not from the table.
    logs = {name: rank_losses(place / "out" / "end-to-end" / f"log-{name}") for name in ("uninterrupted", "killed", "resumed")}
    assert [sorted(logs["resumed"][rank]) for rank in range(4)] == [list(range(11, 21))] * 4
    assert [sorted(logs["killed"][rank]) for rank in range(4)] == [list(range(1, 13))] * 4
    for rank in range(4):
        assert {**logs["killed"][rank], **logs["resumed"][rank]} == logs["uninterrupted"][rank]
    assert len({logs["resumed"][rank][20] for rank in range(4)}) == 4  # each rank's own samples


def rank_losses(log: Path) -> list[dict[int, str]]:
    lines = [[json.loads(line) for line in (log / f"losses-{rank}.jsonl").read_text().splitlines()] for rank in range(4)]
    return [{fields["batch"]: fields["loss"] for fields in rank if "batch" in fields} for rank in lines]


@pytest.mark.parametrize("arguments", [(), ("nothing-of-that-name",)])
def test_without_a_name_the_demos_are_listed(arguments):
    code, lines, errors = demo(*arguments)
    assert (code, lines) == (2, [])
    assert [line.split()[0] for line in errors.splitlines()[-5:]] == ["amp", "accumulation", "resume", "sharded", "end-to-end"]
