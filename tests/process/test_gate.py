"""The gate on real processes and real files: what has landed when a rank dies, and what it is told when a call fails."""

from __future__ import annotations

import pytest
from jobs import ending, kept, run_job, said

from harness.oracle.fired import unfired

DATA = bytes(range(250)) * 4
OPEN = "fd = os.open('data.tmp', os.O_WRONLY | os.O_CREAT)\n"
WRITES = {
    "write": "os.write(fd, bytes(range(250)) * 4)",
    "writev": "os.writev(fd, [bytes(range(250)), bytes(range(250)) * 2, bytes(range(250))])",
    "pwrite": "os.pwrite(fd, bytes(range(250)) * 4, 0)",
    "pwritev": "os.pwritev(fd, [bytes(range(250)) * 3, bytes(range(250))], 0)",
}


@pytest.mark.parametrize(("position", "landed"), [("25%", 250), ("50%", 500), ("last byte", 999), ("byte 0", 0), ("100%", 1000)])
@pytest.mark.parametrize("call", WRITES)
def test_exactly_the_first_bytes_of_a_torn_write_land(tmp_path, call, position, landed):
    run = run_job(
        tmp_path,
        OPEN + WRITES[call] + "\nsay('value', value='survived')",
        f"sigkill any rank during write data.tmp at {position}",
    )
    assert kept(run, "data.tmp") == DATA[:landed]
    assert said_nothing(run)
    assert ending(run) == ("own-kill", None, "SIGKILL")
    assert run.attempts[0].of("fired")[0]["bytes_landed"] == landed


# Memory that is aligned as O_DIRECT wants it. A file system that knows no O_DIRECT (tmpfs before Linux 6.6) has nothing to align.
DIRECT = """
import fcntl, mmap
pages = mmap.mmap(-1, 8192); pages[:] = bytes(range(256)) * 32
fd = attempt(os.open, 'data.tmp', os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
fd = os.open('data.tmp', os.O_WRONLY | os.O_CREAT) if fd == 'EINVAL' else fd
flags = fcntl.fcntl(fd, fcntl.F_GETFL)
"""
DIRECT_WRITES = {
    "write": "os.write(fd, pages)",
    "writev": "os.writev(fd, [memoryview(pages)[:4096], memoryview(pages)[4096:]])",
    "pwrite": "os.pwrite(fd, pages, 0)",
}


@pytest.mark.parametrize(("position", "landed"), [("50%", 4096), ("last byte", 8191), ("byte 7", 7), ("100%", 8192)])
@pytest.mark.parametrize("call", DIRECT_WRITES)
def test_a_torn_write_past_the_cache_has_any_length(tmp_path, call, position, landed):
    run = run_job(tmp_path, DIRECT + DIRECT_WRITES[call], f"sigkill any rank during write data.tmp at {position}")
    assert kept(run, "data.tmp") == (bytes(range(256)) * 32)[:landed]
    assert ending(run) == ("own-kill", None, "SIGKILL")
    assert run.attempts[0].of("fired")[0]["bytes_landed"] == landed


def test_a_short_write_past_the_cache_leaves_the_file_as_it_was_opened(tmp_path):
    program = DIRECT + "say('value', value=[os.write(fd, pages), flags == fcntl.fcntl(fd, fcntl.F_GETFL)])"
    run = run_job(tmp_path, program, "short-write any rank on write data.tmp at 50%")
    assert said(run) == [[4096, True]]


def said_nothing(run):
    return not run.attempts[0].ranks or not said(run)


def test_a_torn_write_lands_where_the_descriptor_stands(tmp_path):
    program = "fd = os.open('a', os.O_WRONLY | os.O_CREAT)\nos.write(fd, b'first')\nos.write(fd, b'second')"
    run = run_job(tmp_path, program, "sigkill any rank during write a at 50% occurrence 2")
    assert kept(run, "a") == b"firstsec"


