from __future__ import annotations

from dataclasses import replace

import pytest
from histories import STEPS, attempt, baseline, foreign_workload, run_of, scenario

from harness.oracle.exports import exported, sort_of
from harness.oracle.history import History, lost_files
from harness.oracle.integrity import integrity
from harness.oracle.progress import progress
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
        # The same beside a larger save of something else.
        (
            {"model.pt": 400, "optim.pt": 800, "all.pt": 1200},
            {"model.pt": (2, 4), "optim.pt": (2, 4), "all.pt": (5, 10)},
            set(),
        ),
        (
            {"best.pt": 400, "best.json": 8, "all.pt": 1200},
            {"best.pt": (2, 4), "best.json": (2, 4), "all.pt": (5, 10)},
            {"best.pt", "best.json"},
        ),
        # A merged model at the end, from which nobody goes on.
        ({"ckpt.pt": 400, "merged.pt": 1200}, {"ckpt.pt": (5, 10, STEPS), "merged.pt": (STEPS,)}, set()),
        ({}, {"last.pt": (5, 10), "best.pt": (2, 4)}, set()),
    ],
)
def test_what_is_no_checkpoint_is_told_by_name_size_and_step(sizes, saves, exports):
    assert set(exported(golden(sizes, saves))) == exports


def test_a_sort_is_a_name_without_its_numbers():
    assert [sort_of(name) for name in ("step-12.pt", "epoch=1-step=20", "last.pt")] == ["step-#.pt", "epoch=#-step=#", "last.pt"]


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


def both_at_once(tmp_path, left="aa", resumed=8):
    """A foreign job that writes last.pt and best.pt at batch 8, and best.pt alone at 4 and 12, killed at 14; and what it left."""
    first = attempt(0, 1, 14, path=tmp_path)
    names = {4: ["best.pt"], 8: ["best.pt", "last.pt"], 12: ["best.pt"]}
    for record in [*first.supervisor, *(r for log in first.ranks.values() for r in log.records)]:
        if record["event"] in ("committed", "save") and record["step"] in names:
            name, *also = names[record["step"]]
            record |= {"checkpoint": name, "also": also}
            digest = {"best.pt": f"b{record['step']}", "last.pt": "aa"}
            record |= {"files": {one: (1200, digest[one]) for one in (name, *also)}} if record["event"] == "committed" else {}
    first.of("files", moment="end")[0]["files"] = {"best.pt": (1200, "b12"), "last.pt": (1200, left)}
    second = attempt(1, resumed + 1, STEPS, path=tmp_path, resumed=resumed, ended=True)
    for record in (r for log in second.ranks.values() for r in log.of("resume")):
        record |= {"checkpoint": "last.pt" if resumed else None, "batch": resumed}
    case = foreign_workload(scenario())
    case = case.model_copy(update={"workload": case.workload.model_copy(update={"save_every": None})})
    return run_of(first, second, case=case)


BOTH = golden({"last.pt": 1200, "best.pt": 1200}, {"last.pt": (8, 16), "best.pt": (4, 8, 12)})


def test_a_checkpoint_that_is_written_in_one_go_with_the_best_stands_when_the_best_is_written_again(tmp_path):
    run = both_at_once(tmp_path)
    (standing,) = History(run, BOTH).standing(1)
    assert (standing.name, standing.batch, set(standing.files)) == ("last.pt", 8, {"last.pt"})
    assert progress(run, BOTH) == retention(run, BOTH) == []
    (lost,) = retention(both_at_once(tmp_path, left="zz", resumed=0), BOTH)
    assert (lost.kind, lost.file) == ("last-good-lost", "last.pt")


def test_of_a_checkpoint_in_two_files_both_are_owed(tmp_path):
    """No uninterrupted run tells them apart: what is written between two batches is one checkpoint."""
    (standing,) = History(both_at_once(tmp_path)).standing(1)
    assert (standing.name, standing.batch, set(standing.files)) == ("best.pt", 12, {"best.pt"})
    first = History(both_at_once(tmp_path)).commits[0][1]
    assert (first.name, first.batch, first.tops) == ("best.pt", 8, {"best.pt", "last.pt"})


def test_of_a_checkpoint_under_two_names_one_is_enough(tmp_path):
    """Lightning writes the same bytes under a name with the step and as `last`, and writes the second again at the end."""
    run = both_at_once(tmp_path, left="zz", resumed=0)
    commit = History(run).commits[0][1]
    left = run.attempts[0].of("files", moment="end")[0]["files"]
    left.update({"best.pt": (1200, "b8")})
    assert lost_files(commit, run.attempts[0], "end") == []
    left.update({"best.pt": (1200, "b12")})
    assert lost_files(commit, run.attempts[0], "end") == ["best.pt", "last.pt"]
