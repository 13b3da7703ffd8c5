"""A trace holds everything that a process did to its files: the model that it feeds equals the real directory, byte for byte.

The supervisor makes that comparison at the end of every recorded attempt and logs `escaped` where they differ; these tests
drive it with programs that use every kind of call, and with programs that write past the gate.
"""

from __future__ import annotations

import os
import sys
import textwrap

import pytest

from harness.case import Workbench
from harness.crash import Model
from harness.errors import UsageError
from harness.explore import record_runs
from harness.scenario import Scenario
from harness.session import Session
from harness.trace import Operation
from harness.tracing import trace_job

ALL_CALLS = """
    import ctypes, os, shutil, sys
    from pathlib import Path
    os.chdir(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    os.makedirs("a/b", exist_ok=True); os.makedirs("a/b", exist_ok=True)
    Path("a/one").write_bytes(b"1" * 10_000)
    with open("a/b/two", "w+b") as file:
        file.write(b"abc"); file.flush(); os.fsync(file.fileno())
        os.pwrite(file.fileno(), b"XY", 8000); os.writev(file.fileno(), [b"v1", b"v2" * 3000])
        os.ftruncate(file.fileno(), 9000); os.posix_fallocate(file.fileno(), 0, 12_000)
        os.pwritev(file.fileno(), [b"q", b"r"], 5)
        copy = os.dup(file.fileno()); os.write(copy, b"through a copy"); os.close(copy)
        os.fdatasync(file.fileno())
    with open("a/one", "ab") as file:
        file.write(b"appended")
    os.truncate("a/one", 9_000)
    shutil.copyfile("a/one", "copied")
    with open("a/one", "rb") as source, open("ranged", "wb") as target:
        os.copy_file_range(source.fileno(), target.fileno(), 5000, 100, None)
        os.copy_file_range(source.fileno(), target.fileno(), 50, 0, 7000)
        os.sendfile(target.fileno(), source.fileno(), None, 33)
    os.rename("copied", "a/b/renamed"); os.replace("a/b/two", "two")
    libc.renameat2(-100, b"two", -100, b"ranged", 2)
    assert libc.renameat2(-100, b"two", -100, b"ranged", 1) == -1
    os.link("ranged", "linked"); os.symlink("linked", "pointing"); os.symlink("nowhere", "dangling")
    with open("linked", "r+b") as file:
        file.seek(2); file.write(b"both names")
    os.rename("a/b", "c"); os.rename("c", "a/c")
    os.chmod("ranged", 0o600); os.chmod("a", 0o700)
    os.mkdir("gone"); os.rmdir("gone"); os.unlink("a/one")
    for attempt in (lambda: os.unlink("missing"), lambda: os.rename("missing", "x"), lambda: os.rmdir("a")):
        try:
            attempt()
        except OSError:
            pass
    directory = os.open(".", os.O_RDONLY); os.fsync(directory); os.close(directory)
    with open("unlinked", "wb") as file:
        os.unlink("unlinked"); file.write(b"nobody will see this")
    fd = os.open("synced", os.O_WRONLY | os.O_CREAT | os.O_DSYNC, 0o640); os.write(fd, b"at once"); os.close(fd)
    if os.fork() == 0:
        Path("child").write_text("of a child"); os._exit(0)
    os.wait()
"""