CHANGES = {
    "open": ("os.open('new', os.O_WRONLY | os.O_CREAT)", "new", b""),
    "mkdir": ("os.mkdir('new')", "new/", None),
    "rename": ("open('a', 'wb').write(b'x'); os.rename('a', 'new')", "new", b"x"),
    "link": ("open('a', 'wb').write(b'x'); os.link('a', 'new')", "new", b"x"),
    "truncate": ("open('new', 'wb').write(b'xyz'); os.truncate('new', 1)", "new", b"x"),
}


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("operation", CHANGES)
def test_a_rank_dies_before_or_after_a_call(tmp_path, operation, moment):
    program, name, content = CHANGES[operation]
    run = run_job(tmp_path, program + "\nsay('value', value='survived')", f"sigkill any rank {moment} {operation} new")
    assert said_nothing(run)
    assert run.attempts[0].of("fired")
    exists = (run.directory.checkpoints / name).exists()
    if operation == "truncate":
        assert kept(run, name) == (b"x" if moment == "after" else b"xyz")
    else:
        assert exists == (moment == "after")
        assert moment == "before" or content is None or kept(run, name) == content


def test_a_rank_dies_after_an_unlink(tmp_path):
    run = run_job(tmp_path, "open('a', 'wb').write(b'x'); os.unlink('a'); open('b', 'wb')", "sigkill any rank after unlink a")
    assert kept(run, "a") is None
    assert kept(run, "b") is None


FAILING = {
    "open": "attempt(os.open, 'a', os.O_WRONLY | os.O_CREAT)",
    "write": "attempt(os.write, os.open('a', os.O_WRONLY | os.O_CREAT), b'x')",
    "fsync": "attempt(os.fsync, os.open('a', os.O_WRONLY | os.O_CREAT))",
    "rename": "attempt(os.rename, 'old', 'a')",
    "unlink": "attempt(os.unlink, 'a')",
    "mkdir": "attempt(os.mkdir, 'a')",
    "rmdir": "attempt(os.rmdir, 'a')",
    "truncate": "attempt(os.truncate, 'a', 0)",
    "chmod": "attempt(os.chmod, 'a', 0o600)",
    "symlink": "attempt(os.symlink, 'x', 'a')",
}


@pytest.mark.parametrize("name", ["ENOSPC", "EIO"])
@pytest.mark.parametrize("operation", FAILING)
def test_a_call_fails_with_the_error_that_was_asked_for(tmp_path, operation, name):
    run = run_job(tmp_path, f"say('value', value={FAILING[operation]})", f"{name} any rank on {operation} a")
    assert said(run) == [name]
    assert run.attempts[0].operations[-2 if run.attempts[0].operations[-1]["event"] == "mark" else -1]["tampered"]


def test_a_sync_of_everything_cannot_fail(tmp_path):
    program = "os.sync(); say('value', value=attempt(os.fsync, os.open('.', os.O_RDONLY)))"
    assert said(run_job(tmp_path, program, "EIO any rank on fsync .")) == ["EIO"]


def test_a_rank_that_was_forked_is_known_by_its_log(tmp_path):
    program = """
for rank in (1, 0):
    if (pid := os.fork()) == 0:
        log = os.path.join(os.environ["HARNESS_EVENT_LOG"], f"rank-{rank}.jsonl")
        say("start")
        open(f"own-{rank}", "w").close()
        if (helper := os.fork()) == 0:
            open(f"helper-{rank}", "w").close()
            os._exit(0)
        os.waitpid(helper, 0)
        os._exit(0)
    os.waitpid(pid, 0)
open("launcher", "w").close()
"""
    run = run_job(tmp_path, program, world_sizes=(2,))
    opened = {record["path"]: record["rank"] for record in run.attempts[0].operations if record.get("operation") == "open"}
    assert opened == {"own-1": 1, "helper-1": 1, "own-0": 0, "helper-0": 0, "launcher": -1}


def test_occurrence_counts_and_times_repeats(tmp_path):
    program = "fd = os.open('a', os.O_WRONLY | os.O_CREAT)\nfor i in range(6): say('value', value=attempt(os.write, fd, b'x'))"
    run = run_job(tmp_path, program, "EIO any rank on write a occurrence 2 times 3")
    assert said(run) == [1, "EIO", "EIO", "EIO", 1, 1]


def test_always_means_from_then_on(tmp_path):
    program = "fd = os.open('a', os.O_WRONLY | os.O_CREAT)\nfor i in range(4): say('value', value=attempt(os.write, fd, b'x'))"
    run = run_job(tmp_path, program, "ENOSPC any rank on write a occurrence 3 always")
    assert said(run) == [1, 1, "ENOSPC", "ENOSPC"]


