"""How processes end, how the harness names it, and that none is left, whoever dies first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from jobs import ending, kept, run_job, said

from harness import supervisor
from harness.errors import UsageError
from harness.launch.cold import ColdLaunch
from harness.launch.folder import sweep
from harness.scenario import job
from harness.session import Session

DEADLINE_S = 60.0
ROOT = Path(__file__).resolve().parents[2]


def wait_for(condition, what):
    """Polls until the condition holds; fails the test at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {DEADLINE_S:g} s for {what}")
        os.sched_yield()


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("sys.exit(0)", ("exited", 0, None)),
        ("sys.exit(3)", ("exited", 3, None)),
        ("os.kill(os.getpid(), 11)", ("crashed", None, "SIGSEGV")),
        ("os.abort()", ("crashed", None, "SIGABRT")),
        ("os.kill(os.getpid(), 9)", ("foreign-death", None, "SIGKILL")),
        ("os.kill(os.getpid(), 15)", ("foreign-death", None, "SIGTERM")),
    ],
)
def test_an_end_that_the_harness_did_not_cause(tmp_path, program, expected):
    assert ending(run_job(tmp_path, program)) == expected


def test_code_that_a_load_has_run_is_recorded(tmp_path):
    made = "os.makedirs(os.path.join(os.path.dirname(ckpt), 'executed-by-load'))"
    assert [record["path"] for record in run_job(tmp_path / "a", made).attempts[0].of("executed")] == ["executed-by-load"]
    assert run_job(tmp_path / "b", "pass").attempts[0].of("executed") == []


def test_a_job_that_never_ends_is_a_hang(tmp_path):
    run = run_job(tmp_path, "import signal; signal.pause()", deadline_s=2.0)
    assert ending(run) == ("hang", None, "SIGKILL")


def test_a_job_that_is_ended_before_it_was_heard_of_is_a_hang_too(tmp_path):
    run = run_job(tmp_path, "import signal; signal.pause()", deadline_s=0.001)
    assert ending(run) == ("hang", None, "SIGKILL")


def test_a_job_that_has_finished_but_does_not_exit_is_named_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "EXIT_GRACE_S", 0.5)
    run = run_job(tmp_path, "say('end', step=0, batches=0)\nimport signal; signal.pause()")
    assert ending(run) == ("finished-but-did-not-exit", None, "SIGKILL")


def test_a_stopped_job_is_ended_when_nobody_waits_for_it(tmp_path):
    run = run_job(tmp_path, "open('a', 'wb')", "sigstop all ranks before open a")
    assert ending(run) == ("stopped", None, "SIGKILL")
    assert kept(run, "a") is None


def test_a_handled_sigterm_is_an_exit_of_its_own(tmp_path):
    program = "import signal; signal.signal(15, lambda *_: sys.exit(7)); open('a', 'wb'); signal.pause()"
    assert ending(run_job(tmp_path, program, "sigterm any rank before open a")) == ("exited", 7, None)


def test_output_goes_to_the_run_directory(tmp_path):
    run = run_job(tmp_path, "print('to out'); print('to err', file=sys.stderr)")
    folder = run.directory.attempt(0)
    assert (folder / "launcher.stdout").read_text() == "to out\n"
    assert run.attempts[0].stderr(0) == "to err\n"


def test_a_command_that_does_not_exist_is_said(tmp_path):
    from harness.launch.cold import ColdLaunch
    from harness.plan import make_plan
    from harness.scenario import Scenario
    from harness.store import RunDirectory, read_run
    from harness.supervisor import run_attempts

    workload = {"kind": "command", "command": ("/no/such/trainer",)}
    plan = make_plan(Scenario.build({"workload": workload, "world_sizes": (1,), "launch": "cold", "max_attempts": 1}))
    directory = RunDirectory.create(tmp_path / "run", plan)
    run_attempts(plan, directory, ColdLaunch())
    run = read_run(directory.path)
    assert ending(run) == ("exited", 127, None)
    assert "cannot start '/no/such/trainer'" in run.attempts[0].stderr(0)


ORPHAN = """
import signal
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode())
        signal.pause()
    os._exit(0)
say('value', value=int(os.read(read, 20)))
"""


def test_a_process_that_outlives_the_job_is_reported_and_ended(tmp_path):
    run = run_job(tmp_path, ORPHAN)
    (orphan,) = said(run)
    assert [pid for pid, _ in run.attempts[0].of("leftover")[0]["processes"]] == [orphan]
    assert not alive(orphan)


