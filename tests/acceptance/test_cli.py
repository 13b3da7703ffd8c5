"""The command line as a user meets it: exit codes, one error with everything wrong in it, nothing started."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

import pytest

from harness.errors import HarnessError
from harness.interval import measure_saves_s
from harness.plan import make_plan, write_plan
from harness.scenario import job

TIMEOUT_S = 300
# Two minutes on two cores with nothing beside it; here are other tests.
BENCH_TIMEOUT_S = 1200


def harness(*arguments, timeout=TIMEOUT_S, **settings):
    command = [sys.executable, "-m", "harness.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **settings)


def plan_file(path, *, edit=lambda text: text, **settings):
    write_plan(make_plan(job(**{"format": "single", "ranks": 1, "steps": 12, **settings})), path)
    path.write_text(edit(path.read_text()))
    return path


def test_a_replay_that_passes(tmp_path):
    file = plan_file(tmp_path / "plan.toml", faults="sigkill rank 0 at step 6")
    result = harness("replay", file, "--out", tmp_path / "runs", "--json", tmp_path / "result.json")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "PASS" in result.stdout
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["schema"] == "harness.result/1"
    assert document["summary"]["pass"] == 1
    assert document["baseline"] == {"steps": 12, "deterministic": True}
    (case,) = document["cases"]
    assert (case["verdict"], case["max_loss_diff"], case["resumed_from"], case["lost_steps"]) == ("PASS", 0.0, 4, 2)


def test_a_replay_that_fails_prints_the_line_that_repeats_it_and_that_line_works(tmp_path):
    file = plan_file(tmp_path / "plan.toml", faults="sigkill rank 0 at step 6", defects=("no-optimizer",))
    result = harness("replay", file, "--out", tmp_path / "runs")
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stdout.startswith("FAIL diverged: loss differs at step ")
    assert "lost: optimizer (digest " in result.stdout
    words = result.stdout.split("repeat: harness ")[1].split()
    again = harness(*words, "--out", tmp_path / "again")
    assert again.returncode == 1
    assert again.stdout.splitlines()[:3] == result.stdout.splitlines()[:3]
    judged = harness("judge", os.path.dirname(words[1]))
    assert judged.returncode == 1
    assert judged.stdout.splitlines()[:3] == result.stdout.splitlines()[:3]


def test_a_fault_that_does_not_fire_is_inconclusive(tmp_path):
    file = plan_file(tmp_path / "plan.toml", faults="sigkill rank 0 before write no-such-file")
    result = harness("replay", file, "--out", tmp_path / "runs")
    assert result.returncode == 3, result.stdout + result.stderr
    assert "fault-did-not-fire" in result.stdout


def replace(old, new):
    def edit(text):
        assert old in text
        return text.replace(old, new)

    return edit


BAD_PLANS = {
    "unknown fault word": (replace("faults = []", 'faults = ["explode rank 0 at step 3"]'), "unknown fault word 'explode'"),
    "impossible rank": (replace("faults = []", 'faults = ["sigkill rank 7 at step 3"]'), "there is no rank 7"),
    "path outside": (replace("faults = []", 'faults = ["EIO rank 0 on write /etc/passwd"]'), "leaves the checkpoint directory"),
    "path that climbs": (replace("faults = []", 'faults = ["delete newest/../../x"]'), "leaves the checkpoint directory"),
    "unknown format": (replace('format = "single"', 'format = "zip"'), "workload.format"),
    "number of ranks": (replace("world_sizes = [1]", "world_sizes = [0]"), "world_sizes"),
    "no TOML": (replace("schema", "=schema"), "is no TOML"),
    "other schema": (replace("harness.plan/1", "harness.plan/9"), "unknown schema"),
}


@pytest.mark.parametrize("case", BAD_PLANS)
def test_a_bad_replay_file_is_refused_before_anything_starts(tmp_path, case):
    edit, expected = BAD_PLANS[case]
    file = plan_file(tmp_path / "plan.toml", edit=edit)
    result = harness("replay", file, "--out", tmp_path / "runs")
    assert result.returncode == 2
    assert expected in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "runs").exists()


def test_everything_that_is_wrong_is_said_at_once(tmp_path):
    def edit(text):
        text = replace("faults = []", 'faults = ["explode rank 0", "sigkill rank 5 at step 3"]')(text)
        return replace("steps = 12", 'steps = "many"')(text)

    result = harness("replay", plan_file(tmp_path / "plan.toml", edit=edit), "--out", tmp_path / "runs")
    assert result.returncode == 2
    for text in ("explode", "there is no rank 5", "workload.steps"):
        assert text in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["replay", "/no/such/file"], "cannot read the replay file"),
        (["judge", "/no/such/run"], "is no run directory"),
        (["replay"], "Missing argument 'FILE'"),
        (["expload"], "No such command 'expload'"),
        (["bench", "--cases", "none"], "--cases: found 'none'; expected a whole number from 1 to 10000"),
        (["bench", "--save-width", "10"], "--save-width: found '10'; expected a multiple of 4"),
    ],
)
def test_wrong_usage_has_exit_code_2_and_no_traceback(arguments, expected):
    result = harness(*arguments)
    assert result.returncode == 2
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


def test_everything_that_is_wrong_with_a_bench_is_said_at_once(tmp_path):
    bad = {"--cases": "0", "--cold-cases": "x", "--save-width": "7", "--states": "-1"}
    words = [word for pair in bad.items() for word in pair]
    result = harness("bench", *words, "--everything", "--json", tmp_path)
    assert result.returncode == 2
    assert "6 problems; nothing was started" in result.stderr
    assert all(f"{option}: found '{value}'" in result.stderr for option, value in bad.items())
    assert f"cannot write {tmp_path}: it is a directory; expected a file" in result.stderr
    assert "--everything is for --defects" in result.stderr


@pytest.mark.parametrize("options", [["--defects"], []])
def test_a_bench_whose_figures_cannot_be_written_is_refused_at_the_start(tmp_path, options):
    for file, why in ((tmp_path / "no" / "x.json", "there is no directory"), ("/proc/x.json", "expected a file in a writable")):
        result = harness("bench", *options, "--json", file)
        assert (result.returncode, result.stdout) == (2, "")
        assert f"cannot write {file}: " in result.stderr
        assert why in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_broken_plan_and_places_that_cannot_be_written_to_are_said_at_once(tmp_path):
    def edit(text):
        text = replace("harness.plan/1", "harness.plan/9")(text)
        return replace('name = "case"', 'name = "../../x"')(replace("steps = 12", "steps = 0")(text))

    file = plan_file(tmp_path / "plan.toml", edit=edit)
    for out, json_file in ((file / "runs", tmp_path / "no" / "x.json"), ("/proc/runs", tmp_path)):
        result = harness("replay", file, "--out", out, "--json", json_file)
        assert result.returncode == 2
        assert "5 problems; nothing was started" in result.stderr
        for text in ("unknown schema", "name: expected", "workload.steps", f"cannot write to {out}", f"cannot write {json_file}"):
            assert text in result.stderr
        assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]


def test_a_verdict_that_cannot_be_saved_is_printed_all_the_same(tmp_path):
    file = plan_file(tmp_path / "plan.toml", steps=8, faults="sigkill rank 0 at step 6", name="kept")
    # In a folder that the run makes itself.
    result = harness("replay", file, "--out", tmp_path / "runs", "--json", tmp_path / "runs" / "result.json")
    assert result.returncode == 0, result.stdout + result.stderr
    verdict = tmp_path / "runs" / "kept" / "verdict.json"
    verdict.unlink()
    verdict.mkdir()
    judged = harness("judge", tmp_path / "runs" / "kept")
    assert judged.returncode == 0
    assert judged.stdout.startswith("PASS")
    assert judged.stderr == (
        f"harness: the verdict could not be saved: cannot write {verdict}: Is a directory; "
        "expected a file in a writable directory\n"
    )


def test_an_output_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    result = harness("replay", plan_file(tmp_path / "plan.toml"), "--out", tmp_path / "file" / "runs")
    assert result.returncode == 2
    assert "cannot write to" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_interpreter_without_torch_is_said(tmp_path):
    """The warm server runs in an interpreter in which torch cannot be imported."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = harness("replay", plan_file(tmp_path / "plan.toml"), "--out", tmp_path / "runs", env=environment)
    assert result.returncode == 2
    assert "no torch here" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_command_that_does_not_exist_is_said(tmp_path):
    workload = {"kind": "command", "command": ("/no/such/trainer",)}
    from harness.scenario import Scenario

    write_plan(make_plan(Scenario.build({"workload": workload, "world_sizes": (1,), "launch": "cold"})), tmp_path / "plan.toml")
    result = harness("replay", tmp_path / "plan.toml", "--out", tmp_path / "runs")
    assert result.returncode == 2
    assert "/no/such/trainer" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_doctor_tries_everything():
    result = harness("doctor")
    assert result.returncode == 0, result.stdout
    for ability in ("seccomp user notification", "pidfd_getfd", "private mounts and tmpfs", "torch with gloo", "loopback"):
        assert ability in result.stdout


