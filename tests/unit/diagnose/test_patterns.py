"""Each pattern on a hand-written case that it fits, and on one that nearly fits and must not."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import pytest
from histories import (
    COMPONENTS,
    KILL,
    STEPS,
    attempt,
    baseline,
    digest,
    fired,
    killed_and_resumed,
    loss_of,
    run_of,
    said,
    scenario,
)

from harness.judge import judge
from harness.oracle.diagnosis import Diagnosis
from harness.store import Baseline, Run

RESUMED = 12
LENGTH = 8  # batches of an epoch, where samples are given out anew


class Case:
    """The job that was killed at step 14 and resumed from step 12, its uninterrupted run, and ways to bend both."""

    def __init__(self) -> None:
        self.run: Run = killed_and_resumed()
        self.golden: Baseline = baseline()

    def diagnosis(self) -> Diagnosis:
        found = judge(self.run, self.golden)
        assert found.outcome == "FAIL", found.findings
        assert not any("crashed" in finding.message for finding in found.findings), found.findings
        assert found.diagnosis is not None
        return found.diagnosis

    def names(self) -> list[str]:
        return [pattern.name for pattern in self.diagnosis().patterns]

    def logs(self, resumed: bool):
        if not resumed:
            return [*self.golden.ranks.items(), *self.run.attempts[0].ranks.items()]
        return list(self.run.attempts[1].ranks.items())

    def each_batch(self, resumed: bool, field: str, value) -> Case:
        """Gives a field of each batch another value: `value(batch, rank)`; of the resumed launch, or of all before it."""
        for rank, log in self.logs(resumed):
            log.__dict__.pop("batches", None)
            for record in log.of("batch"):
                record[field] = value(record["batch"], rank)
        return self

    def rates(self, golden, resumed) -> Case:
        """Learning rates as functions of the update; and a loss that feels them."""
        self.each_batch(False, "learning_rate", lambda batch, _: float(golden(batch)).hex())
        self.each_batch(True, "learning_rate", lambda batch, _: float(resumed(batch)).hex())
        return self.felt()

    def felt(self, first: int = RESUMED + 1) -> Case:
        """Losses that differ from a batch on."""
        self.each_batch(True, "loss", lambda batch, rank: (loss_of(batch, rank) + (batch >= first)).hex())
        return self.each_batch(True, "global_loss", lambda batch, _: (loss_of(batch) + (batch >= first)).hex())

    def samples(self, golden, resumed) -> Case:
        """Samples as functions of batch and rank."""
        return self.each_batch(False, "samples", golden).each_batch(True, "samples", resumed)

    def loaded(self, rank: int, name: str, value: str | None) -> Case:
        """What a rank has after the load; None: nothing."""
        held = said(self.run, 1, rank, "state", moment="load")["digests"]
        held.pop(name, None)
        if value is not None:
            held[name] = value
        return self

    def everywhere(self, name: str, value) -> Case:
        """A further digest, right in every record: `value(rank, batch)`."""
        for rank, log in [*self.logs(False), *self.logs(True)]:
            batch = RESUMED if log.of("state", moment="load") else 0
            for record in log.records:
                if record["event"] == "batch":
                    batch = record["batch"]
                elif record["event"] == "state":
                    record["digests"][name] = value(rank, batch)
        return self

    def started(self, name: str, value: str) -> Case:
        """What ranks have before they load."""
        for rank, log in self.logs(True):
            if not log.of("state", moment="start"):
                start = {"event": "state", "rank": rank, "time_s": 0.0, "moment": "start", "step": 0, "digests": {}}
                log.records.insert(1, start)
            log.of("state", moment="start")[0]["digests"][name] = value
        return self


def rate(update: int) -> float:
    return 0.002 * math.cos(update / 20)


# --- learning rates


@pytest.mark.parametrize(
    ("resumed", "name"),
    [
        (lambda update: rate(update + 1), "schedule-ahead"),
        (lambda update: rate(update - 1), "schedule-behind"),
        (lambda update: rate(update - 3), "schedule-behind"),
        (lambda update: rate(update - RESUMED), "schedule-restarted"),
        # The optimizer has its rate until the scheduler moves for the first time.
        (lambda update: rate(update if update == RESUMED + 1 else update - RESUMED), "schedule-restarted"),
        (lambda _: rate(RESUMED), "schedule-constant"),
        (lambda update: 2 * rate(update), "schedule-scaled"),
        (lambda update: rate(1) if update <= RESUMED + 2 else rate(update), "schedule-catches-up"),
    ],
)
def test_learning_rates_that_fit_a_pattern(resumed, name):
    found = Case().rates(rate, resumed)
    for rank in (0, 1):
        found.loaded(rank, "scheduler", "another")
    assert found.names() == [name]
    assert found.diagnosis().pattern == name


@pytest.mark.parametrize(
    "resumed",
    [
        lambda update: rate(update + 1) * (1 + 1e-6 * (update == STEPS - 2)),  # one of them is not
        lambda update: rate(update - RESUMED) if update < STEPS else rate(update),
        lambda update: rate(RESUMED) * (1 + 1e-6 * update),
        lambda update: 2 * rate(update) + 1e-5 * (update == STEPS),
        lambda update: math.nan if update == RESUMED + 2 else rate(update + 1),
    ],
)
def test_learning_rates_that_nearly_fit_one_do_not(resumed):
    found = Case().rates(rate, resumed).loaded(0, "scheduler", "another")
    assert found.names() == []
    assert "why: no known pattern fits" in found.diagnosis().unknown


def test_equal_learning_rates_are_no_pattern():
    assert Case().rates(rate, rate).loaded(0, "scheduler", "another").names() == []


def test_a_scheduler_that_goes_on_while_the_rate_stays_is_disconnected():
    found = Case().rates(rate, lambda _: rate(RESUMED))
    assert found.names() == ["schedule-disconnected"]
    last = said(found.run, 1, 0, "state", moment="end")
    last["digests"]["scheduler"] = "another"  # it does not go on
    assert "schedule-disconnected" not in found.names()


def test_a_rate_that_is_wrong_in_between_has_no_pattern():
    found = Case().rates(rate, lambda update: 0.5 if update == RESUMED + 3 else rate(update))
    assert "schedule-catches-up" not in found.names()


def test_a_constant_rate_is_right_where_the_uninterrupted_one_is_constant():
    found = Case().rates(lambda update: 0.1 if update < RESUMED else 0.01, lambda _: 0.02)
    assert found.names() == ["schedule-scaled"]


def test_what_the_records_do_not_tell_apart_is_said_as_such():
    tooth = [0.1, 0.2, 0.3, 0.4]
    found = Case().rates(lambda update: tooth[update % 4], lambda update: tooth[(update + 2) % 4])
    diagnosis = found.diagnosis()
    assert found.names() == ["schedule-behind", "schedule-ahead"]
    assert diagnosis.pattern is None
    assert "either the schedule is 2 updates behind" in diagnosis.text.replace("Either", "either")
    assert "the records fit each of these" in diagnosis.text


# --- data


def sample(batch: int, rank: int) -> list[int]:
    """Of epoch (batch - 1) // LENGTH, in an order of its own."""
    epoch, place = divmod(batch - 1, LENGTH)
    order = random.Random(epoch).sample(range(LENGTH), LENGTH)
    return [2 * order[place] + rank]