def test_a_short_write_returns_what_has_landed(tmp_path):
    program = "fd = os.open('a', os.O_WRONLY | os.O_CREAT)\nsay('value', value=os.write(fd, b'x' * 1000)); os.write(fd, b'y')"
    run = run_job(tmp_path, program, "short-write any rank on write a at 30%")
    assert said(run) == [300]
    assert kept(run, "a") == b"x" * 300 + b"y"


def test_a_quota_cuts_the_write_then_refuses_and_frees_on_unlink(tmp_path):
    program = """
a = os.open('a', os.O_WRONLY | os.O_CREAT)
say('value', value=[attempt(os.write, a, b'x' * 600), attempt(os.write, a, b'x' * 600), attempt(os.write, a, b'x')])
os.unlink('a'); os.close(a)
b = os.open('b', os.O_WRONLY | os.O_CREAT)
say('value', value=attempt(os.write, b, b'x' * 600))
"""
    run = run_job(tmp_path, program, "quota 1000 bytes")
    assert said(run) == [[600, 400, "ENOSPC"], 600]
    assert [record["fault"] for record in run.attempts[0].of("fired")] == ["quota 1000 bytes"]


def test_a_real_file_system_is_full_and_its_files_are_kept(tmp_path):
    program = """
a = os.open('a', os.O_WRONLY | os.O_CREAT)
first = attempt(os.write, a, b'x' * 100_000)
second = attempt(os.write, a, b'x')
say('value', value=[first, second, os.stat('a').st_size])
"""
    run = run_job(tmp_path, program, "full-disk 65536 bytes")
    assert said(run) == [[65536, "ENOSPC", 65536]]
    assert kept(run, "a") == b"x" * 65536
    assert run.attempts[0].of("fired")
    assert run.attempts[0].of("disk")


@pytest.mark.parametrize(
    "write",
    [
        "open(os.path.join(ckpt, 'a'), 'wb', buffering=0).write(b'xyz')",
        "os.write(os.open('../checkpoints/./a', os.O_WRONLY | os.O_CREAT), b'xyz')",
        "os.write(os.open('a', os.O_WRONLY | os.O_CREAT, dir_fd=os.open(ckpt, os.O_RDONLY)), b'xyz')",
        "os.symlink(ckpt, '../link'); os.write(os.open('../link/a', os.O_WRONLY | os.O_CREAT), b'xyz')",
        "import threading; t = threading.Thread(target=lambda: open('a', 'wb', buffering=0).write(b'xyz')); t.start(); t.join()",
        "pid = os.fork()\nif pid == 0:\n    open('a', 'wb', buffering=0).write(b'xyz'); os._exit(0)\nos.waitpid(pid, 0)",
        "fd = os.open('a', os.O_WRONLY | os.O_CREAT); os.write(os.dup(fd), b'xyz')",
        "import fcntl; fd = os.open('a', os.O_WRONLY | os.O_CREAT); os.write(fcntl.fcntl(fd, fcntl.F_DUPFD, 0), b'xyz')",
        "import fcntl; fd = os.open('a', os.O_WRONLY | os.O_CREAT); os.write(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 9), b'xyz')",
        "fd = os.open('a', os.O_WRONLY | os.O_CREAT); os.dup2(fd, 700); os.write(700, b'xyz')",
        "os.mkdir('d'); os.symlink('d', 'e'); open('e/../a', 'wb', buffering=0).write(b'xyz')",
    ],
)
def test_a_path_is_recognised_however_it_is_reached(tmp_path, write):
    run = run_job(tmp_path, write, "sigkill all ranks during write a at byte 1")
    assert kept(run, "a") == b"x"
    assert run.attempts[0].of("fired")


def test_operations_outside_the_checkpoint_directory_are_left_alone(tmp_path):
    program = "open('../outside', 'wb').write(b'x'); say('value', value=open('../outside', 'rb').read().decode())"
    run = run_job(tmp_path, program, "sigkill any rank before write outside")
    assert said(run) == ["x"]
    assert not run.attempts[0].of("fired")
    assert not [record for record in run.attempts[0].operations if record["event"] == "operation"]


def test_io_uring_is_refused_so_that_nothing_passes_unseen(tmp_path):
    program = """
import ctypes
ctypes.CDLL(None, use_errno=True).syscall(425, 1, 0)
say('value', value=errno.errorcode[ctypes.get_errno()])
"""
    assert said(run_job(tmp_path, program)) == ["ENOSYS"]