RANDOM_CALLS = """
    import os, random, sys
    os.chdir(sys.argv[1])
    draw = random.Random(int(sys.argv[2]))
    names = ["a", "b", "c", "d/a", "d/b", "d/e/a", "d", "d/e", "f"]
    def write(mode):
        with open(draw.choice(names), mode, buffering=draw.choice([0, 64])) as file:
            for _ in range(draw.randrange(3)):
                if draw.random() < 0.4 and "a" not in mode:
                    file.seek(draw.randrange(9000))
                file.write(draw.randbytes(draw.randrange(9000)))
                if draw.random() < 0.2:
                    file.truncate(draw.randrange(9000))
            if draw.random() < 0.3:
                file.flush(); os.fsync(file.fileno())
    actions = [
        lambda: write("wb"), lambda: write("r+b"), lambda: write("ab"), lambda: os.mkdir(draw.choice(names)),
        lambda: os.rename(draw.choice(names), draw.choice(names)), lambda: os.unlink(draw.choice(names)),
        lambda: os.rmdir(draw.choice(names)), lambda: os.link(draw.choice(names), draw.choice(names)),
        lambda: os.symlink(draw.choice(names), draw.choice(names)), lambda: os.truncate(draw.choice(names), draw.randrange(9000)),
    ]
    for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 150):
        try:
            draw.choice(actions)()
        except OSError:
            pass
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    session = Session.new()
    folder = tmp_path_factory.mktemp("traces")
    yield Workbench(folder, folder / "baselines", session.warm())
    session.close()


def program(tmp_path, text, *arguments):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(text))
    command = (sys.executable, "-S", str(script), "{ckpt}", *map(str, arguments))
    data = {"name": "traced", "workload": {"kind": "command", "command": command}, "world_sizes": (1,), "launch": "cold"}
    return Scenario.build(data)


def recorded(tmp_path, bench, text, *arguments):
    return record_runs(program(tmp_path, text, *arguments), bench, tmp_path / "runs", once=True)


def test_every_kind_of_call_is_followed(tmp_path, bench):
    recordings = recorded(tmp_path, bench, ALL_CALLS)
    assert recordings.unseen == ()
    trace = recordings.recorded.trace
    kinds = {op.operation for op in trace.operations}
    assert kinds == {"open", "write", "truncate", "fsync", "rename", "link", "symlink", "unlink", "mkdir", "rmdir", "chmod"}
    calls = {op.call for op in trace.operations}
    assert {"sendfile", "copy_file_range", "pwrite64", "writev", "pwritev2", "renameat2", "fallocate"} <= calls
    assert {op.error for op in trace.operations} >= {"", "EEXIST", "ENOENT", "ENOTEMPTY"}
    assert [op.data.size_bytes for op in trace.operations if op.path == "synced" and op.data] == [7]


def test_writes_past_the_cache_are_followed(tmp_path, bench):
    text = """
    import mmap, os, sys
    os.chdir(sys.argv[1])
    pages = mmap.mmap(-1, 3 << 20); pages[:] = os.urandom(1 << 20) * 3
    try:
        fd = os.open("direct", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    except OSError:  # a file system that knows no O_DIRECT
        fd = os.open("direct", os.O_WRONLY | os.O_CREAT)
    assert os.write(fd, pages) == 3 << 20
    assert os.pwrite(fd, memoryview(pages)[:8192], 4096) == 8192
    assert os.writev(fd, [memoryview(pages)[:4096], memoryview(pages)[4096:12288]]) == 12288
    with open("source", "wb+") as source:
        source.write(b"of any length"); source.flush()
        assert os.sendfile(fd, source.fileno(), 0, 100) == 13
    """
    recordings = recorded(tmp_path, bench, text)
    assert recordings.unseen == ()
    assert [op.error for op in recordings.recorded.trace.operations if op.error] == []


def test_a_sync_of_everything_makes_everything_durable(tmp_path, bench):
    text = """
        import os, sys
        from pathlib import Path
        os.chdir(sys.argv[1])
        os.mkdir("d"); Path("d/before").write_bytes(b"x" * 5000)
        os.sync()
        Path("after").write_bytes(b"y")
    """
    trace = recorded(tmp_path, bench, text).recorded.trace
    assert [op.path for op in trace.operations if op.call == "sync"] == ["."]
    model = Model.of(trace)
    model.run(trace.operations)
    assert {change.operation.path for change in model.pending if change.operation} == {"after"}


@pytest.mark.parametrize("seed", range(12))
def test_a_random_program_is_followed(tmp_path, bench, seed):
    recordings = recorded(tmp_path, bench, RANDOM_CALLS, seed)
    assert recordings.unseen == ()
    assert len(recordings.recorded.trace.operations) > 60


def test_a_store_through_mmap_is_seen_to_be_missing(tmp_path, bench):
    text = """
        import mmap, sys
        with open(sys.argv[1] + "/mapped", "wb+") as file:
            file.truncate(4096)
            with mmap.mmap(file.fileno(), 4096) as view:
                view[:5] = b"hello"
    """
    (reason,) = recorded(tmp_path, bench, text).unseen
    assert reason.startswith("mapped holds bytes that no operation that was seen has written (mmap")


def test_a_file_that_is_moved_in_has_the_content_that_it_had_then(tmp_path, bench):
    text = """
        import os, sys
        elsewhere = os.path.dirname(sys.argv[1]) + "/elsewhere"
        open(elsewhere, "wb").write(b"x" * 5000)
        os.rename(elsewhere, sys.argv[1] + "/here")
        with open(sys.argv[1] + "/here", "ab") as file:
            file.write(b"y")
    """
    recordings = recorded(tmp_path, bench, text)
    assert recordings.unseen == ()  # the model equals the real directory
    (assumed,) = recordings.recorded.trace.assumed
    assert "elsewhere was written elsewhere and moved in as here: nobody saw whether it was synced" in assumed
    (moved,) = [one for one in recordings.recorded.trace.operations if one.operation == "rename"]
    assert moved.data.size_bytes == 5000


def test_a_directory_that_is_moved_in_is_reported(tmp_path, bench):
    text = """
        import os, sys
        elsewhere = os.path.dirname(sys.argv[1]) + "/elsewhere"
        os.mkdir(elsewhere)
        os.rename(elsewhere, sys.argv[1] + "/here")
    """
    reason = recorded(tmp_path, bench, text).unseen[0]
    assert "elsewhere was written elsewhere and moved in as here: nobody saw what is in it" in reason


def test_a_job_that_writes_no_checkpoint_is_told_where_it_wrote(tmp_path, bench):
    text = f"open({str(tmp_path / 'other')!r}, 'w').write('x')"
    with pytest.raises(
        UsageError, match=f"wrote nothing below its checkpoint directory .*it wrote elsewhere: {tmp_path / 'other'}"
    ):
        trace_job(program(tmp_path, text), bench, tmp_path / "runs", once=True)


def test_a_job_that_writes_nothing_at_all(tmp_path, bench):
    with pytest.raises(UsageError, match="the job wrote no file at all"):
        trace_job(program(tmp_path, "pass"), bench, tmp_path / "runs", once=True)


def test_a_job_that_fails_is_shown_with_its_last_words(tmp_path, bench):
    with pytest.raises(UsageError, match=r"did not come to its end(.|\n)*no luck today"):
        trace_job(program(tmp_path, "raise SystemExit('no luck today')"), bench, tmp_path / "runs", once=True)


def test_a_job_that_differs_from_run_to_run_is_inconclusive(tmp_path, bench):
    text = """
        import os, sys
        open(sys.argv[1] + "/file", "wb").write(b"x" * (300 * os.getpid()))
    """
    job = trace_job(program(tmp_path, text), bench, tmp_path / "runs", once=False)
    assert job.inconclusive.startswith("rank 0, operation 2: write file (")


def test_a_name_that_is_drawn_anew_is_no_difference(tmp_path, bench):
    text = """
        import os, sys
        for n in range(2):
            path = f"{sys.argv[1]}/step-{n}.pt"
            open(f"{path}.{os.getpid()}.tmp", "wb").write(b"x" * 5000)
            os.rename(f"{path}.{os.getpid()}.tmp", path)
    """
    job = trace_job(program(tmp_path, text), bench, tmp_path / "runs", once=False)
    assert job.inconclusive == ""
    assert [save.window.name for save in job.saves] == ["step-0.pt", "step-1.pt"]
    points = job.recordings.points(job.saves[1].window)
    (rename,) = [op for op in job.saves[1].operations if op.operation == "rename"]
    assert str(points.point(rename).pattern) == "step-1.pt.*.tmp"
    assert job.saves[1].at_risk == (
        f"the creation of {rename.path} by rank 0 (no fsync of the checkpoint directory)",
        f"the content of {rename.path} by rank 0 (no fsync of the file)",
        "the rename of step-1.pt by rank 0 (no fsync of the checkpoint directory)",
    )


def test_the_order_of_two_ranks_is_learnt(tmp_path, bench):
    # Rank 1 writes, rank 0 waits for it, then commits; both write a file of their own at any time.
    text = """
        import os, sys
        root = sys.argv[1]
        for rank in (0, 1):
            if os.fork() == 0:
                os.environ["RANK"] = str(rank)
                os.execv(sys.executable, [sys.executable, "-S", sys.argv[2], root])
        os.wait(); os.wait()
    """
    child = tmp_path / "child.py"
    child.write_text(
        textwrap.dedent(
            """
            import os, select, sys
            root, rank = sys.argv[1], os.environ["RANK"]
            open(f"{root}/free{rank}", "wb").write(b"x")
            if rank == "1":
                open(f"{root}/shard", "wb").write(b"y")
            else:
                while not os.path.exists(f"{root}/shard"):
                    select.select([], [], [], 0.001)
                open(f"{root}/commit", "wb").write(b"z")
            """
        )
    )
    data = program(tmp_path, text, child).model_dump()
    recordings = record_runs(Scenario.build({**data, "world_sizes": (2,)}), bench, tmp_path / "runs")
    assert recordings.unstable == ""
    points = recordings.points(recordings.recorded.trace.saves()[0])
    at = {
        (op.path, op.operation): (op.rank, op.index) for op in recordings.recorded.trace.operations if isinstance(op, Operation)
    }
    assert points.order.enforced(at["shard", "open"], at["commit", "open"])
    assert points.order.by_luck(at["free0", "open"], at["free1", "open"])
    assert os.path.exists(recordings.recorded.directory.checkpoints / "commit")
