from __future__ import annotations

from dataclasses import replace

import pytest
from histories import STEPS, attempt, baseline, foreign_workload, run_of, scenario

from harness.oracle.exports import exported, sort_of, written_with
from harness.oracle.history import History
from harness.oracle.integrity import integrity
from harness.oracle.retention import retention


def golden(sizes, saves):
    """An uninterrupted run that leaves these files, and saves these names at these steps."""
    found = baseline()
    said = [
        {"event": "save", "moment": "end", "step": step, "checkpoint": name} for name, steps in saves.items() for step in steps
    ]
    found.ranks[0].records[:] = [*(r for r in found.ranks[0].records if r["event"] != "save"), *said]
    return replace(found, files={name: (size, "aa") for name, size in sizes.items()})


@pytest.mark.parametrize(
    ("sizes", "saves", "exports"),
    [
        ({"last.pt": 1200, "weights.pt": 400}, {"last.pt": (5, 10), "weights.pt": (2, 4, 6)}, {"weights.pt"}),
        ({"last.pt": 1200, "step-6.pt": 400}, {"last.pt": (5, 10), "step-2.pt": (2,), "step-6.pt": (6,)}, {"step-#.pt"}),
        # Called the best, and whole: chosen for what it scores.
        ({"last.pt": 1200, "best.pt": 1200}, {"last.pt": (5, 10), "best.pt": (2, 4, 6)}, {"best.pt"}),
        ({"last.pt": 1200, "model_best.pth": 1200}, {"last.pt": (5, 10), "model_best.pth": (2, 4)}, {"model_best.pth"}),
        ({"last.pt": 1200, "bestiary.pt": 1200}, {"last.pt": (5, 10), "bestiary.pt": (2, 4)}, {"bestiary.pt"}),
        ({"last.pt": 1200, "zbest.pt": 1200}, {"last.pt": (5, 10), "zbest.pt": (2, 4)}, set()),
        # Whole, under another name: a job that resumes from the older one has lost work.
        ({"last.pt": 1200, "asked.pt": 1200}, {"last.pt": (5, 10), "asked.pt": (2, 4)}, set()),
        # Nothing else is there.
        ({"best.pt": 1200}, {"best.pt": (5, 10)}, set()),
        # One checkpoint in two files.
        ({"model.pt": 400, "optim.pt": 800}, {"model.pt": (5, 10), "optim.pt": (5, 10)}, set()),
        # A merged model at the end, from which nobody goes on.
        ({"ckpt.pt": 400, "merged.pt": 1200}, {"ckpt.pt": (5, 10, STEPS), "merged.pt": (STEPS,)}, set()),
        ({}, {"last.pt": (5, 10), "best.pt": (2, 4)}, set()),
    ],
)
def test_what_is_no_checkpoint_is_told_by_name_size_and_step(sizes, saves, exports):
    assert set(exported(golden(sizes, saves))) == exports


def test_a_sort_is_a_name_without_its_numbers():
    assert [sort_of(name) for name in ("step-12.pt", "epoch=1-step=20", "last.pt")] == ["step-#.pt", "epoch=#-step=#", "last.pt"]


def test_what_is_written_in_a_save_is_told_by_its_marks(tmp_path):
    one = attempt(0, 1, 8, path=tmp_path)
    mark = {"event": "mark", "what": "save", "rank": 0, "step": 4, "time_s": 1.0, "checkpoint": "best.pt"}
    write = {"event": "operation", "operation": "write", "rank": 0, "time_s": 1.0}
    one.operations[:] = [
        {**write, "path": "before.pt"},
        {**mark, "moment": "begin"},
        {**write, "path": "best-4.tmp"},
        {**write, "operation": "rename", "path": "best-4.tmp", "to": "best.pt"},
        {**mark, "moment": "end"},
        {**write, "path": "after.pt"},
    ]
    assert written_with(one, "best.pt") == {"best-#.tmp", "best.pt"}
    assert written_with(one, "last.pt") == set()


def only_best(tmp_path, resumed_from=""):
    """A foreign job whose best.pt, the only file so far, is damaged after the kill at batch 6; it begins anew."""
    first = attempt(0, 1, 6, path=tmp_path)
    for record in [*first.supervisor, *(r for log in first.ranks.values() for r in log.records)]:
        if record["event"] in ("committed", "save"):
            record["checkpoint"] = "best.pt"
            record |= {"files": {"best.pt": (400, "bb")}} if record["event"] == "committed" else {}
    first.of("files", moment="end")[0]["files"] = {"best.pt": (400, "bb")}
    second = attempt(1, 1, 20, path=tmp_path, resumed=0, ended=True)
    for record in (r for log in second.ranks.values() for r in log.of("resume")):
        record |= {"checkpoint": resumed_from, "batch": 0}
    second.of("files", moment="begin")[0]["files"] = {"best.pt": (400, "cc")}
    hit = {"event": "damaged", "path": "best.pt", "checkpoint": "best.pt", "step": 4, "unchanged": False}
    second.supervisor.insert(0, {**hit, "fault": "flip newest at 60% bit 3"})
    case = foreign_workload(scenario())
    case = case.model_copy(update={"workload": case.workload.model_copy(update={"save_every": None})})
    return run_of(first, second, case=case)


BESIDE = golden({"last.pt": 1200, "best.pt": 400}, {"last.pt": (10, 20), "best.pt": (4, 8)})


def test_damage_to_an_export_need_not_be_named_and_its_loss_is_no_loss_of_a_checkpoint(tmp_path):
    run = only_best(tmp_path)
    assert integrity(run, BESIDE) == retention(run, BESIDE) == []
    # Were there no other sort, the same would be a checkpoint that was passed over in silence.
    assert [one.kind for one in integrity(run, golden({"best.pt": 400}, {"best.pt": (4, 8)}))] == ["bad-refusal"]
    assert History(run, BESIDE).standing(1) == []


def test_what_is_resumed_from_is_a_checkpoint_whatever_it_is_called(tmp_path):
    assert [one.name for one in History(only_best(tmp_path, "best.pt"), BESIDE).standing(1)] == ["best.pt"]