def test_the_bench_prints_ratios(tmp_path):
    short = ("--cases", "1", "--cold-cases", "1", "--save-width", "64", "--states", "4")
    result = harness("bench", *short, "--json", tmp_path / "bench.json", timeout=BENCH_TIMEOUT_S)
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "bench.json").read_text())
    assert figures["schema"] == "harness.bench/1"
    assert figures["warm_over_cold"] == pytest.approx(figures["cases_per_min_warm"] / figures["cases_per_min_cold"])
    assert min(figures["gate_write_us"], figures["plain_write_us"]) > 0
    assert figures["rank_extra_memory_mb"] > 0
    assert figures["states_distinct"] == 4
    assert figures["states_over_rerun"] == pytest.approx(figures["states_per_min"] * figures["rerun_s"] / 60)
    assert min(figures["trace_gb_s"], figures["plain_gb_s"]) > 0
    for ratio in ("sharded_over_plain_write", "async_block_over_sync"):
        least, greatest = figures[f"{ratio}_range"]
        assert 0 < least <= figures[ratio] <= greatest
    assert "warm_over_cold" in result.stdout


def test_the_interval_is_worked_out_from_the_saves_of_a_real_job(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    result = harness("interval", "--format", "sharded", "--machines", "8", "--json", tmp_path / "interval.json", env=environment)
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "interval.json").read_text())
    assert figures["schema"] == "harness.interval/1"
    assert len(figures["saves_s"]) == 12
    assert all(0 < seconds < 60 for seconds in figures["saves_s"])
    assert figures["save_s"] == pytest.approx(statistics.median(figures["saves_s"]))
    assert figures["job"]["machines"] == 8
    assert figures["job"]["mtbf_s"] == pytest.approx(6300 * 3600 / 8)
    assert figures["job"]["interval_s"] == pytest.approx((2 * figures["save_s"] * figures["job"]["mtbf_s"]) ** 0.5)
    assert "median of 12 saves of the reference trainer (sharded, 2 ranks)" in result.stdout
    # torch leaves a cache folder of its own in TMPDIR.
    assert [name for name in os.listdir(tmp_path) if name.startswith("harness-")] == [], "nothing is left behind"


