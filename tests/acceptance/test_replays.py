"""Replay files as a user meets them: again and again, over the commits of a trainer, over the versions of a package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tiny_trainers import DOES_NOT_RUN, FORGETS_VELOCITY, MODEL, commit, git, replay_file, wheel, write_trainer

from harness.cli import main
from harness.plan import Expected, read_plan

LOST = Expected("diverged", "none")
DEADLINE_S = 120


@pytest.fixture
def harness(capfd, monkeypatch, tmp_path):
    """Runs a command in this process; gives the exit code, and what was printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in arguments])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return ended.value.code, said.out, said.err

    return run


# --- once, and several times


def test_a_failure_says_in_its_replay_file_what_it_shows_and_a_replay_says_whether_it_does(harness, tmp_path):
    trainer = write_trainer(tmp_path / "trainer", FORGETS_VELOCITY)
    code, out, _ = harness("replay", replay_file(tmp_path / "plan.toml", trainer))
    assert code == 1, out
    assert "reproduced" not in out  # nothing was expected of it
    kept = tmp_path / "runs" / "tiny" / "plan.toml"
    assert read_plan(kept).expected == LOST

    code, out, _ = harness("replay", kept, "--times", "2", "--json", tmp_path / "result.json")
    assert code == 1
    assert out.splitlines()[0].split() == ["run", "answer", "verdict", "seconds", "run", "directory"]
    assert [line.split()[:4] for line in out.splitlines()[1:3]] == [[n, "reproduced", "diverged", "(none)"] for n in "12"]
    assert out.splitlines()[-1] == "reproducibility 2/2 (expected diverged (none))"
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["reproduced"] == {"times": 2, "count": 2, "answers": ["reproduced", "reproduced"]}
    assert document["summary"]["fail"] == 2

    # Mended, it does not reproduce, which is neither a PASS nor a failure.
    write_trainer(trainer, MODEL)
    code, out, _ = harness("replay", kept)
    assert code == 5, out
    assert out.splitlines()[-1] == "does not reproduce: expected diverged (none), found PASS"
    assert out.startswith("PASS")


def test_another_failure_than_the_one_that_is_expected_is_told_apart(harness, tmp_path):
    trainer = write_trainer(tmp_path / "trainer", FORGETS_VELOCITY)
    file = replay_file(tmp_path / "plan.toml", trainer, expected=Expected("resume-crashed", "process"))
    code, out, _ = harness("replay", file)
    assert code == 1
    assert out.splitlines()[-1] == "fails otherwise: expected resume-crashed (process), found diverged (none)"


def test_a_failure_that_is_seen_now_and_then_is_counted(harness, tmp_path):
    # Every second case forgets: the count is kept beside the trainer, over all launches.
    sometimes = MODEL.replace('saved["velocity"]}', 'saved["velocity"] * (resumes() % 2)}') + (
        "\n\ndef resumes():\n"
        "    from pathlib import Path\n"
        "    count = Path(__file__).with_name('resumes')\n"
        "    count.write_text(str(int(count.read_text() if count.exists() else 0) + 1))\n"
        "    return int(count.read_text())\n"
    )
    trainer = write_trainer(tmp_path / "trainer", sometimes)
    code, out, _ = harness("replay", replay_file(tmp_path / "plan.toml", trainer, expected=LOST), "--times", "3")
    assert code == 1
    assert [line.split()[1] for line in out.splitlines()[1:4]] == ["does", "reproduced", "does"]
    assert out.splitlines()[-1] == "reproducibility 1/3 (expected diverged (none))"


def test_versions_that_differ_are_said(harness, tmp_path):
    file = replay_file(tmp_path / "plan.toml", write_trainer(tmp_path / "trainer"), expected=LOST)
    file.write_text(file.read_text().replace('harness = "', 'harness = "0.0.0-before-'))
    code, _, err = harness("replay", file)
    assert code == 5
    assert "note: recorded with harness 0.0.0-before-" in err


# --- over commits


@pytest.fixture
def repository(tmp_path):
    """Six commits of a trainer; the third does not run, the fifth brings the bug."""
    folder = write_trainer(tmp_path / "repository" / "src").parent
    git(folder, "init", "--quiet")
    names = [commit(folder, "Trains")]
    for number, model in enumerate((MODEL, MODEL, DOES_NOT_RUN, MODEL, FORGETS_VELOCITY, FORGETS_VELOCITY)):
        if number:
            write_trainer(folder / "src", f"{model}\n# {number}\n")
            names.append(commit(folder, {2: "Breaks the import", 4: "Forgets the velocity"}.get(number, f"Change {number}")))
    git(folder, "tag", "v1", names[0])
    return folder, names