@pytest.mark.parametrize(
    ("resumed", "name"),
    [
        (lambda batch, rank: sample(batch - 1, rank), "batch-repeated"),
        (lambda batch, rank: sample(batch - 2, rank), "batch-repeated"),
        (lambda batch, rank: sample(batch + 1, rank), "batch-skipped"),
        (lambda batch, rank: sample(batch - RESUMED, rank), "data-restarted"),
        (lambda batch, rank: sample(batch - RESUMED + LENGTH, rank), "epoch-restarted"),
        (lambda batch, rank: sample(batch - LENGTH, rank), "epoch-off"),
        (lambda batch, rank: sample(batch, 1 - rank), "ranks-swapped"),
        (lambda batch, _: sample(batch, 0), "one-rank-everywhere"),
        (lambda batch, rank: [sample(batch, 0)[0], sample(batch + 3, 0)[0]] if rank else sample(batch + 2, 0), "data-reordered"),
    ],
)
def test_samples_that_fit_a_pattern(resumed, name):
    found = Case().samples(sample, resumed).felt()
    assert name in found.names()
    if name != "data-reordered":
        assert found.names()[:1] == [name]


@pytest.mark.parametrize(
    "resumed",
    [
        lambda batch, rank: sample(batch - 1, rank) if batch < RESUMED + 3 else [100 + batch * 2 + rank],  # two of them only
        lambda batch, rank: [1000 + batch * 2 + rank],  # samples that nobody else has
        lambda batch, rank: sample(batch, (rank + batch) % 2),  # swapped now and then
    ],
)
def test_samples_that_nearly_fit_one_do_not(resumed):
    assert Case().samples(sample, resumed).felt().names() in ([], ["forward-state"])


