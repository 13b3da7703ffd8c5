"""The clarity oracle on hand-written logs: a failed operation that ends the job is named, with the checkpoint."""

from __future__ import annotations

import pytest
from histories import attempt, baseline, exited, fired, foreign_workload, only, run_of, scenario

from harness.oracle.clarity import clarity

FAULT = "EIO rank 0 on fsync **"
TEMPORARY = "step-00000012.pt.77-0a1b2c3d.tmp"
CLEAR = "rank 0: failed: cannot save /runs/x/checkpoints/step-00000012.pt: rank 0: OSError: [Errno 5] Input/output error\n"
FAILED = (exited(0, 1), exited(1, 1))


def case(tmp_path, text, *, path=TEMPORARY, fault=FAULT, exits=FAILED, more=(), foreign=False, rank=0):
    records = (fired(fault, 0, operation="fsync", call="fsync", path=path), *more)
    first = attempt(0, 1, 12, path=tmp_path, supervisor=records, exits=exits)
    first.path.mkdir(parents=True)
    (first.path / f"rank-{rank}.stderr").write_text(text)
    chosen = scenario(faults=(fault,))
    return clarity(run_of(first, case=foreign_workload(chosen) if foreign else chosen), baseline())


@pytest.mark.parametrize("text", [CLEAR, "EIO at step-00000012", CLEAR.replace("[Errno 5] Input/output error", "EIO")])
def test_an_error_that_is_named_with_its_checkpoint_passes(tmp_path, text):
    assert case(tmp_path, text) == []


def test_any_rank_may_say_it(tmp_path):
    assert case(tmp_path, CLEAR, rank=1) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rank 0: failed: RuntimeError: connection closed by peer",
        CLEAR.replace("[Errno 5] Input/output error", "something went wrong"),
        CLEAR.replace("step-00000012", "step-00000008"),
    ],
)
def test_an_end_without_the_error_or_without_the_checkpoint(tmp_path, text):
    finding = only(case(tmp_path, text), "bad-refusal")
    assert (finding.oracle, finding.component, finding.attempt, finding.file) == ("clarity", "process", 0, TEMPORARY)
    assert finding.expected == "EIO and step-00000012 on stderr"
    assert "fsync of step-00000012.pt.77-0a1b2c3d.tmp by rank 0 had failed with EIO" in finding.message


def test_of_the_checkpoint_directory_itself_the_error_is_enough(tmp_path):
    assert case(tmp_path, "OSError: [Errno 5] Input/output error", path=".") == []


def test_a_file_may_be_named_instead_of_the_checkpoint(tmp_path):
    assert case(tmp_path, "rank1.bin: Input/output error", path="step-00000012/rank1.bin") == []


def test_where_nothing_failed_by_itself_there_is_nothing_to_say(tmp_path):
    assert case(tmp_path, "", exits=(exited(0, 0), exited(1, 0))) == []


def test_where_a_rank_was_killed_too_the_error_may_go_unsaid(tmp_path):
    kill = fired("sigkill rank 1 at step 12", 1, step=12)
    assert case(tmp_path, "", more=(kill,)) == []


def test_a_short_write_is_no_error(tmp_path):
    assert case(tmp_path, "", fault="short-write rank 0 on write ** at 30%") == []


def test_a_foreign_trainer_is_not_held_to_it(tmp_path):
    assert case(tmp_path, "", foreign=True) == []