def test_a_shared_memory_segment_that_outlives_the_job_is_reported(tmp_path):
    name = Path("/dev/shm") / "placeholder"
    run = run_job(tmp_path, "name = f'/dev/shm/torch_{os.getpid()}_left'; open(name, 'w'); say('value', value=name)")
    name = Path(said(run)[0])
    assert run.attempts[0].of("leftover")[0]["shared_memory"] == [name.name]
    name.unlink()


def run_and_kill_the_supervisor(tmp_path, launch):
    """Starts a case in a process of its own, kills that with SIGKILL while ranks run, returns the ranks' process ids."""
    program = """
import sys
from pathlib import Path
from harness.case import Workbench
from harness.plan import make_plan
from harness.scenario import job
from harness.session import Session
from harness.store import RunDirectory
from harness.supervisor import run_attempts
session = Session.new()
print(session.directory, flush=True)
runs = Path(sys.argv[1])
scenario = job("single", ranks=2, launch=sys.argv[2], steps=100000, save_every=50000)
plan = make_plan(scenario)
directory = RunDirectory.create(runs / "run", plan)
run_attempts(plan, directory, Workbench(runs, runs, session.warm()).launcher(scenario))
"""
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path), launch], stdout=subprocess.PIPE, text=True)
    session = Path(process.stdout.readline().strip())
    attempt = tmp_path / "run" / "attempt-000"

    def training():
        return process.poll() is not None or all(
            (attempt / f"rank-{rank}.jsonl").exists() and b'"batch"' in (attempt / f"rank-{rank}.jsonl").read_bytes()
            for rank in (0, 1)
        )

    wait_for(training, "both ranks to train")
    assert process.poll() is None
    below = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    process.kill()
    process.wait()
    process.stdout.close()
    return below, session


@pytest.mark.parametrize("launch", ["warm", "cold", "torchrun"])
def test_everything_dies_with_a_supervisor_that_gets_sigkill(tmp_path, launch):
    below, session = run_and_kill_the_supervisor(tmp_path, launch)
    assert len(below) >= 3  # a keeper and two ranks at least
    wait_for(lambda: not any(alive(pid) for pid in below), f"processes {below} to end")
    if launch != "warm":  # no server was there to do it
        sweep(session.parent)
    wait_for(lambda: not session.exists(), "the session's directory to be removed")


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_line(process):
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended meanwhile, or is a zombie of another test
        return []


HOLDING = """
import sys
from dataclasses import replace
from harness.session import Session
warm = Session.new().warm()
print(warm.session, flush=True)
replace(warm, modules=tuple(sys.argv[1:])).connect() if sys.argv[1:] else sys.stdin.read()
"""


@pytest.fixture
def place():
    """A place for sessions whose name is short: sockets are made below it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def holding(folder, *modules):
    """A process with a session, which ends with its input; or which waits for a warm server that imports these modules."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    words = [sys.executable, "-c", HOLDING, *modules]
    process = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_session_leaves_is_removed_by_the_next_one_and_nothing_else(place):
    left, living = (holding(place) for _ in range(2))
    others = [place / name for name in ("harness-1-0123abcd", "harness-bench-x", "harness-2-0123abcd.kept")]
    for other in others:
        other.mkdir()
    (others[1] / "in-use").touch()
    (others[2] / "in-use").touch()
    pointed = place / "harness-3-0123abcd"
    pointed.symlink_to(others[2])
    left[0].kill()
    left[0].wait()
    new = holding(place)
    assert not left[1].exists()
    assert [path for path in (living[1], new[1], *others, pointed) if not path.exists()] == []
    assert (others[2] / "in-use").exists()
    for process, _ in (living, new):
        process.communicate()
    assert holding_ends_with_a_sweep(place, living[1], new[1])
    left[0].stdin.close()
    left[0].stdout.close()


def holding_ends_with_a_sweep(folder, *left):
    """A session that ends without its goodbye is swept as well."""
    sweep(folder)
    return not any(path.exists() for path in left)


