from __future__ import annotations

import json

import pytest

from harness.probe import train_reference

CONTRACT = {
    "start": {"world_size", "pid", "python", "torch", "arguments"},
    "resume": {"step", "checkpoint", "skipped", "world_size_saved"},
    "state": {"moment", "step", "digests", "common", "own"},
    "save": {"moment", "step", "checkpoint"},
    "batch": {
        "batch", "step", "epoch", "batch_in_epoch", "tag", "reason", "loss", "global_loss", "learning_rate", "scale",
        "grad_norm", "max_norm", "stepped_norm", "samples", "parameters_finite",
    },
    "end": {"step", "batches"},
}  # fmt: skip


def run(monkeypatch, tmp_path, *arguments: str, faults: str = "") -> tuple[int, list[dict]]:
    log = tmp_path / f"attempt-{len(list(tmp_path.glob('attempt-*'))):03d}"
    monkeypatch.setenv("HARNESS_EVENT_LOG", str(log))
    monkeypatch.setenv("HARNESS_NUMERIC_FAULTS", faults)
    code = train_reference.main(["--out", str(tmp_path / "out"), *arguments])
    path = log / "rank-0.jsonl"
    return code, [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_every_record_has_the_fields_of_the_contract(monkeypatch, tmp_path):
    code, events = run(monkeypatch, tmp_path, "--steps", "4")
    assert code == 0
    assert {event["event"] for event in events} == set(CONTRACT)
    for event in events:
        assert event.keys() == {"event", "rank", "time_s"} | CONTRACT[event["event"]]
    assert events[0]["event"] == "start"
    assert events[-1]["event"] == "end"


@pytest.mark.parametrize("name", ["single", "sharded", "dcp"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_is_loaded_is_what_was_saved(monkeypatch, tmp_path, name, precision):
    arguments = ["--format", name, "--precision", precision, "--steps", "3"]
    _, first = run(monkeypatch, tmp_path, *arguments)
    _, second = run(monkeypatch, tmp_path, *arguments)
    saved = [event["digests"] for event in first if event["event"] == "state" and event["moment"] == "save"]
    loaded = [event["digests"] for event in second if event["event"] == "state" and event["moment"] == "load"]
    assert loaded == saved[-1:]
    assert ("scaler" in loaded[0]) == (precision == "fp16")


def test_numeric_faults_come_from_the_environment(monkeypatch, tmp_path):
    faults = '[{"effect": "nan", "ranks": null, "batch": 2, "times": 1}]'
    _, events = run(monkeypatch, tmp_path, "--steps", "3", faults=faults)
    batches = [event for event in events if event["event"] == "batch"]
    assert [event["tag"] for event in batches] == ["STEP", "SKIP", "STEP"]
    assert (batches[1]["loss"], batches[1]["reason"]) == ("nan", "non_finite_loss")


def test_a_fault_that_is_not_understood_is_wrong_usage(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, tmp_path, faults="nonsense")[0] == 2
    assert "HARNESS_NUMERIC_FAULTS is not JSON" in capsys.readouterr().err


def test_refusals_and_failures_are_recorded(monkeypatch, tmp_path):
    run(monkeypatch, tmp_path, "--steps", "2")
    (tmp_path / "out/step-00000002.pt").write_bytes(b"")
    code, events = run(monkeypatch, tmp_path, "--steps", "2")
    assert (code, events[-1]["event"]) == (3, "refuse")
    (tmp_path / "out/step-00000002.pt").unlink()
    (tmp_path / "out/step-00000001.pt").mkdir()
    code, events = run(monkeypatch, tmp_path, "--steps", "1")
    assert (code, events[-1]["event"]) == (3, "refuse")


def test_without_a_folder_there_is_no_log(monkeypatch, tmp_path):
    monkeypatch.delenv("HARNESS_EVENT_LOG", raising=False)
    monkeypatch.delenv("HARNESS_NUMERIC_FAULTS", raising=False)
    assert train_reference.main(["--out", str(tmp_path / "out"), "--steps", "1"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