def test_the_number_of_the_epoch():
    found = Case().felt().each_batch(True, "epoch", lambda batch, _: batch // 12 + 1)
    assert "epoch-off" in found.names()
    near = Case().felt().each_batch(True, "epoch", lambda batch, _: batch // 12 + (batch < 20))
    assert "epoch-off" not in near.names()


# --- state


def test_a_component_of_a_new_job():
    found = Case().started("scheduler", "new")
    for rank in (0, 1):
        found.loaded(rank, "scheduler", "new")
    assert found.names() == ["fresh"]
    assert found.loaded(1, "scheduler", "other").names() == []  # one rank has something else


def test_an_unlogged_start_is_told_by_the_uninterrupted_run():
    found = Case()
    for rank in (0, 1):
        found.golden.ranks[rank].records.insert(
            1, {"event": "state", "rank": rank, "time_s": 0.0, "moment": "load", "step": 0, "digests": {"optimizer": "new"}}
        )
        found.loaded(rank, "optimizer", "new")
    assert found.names() == ["fresh"]


def test_a_component_that_is_missing():
    found = Case()
    for rank in (0, 1):
        found.loaded(rank, "scheduler", None)
    assert found.names() == ["missing"]
    assert found.loaded(1, "scheduler", "other").names() == []


def test_pending_gradients_that_are_gone():
    found = Case().everywhere("gradients", lambda rank, batch: digest("gradients", rank, batch))
    for rank in (0, 1):
        found.loaded(rank, "gradients", None)
    assert found.names() == ["pending-gradients-lost"]


def test_the_state_of_another_save():
    found = Case()
    for rank in (0, 1):
        found.loaded(rank, "optimizer", digest("optimizer", rank, 8))
    assert found.names() == ["older-save"]
    assert "(batch 8 instead of 12)" in found.diagnosis().text
    newer = Case()
    for rank in (0, 1):
        newer.loaded(rank, "optimizer", digest("optimizer", rank, 16))
    assert newer.names() == ["newer-save"]
    assert Case().loaded(0, "optimizer", digest("optimizer", 0, 7)).names() == []  # nothing was saved then


def test_a_mix_of_saves_over_the_ranks():
    one = Case().loaded(1, "optimizer", digest("optimizer", 1, 8))
    assert one.names() == ["mixed-saves"]
    assert "that of batch 8 on rank 1, that of batch 12 on rank 0" in one.diagnosis().text
    two = Case().loaded(0, "optimizer", digest("optimizer", 0, 4)).loaded(1, "optimizer", digest("optimizer", 1, 8))
    assert two.names() == ["mixed-saves"]


def test_the_copy_of_one_rank_on_all_and_ranks_that_are_swapped():
    assert Case().loaded(1, "rng.torch", digest("rng.torch", 0, 12)).felt().names() == ["one-rank-everywhere"]
    both = Case().loaded(0, "rng.torch", digest("rng.torch", 1, 12)).loaded(1, "rng.torch", digest("rng.torch", 0, 12)).felt()
    assert both.names() == ["ranks-swapped"]
    near = Case().loaded(0, "rng.torch", "other").loaded(1, "rng.torch", digest("rng.torch", 0, 12)).felt()
    assert near.names() == []


def test_a_component_that_is_the_same_on_all_ranks_was_not_taken_from_one():
    found = Case().everywhere("counters", lambda rank, batch: digest("counters", batch))
    for rank in (0, 1):
        found.loaded(rank, "counters", digest("counters", 8))
    assert found.names() == ["older-save"]


NAMES = ("optimizer.exp_avg.a", "optimizer.exp_avg.b", "optimizer.exp_avg.c")


def with_moments() -> Case:
    found = Case()
    for name in NAMES:
        found.everywhere(name, lambda rank, batch, name=name: digest(name, batch))
    return found


def test_moments_that_are_swapped_between_parameters():
    found = with_moments()
    for rank in (0, 1):
        found.loaded(rank, "optimizer", "other")
        found.loaded(rank, NAMES[0], digest(NAMES[1], 12)).loaded(rank, NAMES[1], digest(NAMES[0], 12))
    diagnosis = found.diagnosis()
    assert found.names() == ["moments-swapped"]
    assert "optimizer.exp_avg.a has that of optimizer.exp_avg.b" in diagnosis.text
    near = with_moments()
    for rank in (0, 1):  # one has the other's, and the other something of its own
        near.loaded(rank, "optimizer", "other").loaded(rank, NAMES[0], digest(NAMES[1], 12)).loaded(rank, NAMES[1], "own")
    assert near.names() == []


def test_parts_that_are_wrong_are_named():
    found = with_moments().loaded(0, "optimizer", "other").loaded(0, NAMES[2], "other")
    diagnosis = found.diagnosis()
    assert NAMES[2] in (*diagnosis.parts, *diagnosis.components)
    assert NAMES[0] not in (*diagnosis.parts, *diagnosis.components)
    assert not any("which of its tensors" in text for text in diagnosis.unknown)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_state_that_was_rounded(dtype):
    found = Case()
    for rank in (0, 1):
        said(found.run, 0, rank, "state", moment="save", step=12)["rounded"] = {
            "bfloat16": {"model": "short bfloat16"},
            "float16": {"model": "short float16"},
        }
        found.loaded(rank, "model", f"short {dtype}")
    assert found.names() == ["rounded"]
    assert f"rounded to {dtype}" in found.diagnosis().text
    found.loaded(1, "model", "otherwise")
    assert found.names() == []


def test_a_component_that_never_moves_again():
    found = Case()
    for rank, log in found.logs(True):
        for record in log.of("state"):
            record["digests"]["buffers"] = digest("buffers", rank, RESUMED)
    assert found.names() == ["frozen"]
    assert found.diagnosis().lost == ("after-load",)
    said(found.run, 1, 0, "state", moment="end")["digests"]["buffers"] = "moved"
    assert "frozen" not in found.names()


def test_a_component_that_was_restored_and_overwritten():
    found = Case().started("scheduler", "new")
    for rank in (0, 1):
        said(found.run, 1, rank, "state", moment="save", step=16)["digests"]["scheduler"] = "new"
    assert found.names() == ["overwritten"]
    assert "is that of a new job" in found.diagnosis().text
    other = Case()
    said(other.run, 1, 0, "state", moment="save", step=16)["digests"]["scheduler"] = digest("scheduler", 0, 8)
    assert other.names() == ["overwritten"]
    unknown = Case()
    said(unknown.run, 1, 0, "state", moment="save", step=16)["digests"]["scheduler"] = "of its own"
    assert unknown.names() == []
    assert unknown.diagnosis().lost == ("after-load",)


def test_a_scale_that_begins_again():
    def scale(batch: int, _: int) -> str:
        return (1024.0 if batch < 6 else 2048.0).hex()

    found = Case().each_batch(False, "scale", scale).each_batch(True, "scale", lambda *_: (1024.0).hex()).felt()
    assert "scale-restarted" in found.names()
    near = Case().each_batch(False, "scale", scale).each_batch(True, "scale", lambda *_: (512.0).hex()).felt()
    assert "scale-restarted" not in near.names()
    same = (
        Case().each_batch(False, "scale", lambda *_: (1024.0).hex()).each_batch(True, "scale", lambda *_: (1024.0).hex()).felt()
    )
    assert "scale-restarted" not in same.names()


# --- the whole job


def test_a_job_that_begins_from_scratch(tmp_path):
    first = attempt(0, 1, 14, path=tmp_path, supervisor=(fired(KILL, step=14),))
    second = attempt(1, 1, STEPS, path=tmp_path, resumed=0, ended=True, before=(4, 8, 12))
    found = judge(run_of(first, second), baseline()).diagnosis
    assert found is not None
    assert ([p.name for p in found.patterns], found.lost, found.pattern) == (["from-scratch"], ("load",), "from-scratch")
    assert "no curve shows it" in found.text


def test_a_job_that_takes_an_older_checkpoint(tmp_path):
    first = attempt(0, 1, 14, path=tmp_path, supervisor=(fired(KILL, step=14),))
    second = attempt(1, 9, STEPS, path=tmp_path, resumed=8, ended=True, before=(4, 8, 12))
    found = judge(run_of(first, second), baseline()).diagnosis
    assert found is not None
    assert [p.name for p in found.patterns] == ["older-checkpoint"]
    assert (found.file, found.component) == ("step-00000012.pt", "checkpoint-files")


def test_ranks_that_resume_from_different_saves():
    found = Case()
    record = said(found.run, 1, 1, "resume")
    record.update(step=8, checkpoint="step-00000008.pt")
    assert "mixed-saves" in found.names()


@pytest.mark.parametrize(
    ("done", "names"),
    [(STEPS - LENGTH, ["one-epoch-short"]), (STEPS - 1, ["one-batch-short"]), (STEPS - 3, ["ends-early"])],
)
def test_a_job_that_ends_early(done, names):
    found = Case().samples(sample, sample)
    for rank, log in found.logs(True):
        log.records[:] = [r for r in log.records if r.get("step", 0) <= done or r["event"] == "end"]
        said(found.run, 1, rank, "end").update(batches=done, step=done)
    assert found.names() == names


def test_a_job_that_counts_what_is_left(tmp_path):
    first = attempt(0, 1, 10, path=tmp_path, supervisor=(fired(KILL, step=10),))
    second = attempt(1, 9, 16, path=tmp_path, resumed=8, ended=True, before=(4, 8))
    for rank in (0, 1):
        said(run_of(first, second), 1, rank, "end").update(batches=16, step=16)
    found = judge(run_of(first, second), baseline()).diagnosis
    assert found is not None
    assert [p.name for p in found.patterns] == ["counts-what-is-left"]


# --- the curve alone


def silent(case: Case) -> Case:
    """Without any record of state."""
    logs = [*case.logs(False), *case.logs(True)]
    for _, log in logs:
        log.records[:] = [record for record in log.records if record["event"] != "state"]
    return case


def test_which_half_of_a_step_was_lost_where_no_state_was_logged():
    forward, update, later = silent(Case().felt()), silent(Case().felt(RESUMED + 2)), silent(Case().felt(RESUMED + 3))
    assert (forward.names(), update.names(), later.names()) == (["forward-state"], ["update-state"], [])
    assert any("the job logged no state" in text for text in update.diagnosis().unknown)
    assert forward.diagnosis().component == "none"


# --- moments, files, faults


def test_what_was_wrong_right_before_the_save_was_lost_at_the_save():
    found = Case()
    for index, moment in ((0, "save"), (1, "load")):
        for rank in (0, 1):
            said(found.run, index, rank, "state", moment=moment, step=12)["digests"]["buffers"] = "other"
    assert found.diagnosis().lost == ("save",)


@pytest.mark.parametrize(("in_file", "lost"), [("right", ("load",)), ("wrong", ("save",)), (None, ("save", "load"))])
def test_whether_the_file_held_it_is_known_only_if_somebody_has_read_it(in_file, lost):
    found = Case()
    for rank, log in found.logs(True):
        found.loaded(rank, "optimizer", "other")
        read = {"digests": {"optimizer": digest("optimizer", rank, 12) if in_file == "right" else "other"}}
        if in_file:
            log.records.insert(2, {"event": "state", "rank": rank, "time_s": 0.0, "moment": "file", "step": 12, **read})
    diagnosis = found.diagnosis()
    assert diagnosis.lost == lost
    assert any("nobody else has read the file" in text for text in diagnosis.unknown) is (in_file is None)


def test_another_launch_that_loads_the_same_file_right_tells_that_it_is_right(tmp_path):
    first = attempt(0, 1, 14, path=tmp_path, supervisor=(fired(KILL, step=14),))
    second = attempt(
        1,
        13,
        14,
        path=tmp_path,
        resumed=12,
        before=(4, 8, 12),
        supervisor=(fired("sigkill rank 0 at step 14 attempt 1", 0, step=14),),
    )
    third = attempt(2, 13, STEPS, path=tmp_path, resumed=12, ended=True, before=(4, 8, 12))
    run = run_of(first, second, third, case=scenario(faults=(KILL, "sigkill rank 0 at step 14 attempt 1")))
    for rank in (0, 1):
        said(run, 2, rank, "state", moment="load")["digests"]["optimizer"] = "other"
    found = judge(run, baseline()).diagnosis
    assert found is not None
    assert (found.attempt, found.lost) == (2, ("load",))
    assert found.fault is not None
    assert (found.fault.fault, found.fault.attempt) == ("sigkill rank 0 at step 14 attempt 1", 1)


def test_a_failure_before_any_resume_has_nothing_to_do_with_a_checkpoint(tmp_path):
    only = attempt(0, 1, STEPS, path=tmp_path, ended=True)
    run = run_of(only, case=scenario(faults=()))
    for rank, log in only.ranks.items():
        for record in log.of("batch"):
            if record["batch"] > 5:
                record["loss"] = (loss_of(record["batch"], rank) + 1).hex()
    found = judge(run, baseline()).diagnosis
    assert found is not None
    assert (found.component, found.lost, found.file, found.fault) == ("gradients", ("before-resume",), None, None)


@pytest.mark.parametrize(
    ("files", "rank", "component", "expected"),
    [
        (("optimizer.pt", "scheduler.pt", "model.safetensors"), 0, "optimizer", "optimizer.pt"),
        (("rng_state_0.pth", "rng_state_1.pth", "model.safetensors"), 1, "rng.torch", "rng_state_1.pth"),
        (("rank0.bin", "rank1.bin", "manifest.json"), 1, "optimizer", "rank1.bin"),
        (("a.bin", "b.bin"), 1, "optimizer", ""),
    ],
)
def test_the_file_is_told_by_its_name(files, rank, component, expected):
    found = Case()
    name = "step-00000012.pt"
    for record in found.run.attempts[0].of("committed"):
        if record["checkpoint"] == name:
            record["files"] = {f"{name}/{file}": [1, digest(file)] for file in files}
    for record in (found.run.attempts[0].of("files", moment="end")[0], found.run.attempts[1].of("files", moment="begin")[0]):
        record["files"].pop(name)
        record["files"].update({f"{name}/{file}": [1, digest(file)] for file in files})
    found.loaded(rank, component, "other").felt()
    assert found.diagnosis().file == (f"{name}/{expected}" if expected else name)


def test_the_paragraph_and_the_json_say_the_same():
    found = Case().started("scheduler", "new")
    for rank in (0, 1):
        found.loaded(rank, "scheduler", "new")
    diagnosis = found.diagnosis()
    assert diagnosis.text == (
        "The scheduler of ranks 0-1 went wrong; it shows as state-lost at step 12, in attempt 1. It was right just before the "
        "save of step-00000012.pt and wrong just after its load. The scheduler is that of a new job, as if nothing of the "
        "checkpoint had been put into it (its digest after the load is the one before the load, on ranks 0-1). The nearest "
        f"fault: {KILL}, rank 1, attempt 0, step 14. Look into step-00000012.pt. Not known: whether the file lacks it or the "
        "load does not restore it, since nobody else has read the file."
    )
    document = diagnosis.to_json()
    assert document["schema"] == "harness.diagnosis/1"
    assert (document["component"], document["lost"], document["ranks"]) == ("scheduler", ["save", "load"], [0, 1])
    assert document["patterns"][0]["name"] == "fresh"
    assert document["fault"] == {"fault": KILL, "attempt": 0, "rank": 1, "step": 14}
    assert document["text"] == diagnosis.text


def test_a_pass_has_no_diagnosis():
    found = judge(killed_and_resumed(), baseline())
    assert (found.outcome, found.diagnosis) == ("PASS", None)


def test_components_that_went_the_same_way_are_told_of_once():
    found = Case()
    for name in ("rng.python", "rng.torch"):
        found.started(name, f"new {name}")
        for rank in (0, 1):
            found.loaded(rank, name, f"new {name}")
    text = found.felt().diagnosis().text
    assert text.count("is that of a new job") == 1
    assert "; so is rng.torch" in text


def test_every_pattern_of_the_documentation_is_one_that_exists_and_the_other_way_round():
    root = Path(__file__).parents[3]
    sources = "".join(path.read_text() for path in sorted((root / "harness/diagnose").glob("*.py")))
    document = (root / "docs/diagnosis.md").read_text()
    known = {word for line in re.findall(r'"""(`[^"]*?): ', sources) for word in re.findall(r"`([a-z-]+)`", line)}
    described = set(re.findall(r"^\| `([a-z-]+)` \|", document.partition("## Patterns")[2], re.M))
    assert described == known
    assert COMPONENTS