def test_a_step_fault_strikes_after_the_line_was_written(tmp_path):
    program = "for step in range(1, 9): say('batch', step=step, tag='STEP')"
    run = run_job(tmp_path, program, "sigkill rank 0 at step 3")
    assert [record["step"] for record in run.attempts[0].ranks[0].of("batch")] == [1, 2, 3]


def test_reads_are_trapped_only_when_a_fault_speaks_of_them(tmp_path):
    program = "open('a', 'wb').write(b'x'); open('a', 'rb').read(); say('value', value='survived')"
    assert said(run_job(tmp_path / "one", program)) == ["survived"]
    run = run_job(tmp_path / "two", program, "sigkill any rank before read a")
    assert said_nothing(run)
    assert run.attempts[0].of("fired")[0]["operation"] == "read"


def test_the_log_has_every_operation_in_order(tmp_path):
    program = """
os.mkdir('d')
f = open('d/a.tmp', 'wb', buffering=0)
f.write(b'xyz')
os.fsync(f)
os.rename('d/a.tmp', 'd/a')
os.unlink('d/a')
"""
    run = run_job(tmp_path, program)
    seen = [(r["operation"], r["path"], r["to"], r["size_bytes"]) for r in run.attempts[0].operations]
    assert seen == [
        ("mkdir", "d", None, 0),
        ("open", "d/a.tmp", None, 0),
        ("write", "d/a.tmp", None, 3),
        ("fsync", "d/a.tmp", None, 0),
        ("rename", "d/a.tmp", "d/a", 0),
        ("unlink", "d/a", None, 0),
    ]
    assert [r["n"] for r in run.attempts[0].operations] == [1, 2, 3, 4, 5, 6]


def test_a_descriptor_that_escapes_to_a_low_number_is_reported(tmp_path):
    run = run_job(tmp_path, "fd = os.open('a', os.O_WRONLY | os.O_CREAT); os.dup2(fd, 77); os.write(77, b'xyz')")
    assert "a was copied to descriptor 77" in run.attempts[0].of("escaped")[0]["what"]


def test_an_open_does_what_the_kernel_would_do(tmp_path):
    program = """
os.umask(0o027)
fd = os.open('a', os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
os.write(fd, b'abc'); os.lseek(fd, 0, 0)
say('value', value=[oct(os.stat('a').st_mode & 0o777), os.read(fd, 9).decode(), os.get_inheritable(fd)])
new = os.O_WRONLY | os.O_CREAT
say('value', value=[attempt(os.open, 'a', new | os.O_EXCL), attempt(os.open, 'none/x', new)])
say('value', value=attempt(os.open, 'a/x', os.O_WRONLY | os.O_CREAT))
open('b', 'w').write('1'); open('b', 'a').write('2'); say('value', value=open('b').read())
os.mkfifo('pipe')
say('value', value=os.open('pipe', os.O_RDWR) < 512)
"""
    assert said(run_job(tmp_path, program)) == [["0o640", "abc", False], ["EEXIST", "ENOENT"], "ENOTDIR", "12", True]


def test_many_files_may_be_open_at_once(tmp_path):
    program = """
files = [open(f'f{i}', 'wb', buffering=0) for i in range(200)]
for file in files: file.write(b'x')
say('value', value=len(os.listdir('.')))
"""
    run = run_job(tmp_path, program)
    assert said(run) == [200]
    assert sum(record["operation"] == "write" for record in run.attempts[0].operations if record["event"] == "operation") == 200


def test_a_share_of_a_few_bytes_is_at_least_one_so_that_a_retry_gets_on(tmp_path):
    program = "fd = os.open('a', os.O_WRONLY | os.O_CREAT)\nsay('value', value=[os.write(fd, b'xyz'), os.write(fd, b'x')])"
    assert said(run_job(tmp_path, program, "short-write any rank on write a at 30% always")) == [[1, 1]]


def test_two_faults_on_one_call_say_which_of_them_took_it(tmp_path):
    faults = ("EIO rank 0 on write a", "ENOSPC rank 0 on write a")
    program = "fd = os.open('a', os.O_WRONLY | os.O_CREAT); say('value', value=attempt(os.write, fd, b'x'))"
    run = run_job(tmp_path, program, *faults)
    assert said(run) == ["EIO"]
    eclipsed = run.attempts[0].of("eclipsed")
    assert [(r["fault"], r["by"]) for r in eclipsed] == [(faults[1], faults[0])]
    assert "answered by 'EIO rank 0 on write a'" in unfired(run)[0].message