def test_the_interval_for_a_cost_that_is_given_shows_where_the_formula_stops_holding(tmp_path):
    result = harness("interval", "--save-cost", "60", "--machine-mtbf", "6300", "--json", tmp_path / "interval.json")
    assert result.returncode == 0, result.stderr
    rows = json.loads((tmp_path / "interval.json").read_text())["rows"]
    assert [row["machines"] for row in rows] == [1, 10, 100, 1_000, 10_000, 100_000]
    assert [row["holds"] for row in rows] == [True, True, True, False, False, False]
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert "formula holds" in lines["100"]
    assert "does not hold: 27 % too high" in lines["100,000"]


def test_everything_that_is_wrong_with_an_interval_is_said_at_once(tmp_path):
    bad = {"--format": "zip", "--ranks": "5", "--machine-mtbf": "nan", "--machines": "0", "--save-cost": "-1"}
    words = [f"{option}={value}" for option, value in bad.items()]
    result = harness("interval", *words, "--json", tmp_path / "no" / "file.json")
    assert result.returncode == 2
    assert "6 problems; nothing was started" in result.stderr
    assert all(option in result.stderr for option in bad)
    assert "Traceback" not in result.stderr


def test_saves_of_a_job_that_does_not_end_are_no_measurement():
    with pytest.raises(HarnessError, match="the job whose saves were to be timed did not end well"):
        measure_saves_s(job("single", ranks=1, steps=4, save_every=2, faults="sigkill rank 0 at step 3", max_attempts=2))


def test_help_of_every_command_has_an_example():
    for command in ("replay", "judge", "doctor", "bench", "interval"):
        assert "Example: harness " + command in harness(command, "--help").stdout
