from __future__ import annotations

import tracemalloc

import pytest
from histories import (
    KILL,
    attempt,
    baseline,
    exited,
    killed_and_resumed,
    only,
    record,
    replace_exits,
    run_of,
    scenario,
)
from histories import (
    fired as fired_record,
)

from harness.oracle.fired import fired
from harness.oracle.numerics import numerics


def case(tmp_path, fault, *records, ranks=2):
    return run_of(attempt(0, 1, 14, path=tmp_path, supervisor=records), case=scenario(faults=(fault,), ranks=ranks))


def test_a_fault_that_fired_as_planned_passes():
    assert fired(killed_and_resumed(), baseline()) == []


def test_a_fault_that_did_not_fire_never_passes(tmp_path):
    finding = only(fired(case(tmp_path, KILL), baseline()), "fault-did-not-fire")
    assert finding.message == f"'{KILL}' did not fire, in attempt 0"


def test_a_fault_of_an_attempt_that_was_never_launched(tmp_path):
    finding = only(fired(case(tmp_path, "sigkill rank 0 at step 20 attempt 1"), baseline()), "fault-did-not-fire")
    assert finding.message.endswith("did not fire: attempt 1 was never launched")


def test_a_fault_that_fired_in_another_attempt_did_not_fire_in_its_own(tmp_path):
    run = killed_and_resumed()
    run.attempts[1].supervisor.append(run.attempts[0].of("fired")[0])
    run.attempts[0].supervisor.remove(run.attempts[0].of("fired")[0])
    only(fired(run, baseline()), "fault-did-not-fire")


TORN = "sigkill rank 1 during write *.bin.tmp at byte 100"


@pytest.mark.parametrize(
    ("fault", "facts", "why"),
    [
        (KILL, {"rank": 0}, "on rank 0"),
        (KILL, {"step": 15}, "at step 15"),
        (TORN, {"operation": "fsync"}, "on fsync"),
        (TORN, {"operation": "write", "path": "step-1/manifest.json"}, "on step-1/manifest.json"),
        (TORN, {"operation": "write", "path": "step-1/rank1.bin.tmp", "bytes_landed": 101}, "after 101 bytes had landed"),
        ("EIO rank 1 on fsync *.tmp", {"rank": 0}, "on rank 0"),
    ],
)
def test_a_fault_that_fired_elsewhere_did_not_fire_as_planned(tmp_path, fault, facts, why):
    run = case(tmp_path, fault, fired_record(fault, **facts))
    assert only(fired(run, baseline()), "fault-did-not-fire").message == f"'{fault}' fired, but {why}, in attempt 0"


@pytest.mark.parametrize(
    ("fault", "facts"),
    [
        (TORN, {"operation": "write", "path": "step-1/rank1.bin.tmp", "bytes_landed": 100}),
        ("sigkill rank 1 during write *.tmp at 50%", {"operation": "write", "path": "a.tmp", "bytes_landed": 77}),
        ("sigkill all ranks before rename *.pt", {"rank": 0, "operation": "rename", "path": "x.tmp"}),
        ("sigkill rank 1 at step 14 by rank 0", {"rank": 0, "step": 14}),
        ("EIO any rank on fsync *.tmp times 3", {"rank": 1, "operation": "fsync", "path": "a.tmp"}),
        ("quota 5000 bytes", {"rank": 0, "operation": "write", "path": "a"}),
    ],
)
def test_what_fits_the_plan_passes(tmp_path, fault, facts):
    assert fired(case(tmp_path, fault, fired_record(fault, **facts)), baseline()) == []


def test_damage_is_known_by_its_own_record(tmp_path):
    fault = "flip newest at 50%"
    done = {"event": "damaged", "fault": fault, "path": "step-00000012.pt", "checkpoint": "step-00000012.pt", "unchanged": False}
    first, second = attempt(0, 1, 14, path=tmp_path), attempt(1, 9, 24, path=tmp_path, resumed=8, ended=True, supervisor=(done,))
    run = run_of(first, second, case=scenario(faults=(fault,)))
    assert fired(run, baseline()) == []
    second.supervisor.remove(done)
    only(fired(run, baseline()), "fault-did-not-fire")


def test_a_foreign_death_names_signal_and_rank():
    run = killed_and_resumed()
    replace_exits(run, 1, exited(0, 0), exited(1, None, "SIGKILL", "foreign-death"))
    finding = only(fired(run, baseline()), "foreign-death")
    assert finding.message == "rank 1 was killed by SIGKILL in attempt 1, which the harness did not send"
    assert (finding.rank, finding.attempt) == (1, 1)


def test_a_bad_batch_must_have_been_reached_in_the_uninterrupted_run(tmp_path):
    run = case(tmp_path, "overflow rank 0 at batch 23 times 2")
    assert fired(run, baseline()) == []
    golden = baseline()
    for log in golden.ranks.values():
        log.records[:] = [r for r in log.records if r.get("batch") != 24]
        log.__dict__.pop("batches", None)
    assert "never reached batch 24" in only(fired(run, golden), "fault-did-not-fire").message


def test_a_part_of_a_batch_must_have_been_there_in_the_uninterrupted_run(tmp_path):
    fault = "overflow rank 0 at batch 3 micro-batch 2"
    # As of a foreign job, of which nobody has said how many parts a batch has.
    case = scenario(faults=()).model_copy(update={"faults": (fault,)})
    run, golden = run_of(attempt(0, 1, 14, path=tmp_path), case=case), baseline()
    assert fired(run, golden) == []  # who does not say how many there are is believed

    def say(count):
        for log in golden.ranks.values():
            for one in log.of("batch"):
                one["micro_batches"] = count
            log.__dict__.pop("batches", None)
        return fired(run, golden)

    assert say(2) == []
    finding = only(say(1), "fault-did-not-fire")
    assert finding.message == f"'{fault}' did not happen: batch 3 of the uninterrupted run has 1 micro-batch"


def test_records_are_read_not_guessed():
    assert record(killed_and_resumed(), 0, "fired")["fault"] == KILL


def test_any_number_of_bad_batches_is_judged_without_a_list_of_them(tmp_path):
    fault = "overflow rank 0 at batch 3 times 999999999"
    # As if it stood in a plan of a foreign job, whose number of batches nobody has said.
    case = scenario(faults=()).model_copy(update={"faults": (fault,)})
    many = run_of(attempt(0, 1, 14, path=tmp_path), case=case)
    tracemalloc.start()
    findings = fired(many, baseline()) + numerics(many, baseline())
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    finding = only([one for one in findings if one.oracle == "fired"], "fault-did-not-fire")
    assert "never reached batch 25-1000000001" in finding.message
    assert finding.expected == "batches 3-1000000001"
    assert peak_bytes < 1 << 24