def test_a_session_that_is_killed_while_its_server_imports_leaves_nothing(place):
    os.mkfifo(place / "go")
    (place / "slow.py").write_text(f"open({str(place / 'importing')!r}, 'w'); open({str(place / 'go')!r}).read()")
    process, session = holding(place, "slow")
    wait_for((place / "importing").exists, "the server to import")
    process.kill()
    process.communicate()
    sweep(place)
    wait_for(lambda: not session.exists(), "the session's directory to be removed")
    # It has ended in the middle of the import: nobody reads any more what is written.
    with pytest.raises(OSError, match="No such device or address"):
        os.open(place / "go", os.O_WRONLY | os.O_NONBLOCK)


def test_what_killed_ranks_leave_among_temporary_files_goes_with_the_session(tmp_path, monkeypatch):
    from harness.case import Workbench

    session = Session.new()
    launcher = Workbench(tmp_path, tmp_path, session.warm()).launcher(job("single", launch="cold"))
    program = "import tempfile; say('value', value=tempfile.mkdtemp()); open('a', 'wb')"
    monkeypatch.setattr("jobs.ColdLaunch", lambda: launcher)
    left = Path(said(run_job(tmp_path, program, "sigkill all ranks before open a"))[0])
    assert left.exists()
    assert left.parent == session.directory / "tmp"
    session.close()
    assert not left.exists()
    # Too long a name would leave no room for sockets in it: then it stays as the user has it.
    assert ColdLaunch(tmp_path / ("x" * 80))._environment() is None


def test_a_long_directory_for_temporary_files_is_no_place_for_sockets(tmp_path):
    folder = tmp_path / ("long-" * 20)
    folder.mkdir()
    program = """
from dataclasses import replace
from harness.session import Session
session = Session.new()
replace(session.warm(), modules=("json",)).connect().close()
print(session.directory)
session.close()
"""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent in (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
    assert list(folder.iterdir()) == []


def test_where_no_short_directory_can_be_written_to_that_is_said(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/" + "x" * 80)
    monkeypatch.setattr("harness.session._SHORT_PLACES", ("/no-such",))
    with pytest.raises(UsageError, match=r"whose name has at most 62 bytes. Set TMPDIR to one"):
        Session.new()


def test_one_warm_server_serves_all_and_leaves_when_told():
    session = Session.new()
    warm = session.warm()
    for _ in range(3):
        warm.connect().close()
    below = f"{warm.session}/"
    everyone = psutil.Process().children(recursive=True)
    named = [child for child in everyone if any(word.startswith(below) for word in command_line(child))]
    # A keeper is forked from the server, and the last one may not have ended yet.
    servers = [process for process in named if process.ppid() not in {other.pid for other in named}]
    assert len(servers) == 1
    session.close()
    wait_for(lambda: not alive(servers[0].pid), "the warm server to end")
    assert not session.directory.exists()


def test_warm_and_cold_and_torchrun_write_the_same_event_log(tmp_path):
    from harness.baseline import first_difference
    from harness.case import Workbench
    from harness.plan import make_plan
    from harness.store import RunDirectory, read_rank_logs
    from harness.supervisor import run_attempts

    session = Session.new()
    logs = {}
    for launch in ("warm", "cold", "torchrun"):
        scenario = job("sharded", ranks=2, launch=launch, name=launch)
        plan = make_plan(scenario)
        directory = RunDirectory.create(tmp_path / launch, plan)
        run_attempts(plan, directory, Workbench(tmp_path, tmp_path, session.warm()).launcher(scenario))
        logs[launch] = read_rank_logs(directory.attempt(0))
        assert all(log.ended for log in logs[launch].values())
    session.close()
    assert first_difference(logs["warm"], logs["cold"]) == ""
    assert first_difference(logs["warm"], logs["torchrun"]) == ""


def test_the_signal_that_ends_a_rank_is_sent_to_that_process_only(tmp_path):
    bystander = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        run_job(tmp_path, "open('a', 'wb')", "sigkill all ranks before open a")
        assert bystander.poll() is None
    finally:
        bystander.send_signal(signal.SIGKILL)
        bystander.wait()


def test_a_rank_dies_in_a_save_under_torchrun_and_the_job_resumes(check_resume):
    check_resume(
        job("sharded", ranks=2, launch="torchrun", faults="sigkill rank 1 during write step-00000016/rank1.bin.tmp at 50%")
    )


def test_an_undisturbed_job_through_torchrun_equals_the_warm_one(check_resume):
    check_resume(job("dcp", ranks=2, launch="torchrun"))