def contents(folder):
    """Everything in a repository, its `.git` too, with times of change."""
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_the_first_bad_commit_is_found_and_the_check_out_stays_as_it_is(harness, tmp_path, repository):
    folder, names = repository
    file = replay_file(tmp_path / "plan.toml", folder / "src", expected=LOST)
    before = contents(folder)
    code, out, _ = harness("replay", file, "--bisect", "v1", "main", "--json", tmp_path / "found.json")
    assert code == 0, out
    last = out.splitlines()[-3:]
    assert last[0].startswith(f"first bad: {names[4][:7]} ")
    assert last[0].endswith(" Forgets the velocity")
    assert "diverged (none)" in last[1]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["first_bad"] == names[4]
    answers = {run["name"]: run["answer"] for run in found["runs"]}
    assert answers[names[0]] == "good"
    assert answers[names[5]] == answers[names[4]] == "bad"
    assert answers.get(names[2], "skip") == "skip"
    assert f"found after {len(found['runs'])} runs" in last[2]
    assert contents(folder) == before
    assert git(folder, "worktree", "list").count("\n") == 0
    assert not Path(work_trees(out)).exists()


def work_trees(said):
    (line,) = [line for line in said.splitlines() if "work trees are in " in line]
    return line.split("work trees are in ")[1]


def wait_for(condition):
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.01)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_work_trees_go_with_the_harness_however_it_ends(tmp_path, repository, how):
    folder, _ = repository
    file = replay_file(tmp_path / "plan.toml", folder / "src", expected=LOST)
    command = [sys.executable, "-m", "harness.cli", "replay", str(file), "--bisect", "v1", "main"]
    before = contents(folder)
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        place = Path(work_trees(process.stdout.readline()))
        wait_for(lambda: list(place.glob("*/src/train.py")))  # in the middle of a trial
        process.send_signal(how)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == (130 if how == signal.SIGINT else -how), said
    wait_for(lambda: not place.exists())
    assert contents(folder) == before


def test_a_good_end_that_is_bad_and_a_bad_one_that_is_good_are_said(harness, tmp_path, repository):
    folder, names = repository
    file = replay_file(tmp_path / "plan.toml", folder / "src", expected=LOST)
    code, out, _ = harness("replay", file, "--bisect", names[4], names[5])
    assert code == 2
    assert "the good end is bad" in out
    code, out, _ = harness("replay", file, "--bisect", names[0], names[1])
    assert code == 5
    assert "the bad end is good" in out
    code, out, _ = harness("replay", file, "--bisect", names[0], names[2])
    assert code == 3
    assert "an end cannot be judged" in out
    assert "jsonn" in out


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (("v1", "no-such"), "'no-such' is no commit of "),
        (("--upload-pack=x", "main"), "'--upload-pack=x' is no commit of "),
        (("main", "v1"), "comes after v1"),
        (("v1", "v1"), "are the same commit"),
        (("side", "main"), "is no ancestor of main"),
        (("other", "main"), "share no history"),
    ],
)
def test_ends_that_are_no_ends_are_refused(harness, tmp_path, repository, ends, expected):
    folder, _ = repository
    git(folder, "branch", "side", "v1")
    for branch, words in (("side", ()), ("other", ("--orphan",))):
        tree = git(folder, "commit-tree", "-m", branch, *(() if words else ("-p", "v1")), "v1^{tree}")
        git(folder, "branch", "--force", branch, tree)
    code, _, err = harness("replay", replay_file(tmp_path / "plan.toml", folder / "src"), "--bisect", *ends)
    assert code == 2
    assert expected in err


def test_a_repository_that_cannot_be_searched_is_refused(harness, tmp_path, repository):
    folder, _ = repository
    file = replay_file(tmp_path / "plan.toml", folder / "src")
    (folder / "src" / "model.py").write_text("# not committed")
    elsewhere = write_trainer(tmp_path / "elsewhere")
    plain = replay_file(tmp_path / "plain.toml", elsewhere)
    cases = [
        ((file,), "has changes that are in no commit (src/model.py)"),
        ((plain,), "is in no git repository with a check-out"),
        ((plain, "--repo", tmp_path / "nowhere"), "is no directory"),
    ]
    for words, expected in cases:
        code, _, err = harness("replay", *words, "--bisect", "v1", "main")
        assert code == 2
        assert expected in err
    git(folder, "checkout", "--quiet", ".")
    code, _, err = harness("replay", plain, "--repo", folder, "--bisect", "v1", "main")
    assert code == 2
    assert "nothing of the command lies in" in err


