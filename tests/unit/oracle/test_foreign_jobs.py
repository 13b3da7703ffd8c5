"""Where a foreign job is held to something else than the reference trainer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import (
    attempt,
    baseline,
    exited,
    fired,
    killed_and_resumed,
    kinds,
    replace_exits,
    run_of,
    scenario,
)

from harness.oracle.completion import completion
from harness.oracle.data import data
from harness.oracle.history import History
from harness.oracle.loss import loss
from harness.oracle.progress import progress
from harness.oracle.state import state
from harness.plan import make_plan
from harness.scenario import Command
from harness.store import Run

ASKED = "sigterm all ranks at step 14 by rank 0"


def foreign(run, **changes):
    """The same run of a command that is watched from inside."""
    workload = Command(command=("python", "train.py"), probe=True)
    case = run.plan.scenario.model_copy(update={"workload": workload, **changes})
    return Run(run.directory, make_plan(case), run.attempts)


def asked_to_end(code):
    first = attempt(
        0, 1, 14, path=run_of().directory.path, supervisor=(fired(ASKED),), exits=tuple(exited(rank, code) for rank in (0, 1))
    )
    second = killed_and_resumed().attempts[1]
    return run_of(first, second, case=scenario((ASKED,)))


@pytest.mark.parametrize("code", [0, 143])
def test_a_foreign_job_may_leave_when_it_is_asked_to(code):
    assert completion(foreign(asked_to_end(code)), baseline()) == []


def test_the_reference_trainer_says_with_exit_code_0_that_all_is_done():
    assert set(kinds(completion(asked_to_end(0), baseline()))) == {"silent-exit"}


@pytest.mark.parametrize(("expect", "found"), [("resumes", ["resume-crashed"]), ("resumes-or-refuses", [])])
def test_a_restart_may_fail_where_that_is_allowed(expect, found):
    run = foreign(killed_and_resumed(), expect=expect)
    for log in run.attempts[1].ranks.values():
        log.records[:] = [r for r in log.records if r["event"] != "end"]
    replace_exits(run, 1, exited(0, 1), exited(1, 1))
    assert kinds(completion(run, baseline())) == found


def test_exit_code_0_without_an_end_is_no_refusal():
    run = foreign(killed_and_resumed(), expect="resumes-or-refuses")
    for log in run.attempts[1].ranks.values():
        log.records[:] = [r for r in log.records if r["event"] != "end"]
    assert set(kinds(completion(run, baseline()))) == {"silent-exit"}


def test_on_another_number_of_ranks_work_is_compared_where_a_batch_is_as_large():
    run = foreign(killed_and_resumed(), world_sizes=(2, 1))
    second = attempt(1, 13, 24, path=run.directory.path, ranks=1, resumed=12, ended=True, before=(4, 8, 12))
    run.attempts[1] = second
    golden = baseline()
    alone = [record for record in second.ranks[0].records if record["event"] == "batch"]
    for record in alone:
        record["global_loss"] = "0x1p+3"
    size = len(golden.ranks[0].batches[0].samples)
    for record in alone:
        record["samples"] = list(range(1000, 1000 + size))
    assert loss(run, golden) == data(run, golden) == []
    second.ranks[0].__dict__.pop("batches", None)
    for record in alone:
        record["samples"] = list(range(1000, 1000 + 2 * size))
    assert kinds(loss(run, golden)) == ["diverged"]
    assert kinds(data(run, golden)) == ["diverged"]


def test_ranks_that_take_each_others_share_are_told():
    run = foreign(killed_and_resumed())
    assert data(run, baseline()) == []
    for log in run.attempts[1].ranks.values():
        for record in log.of("batch"):
            record["samples"] = [record["batch"] * 12 + 1 - log.rank]
        log.__dict__.pop("batches", None)
    (found,) = data(run, baseline())
    assert (found.kind, found.component, found.rank, found.step) == ("diverged", "data", 0, 13)
    assert found.message == "rank 0 took samples of other ranks in batch 13 of attempt 1"


def test_a_generator_that_nobody_draws_from_is_not_lost():
    run, golden = foreign(killed_and_resumed()), baseline()
    for log in (*run.attempts[1].ranks.values(), *golden.ranks.values()):
        for record in log.of("batch"):
            record["loss"] = record["global_loss"] = "0x1p+3" if log is not golden.ranks.get(log.rank) else record["loss"]
        log.__dict__.pop("batches", None)
    for log in run.attempts[1].ranks.values():
        log.of("state", moment="load")[0]["digests"]["rng.python"] = "elsewhere"
    assert {one.component for one in state(run, golden)} == {"rng.python"}
    for log in golden.ranks.values():
        for record in log.of("state"):
            record["digests"]["rng.python"] = "as ever"
    assert state(run, golden) == []


@pytest.mark.parametrize(("names", "found"), [("ab", []), ("cd", []), ("ac", []), ("a", ["state-lost"])])
def test_another_version_may_call_the_parts_otherwise(names, found):
    run, golden = foreign(killed_and_resumed()), baseline()
    values = ("1111", "2222")
    for log in golden.ranks.values():
        for record in log.of("state"):
            record["parts"] = {"model": dict(zip("ab", values, strict=True))}
    for log in run.attempts[1].ranks.values():
        for record in log.of("state"):
            record["parts"] = {"model": dict(zip(names, values, strict=False))}
            record["digests"]["model"] = "renamed"
    for log in run.attempts[0].ranks.values():
        for record in log.of("state"):
            record["parts"] = {"model": dict(zip("ab", values, strict=True))}
    kinds_found = {one.kind for one in state(run, golden) if one.component == "model"}
    assert kinds_found == (set(found) if names != "ab" else {"state-lost"})


@pytest.mark.parametrize(("background", "lag", "found"), [(True, 3, []), (True, 4, ["lost-work"]), (False, 1, ["lost-work"])])
def test_a_save_of_another_thread_may_hold_a_little_less_than_was_done_when_it_was_seen(background, lag, found):
    run = foreign(killed_and_resumed())
    for record in run.attempts[0].of("committed")[-1:]:
        record.update(batch=12, **({"background": True} if background else {}))
    for log in run.attempts[1].ranks.values():
        log.of("resume")[0].update(batch=12 - lag, step=12 - lag)
    assert [one.kind for one in progress(run, baseline())] == found


@pytest.mark.parametrize(("restored", "found"), [(True, []), (False, ["gradients"])])
def test_a_batch_that_was_saved_in_its_middle_is_compared_with_that_moment(restored, found):
    run, golden = foreign(killed_and_resumed()), baseline()
    for log in golden.ranks.values():
        (load,) = run.attempts[1].ranks[log.rank].of("state", moment="load")
        middle = {**load["digests"], "rng.torch": "in the middle", "gradients": "held"}
        place = next(n for n, record in enumerate(log.records) if record.get("batch") == 12) + 1
        log.records.insert(
            place, {"event": "state", "rank": log.rank, "moment": "saving", "micro": 2, "step": 12, "digests": middle}
        )
        load["micro"] = 2
        load["digests"] = {**middle, "gradients": "held" if restored else "none"}
    for log in run.attempts[0].ranks.values():
        log.records[:] = [record for record in log.records if record["event"] != "state"]
    assert sorted({one.component for one in state(run, golden)}) == found


def test_what_follows_from_wrong_losses_is_no_piece_of_state():
    run = foreign(killed_and_resumed())
    for log in run.attempts[1].ranks.values():
        (end,) = log.of("state", moment="end")
        end["digests"] |= {"optimizer": "other", "model": "other"}
    assert {one.component for one in state(run, baseline())} == {"optimizer"}
    for record in run.attempts[1].ranks[1].of("batch"):  # what one rank has lost is in the gradients of all
        record["loss"] = "0x1p+3"
    run.attempts[1].ranks[1].__dict__.pop("batches", None)
    assert {one.component for one in state(run, baseline())} == {"none"}
    assert all("it came with the gradients" in one.message for one in state(run, baseline()))
    for log in run.attempts[1].ranks.values():
        log.of("state", moment="end")[0]["digests"]["rng.torch"] = "other"  # which no gradient changes
    assert {one.component for one in state(run, baseline())} == {"rng.torch"}


def on_one_rank(parts=None, **changes):
    """Saved on two ranks and resumed on one; as the probe says it: parts of the optimizer per rank, and what all of them hold."""
    run = foreign(killed_and_resumed(), world_sizes=(2, 1))
    run.attempts[1] = attempt(1, 13, 24, path=run.directory.path, ranks=1, resumed=12, ended=True, before=(4, 8, 12))
    golden = baseline()
    for log in golden.ranks.values():
        for record in log.of("state", moment="save"):
            record["moment"] = "next"
            if parts is not None:
                record["parts"] = {"optimizer": {f"p{log.rank}": f"of rank {log.rank}", "step": "8"}}
    (load,) = run.attempts[1].ranks[0].of("state", moment="load")
    load["common"] |= changes
    if parts is not None:
        load["parts"] = {"optimizer": parts}
    return run, golden


def test_over_a_change_of_ranks_the_whole_is_compared():
    assert state(*on_one_rank()) == []
    (found,) = state(*on_one_rank(model="00000000000000ff"))
    assert (found.kind, found.component, found.attempt, found.rank) == ("state-lost", "model", 1, 0)
    assert "in the uninterrupted run on 2 ranks" in found.message
    # Running statistics may be each rank's own, and a batch that is other work may be done at another rate.
    assert state(*on_one_rank(buffers="00000000000000ff")) == []
    assert state(*on_one_rank(scheduler="00000000000000ff")) == []


def test_over_a_change_of_ranks_nothing_is_said_where_a_rank_is_missing_or_the_runs_cannot_be_compared():
    run, golden = on_one_rank(model="00000000000000ff")
    del golden.ranks[1]
    assert state(run, golden) == []
    run, golden = on_one_rank(model="00000000000000ff")
    assert state(run, replace(golden, unstable="it differs")) == []
    run, golden = on_one_rank(model="00000000000000ff")
    # Work that was done on another number of ranks before is not what the uninterrupted run did.
    run.attempts[0] = attempt(0, 1, 14, path=run.directory.path, ranks=1, supervisor=(fired(ASKED),))
    assert not [one for one in state(run, golden) if "in the uninterrupted run" in one.message]


WHOLE = {"p0": "of rank 0", "p1": "of rank 1", "step": "8"}


@pytest.mark.parametrize(
    ("loaded", "said"),
    [
        (WHOLE, None),
        ({**WHOLE, "p1": "other"}, "1 of 3 parts, such as p1"),
        ({"p0": "of rank 0", "step": "8"}, "1 of 3 parts, such as p1"),
        ({"p0": "of rank 0", "step": "1"}, "2 of 3 parts, such as"),
        ({**WHOLE, "more": "of nobody"}, None),
        ({}, None),  # too many parts for the log, or one: nothing can be said
    ],
)
def test_what_ranks_hold_in_parts_is_compared_part_by_part(loaded, said):
    run, golden = on_one_rank(loaded, optimizer="00000000000000ff")
    for rank, log in golden.ranks.items():  # what ranks do not agree on is split
        for record in log.of("state", moment="next"):
            record["common"]["optimizer"] = f"{rank:016x}"
    found = state(run, golden)
    assert [one.component for one in found] == ([] if said is None else ["optimizer"])
    assert all(said in one.message for one in found)


def test_a_part_that_ranks_say_differently_after_the_load_is_not_restored():
    run, golden = foreign(killed_and_resumed(), world_sizes=(2, 3)), baseline()
    run.attempts[1] = attempt(1, 13, 24, path=run.directory.path, ranks=3, resumed=12, ended=True, before=(4, 8, 12))
    for log in golden.ranks.values():
        for record in log.of("state", moment="save"):
            record |= {"moment": "next", "parts": {"optimizer": WHOLE}}
    loads = [log.of("state", moment="load")[0] for log in run.attempts[1].ranks.values()]
    for rank, load in enumerate(loads):
        load["parts"] = {"optimizer": dict(WHOLE)}
        load["common"]["optimizer"] = f"{rank:016x}"
    assert state(run, golden) == []
    loads[2]["parts"]["optimizer"]["p0"] = "other"
    assert {one.component for one in state(run, golden)} == {"optimizer"}
    assert all("such as p0" in one.message for one in state(run, golden))


@pytest.mark.parametrize(
    ("name", "background", "found"),
    [("c.pt.tmp", True, []), ("c.pt.tmp", False, ["lost-work"]), ("c.pt", True, ["lost-work"])],
)
def test_what_a_thread_left_under_a_temporary_name_is_owed_to_nobody(name, background, found):
    run = foreign(killed_and_resumed())
    last = run.attempts[0].of("committed")[-1]
    part = {**last, "checkpoint": name, "step": 13, "batch": 13, "files": {name: [900, "ab"]}, "background": background}
    run.attempts[0].supervisor.append(part | {"time_s": float(last.get("time_s", 0)) + 1})
    run.attempts[0].of("files", moment="end")[0]["files"][name] = (900, "ab")
    assert [one.kind for one in progress(run, baseline())] == found


def test_where_every_checkpoint_has_such_a_name_it_is_none():
    run = foreign(killed_and_resumed())
    for number, record in enumerate(run.attempts[0].of("committed")):
        files = {f"c{number}.tmp.pt": content for content in record["files"].values()}
        record.update(checkpoint=f"c{number}.tmp.pt", background=True, files=files)
    assert len(History(run).commits[0]) == len(run.attempts[0].of("committed")) > 0