# --- over versions of a package


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels that pip is told of, and no other place."""
    links = tmp_path / "links"
    for version, source in {"1.0": MODEL, "1.9": MODEL, "1.10": FORGETS_VELOCITY}.items():
        wheel(links, "model", version, source)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return links


def test_the_first_bad_version_is_found_and_environments_are_kept(harness, tmp_path, index):
    trainer = write_trainer(tmp_path / "trainer", None)
    file = replay_file(tmp_path / "plan.toml", trainer, expected=LOST)
    kept = tmp_path / "environments"
    code, out, _ = harness("replay", file, "--bisect", "model==1.0", "model==1.10", "--environments", kept)
    assert code == 0, out
    assert out.startswith(f"3 versions of model: 1.0, 1.9, 1.10; environments are kept in {kept}")
    assert "first bad: model==1.10" in out
    assert "found after 3 runs" in out
    made = {path: path.stat().st_mtime_ns for path in kept.glob("*/complete")}
    assert len(made) == 3

    # Again, from --versions, with what was kept: nothing is installed, no index is asked, and one version cannot be had.
    for file_of_index in index.iterdir():
        file_of_index.unlink()
    words = ["--package", "model", "--versions", "1.9, 1.9.5, 1.10", "--environments", kept]
    code, out, _ = harness("replay", file, *words)
    assert code == 3
    assert "skip: cannot install model==1.9.5: " in out
    assert "the first bad one is one of:\n  model==1.9.5\n  model==1.10\n" in out
    assert {path: path.stat().st_mtime_ns for path in kept.glob("*/complete")} == made


def test_an_index_that_cannot_be_reached_is_said(harness, tmp_path, monkeypatch, index):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    file = replay_file(tmp_path / "plan.toml", write_trainer(tmp_path / "trainer", None))
    code, _, err = harness("replay", file, "--bisect", "model==1.0", "model==1.10", "--environments", tmp_path / "environments")
    assert code == 2
    assert "cannot ask pip for the versions of model" in err
    assert "expected an index that pip can reach" in err
    assert not (tmp_path / "environments").exists()


# --- what cannot be right


def test_everything_that_is_wrong_is_said_at_once(harness, tmp_path):
    file = replay_file(tmp_path / "plan.toml", write_trainer(tmp_path / "trainer"))
    text = file.read_text().replace("steps = 6", "steps = 0").replace("harness.plan/1", "harness.plan/7")
    file.write_text(text + '\n[expected]\nkind = "divergd"\ncomponent = "none"\n')
    line = {
        word: number for number, row in enumerate(text.splitlines(), 1) for word in ("schema", "steps") if row.startswith(word)
    }
    code, _, err = harness("replay", file, "--times", "0", "--bisect", "torch==1", "main", "--repo", "x")
    assert code == 2
    assert "5 problems; nothing was started" in err
    for expected in (
        f"line {line['schema']}: unknown schema 'harness.plan/7'",
        f"line {line['steps']}: workload.steps: ",
        "expected.kind: found 'divergd'; did you mean diverged?",
        "--times: found '0'; expected a whole number from 1 to 10000",
        "--bisect: found torch==1 main; expected two versions of one package, or two commits",
    ):
        assert expected in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("times", ["0", "-1", "1.5", "many", "10001", "9" * 5000])
def test_times(harness, tmp_path, times):
    file = replay_file(tmp_path / "plan.toml", write_trainer(tmp_path / "trainer"))
    code, _, err = harness("replay", file, "--times", times)
    assert code == 2
    assert "--times: found" in err


def test_a_script_that_has_moved_is_said(harness, tmp_path):
    trainer = write_trainer(tmp_path / "trainer")
    file = replay_file(tmp_path / "plan.toml", trainer)
    (trainer / "train.py").rename(trainer / "main.py")
    code, _, err = harness("replay", file)
    assert code == 2
    assert f"the script {trainer / 'train.py'} does not exist" in err
