"""The newest checkpoint is damaged at rest in every way that its bytes allow, one damage at a time, and the job is restarted.

What must hold: whatever was cut, flipped, zeroed, exchanged, deleted or taken from another step, the job names the checkpoint,
passes it over, and resumes exactly from the one before. Here a seeded sample with something of every kind; all of them:
tests/quality/test_damages_of_formats.py. Red control: a trainer that compares no checksum takes flipped bits for weights.
"""

from __future__ import annotations

import pytest
from saves import swept

DAMAGES = {"sharded": 5, "safetensors": 3}


@pytest.mark.parametrize("format", DAMAGES)
def test_no_damage_of_the_newest_checkpoint_is_taken_for_good(harness_workbench, tmp_path, format):
    result = swept(harness_workbench, tmp_path, format, ranks=2 if format == "sharded" else 1, sample=DAMAGES[format])
    assert result.outcome == "PASS", result.describe()
    assert len(result.judged) + result.num_unchanged == DAMAGES[format]


def test_a_trainer_that_does_not_compare_its_checksums_is_found_out(harness_workbench, tmp_path):
    flips = "a flipped bit in the tensor data"
    result = swept(harness_workbench, tmp_path, "sharded", defects="no-checksum", sample=2, only=flips)
    assert [(cause.kind, cause.component) for cause in result.causes] == [("corrupt-accepted", "checkpoint-files")]
    assert (result.causes[0].text, result.causes[0].num_cases) == (f"{flips} of rank*.bin", 2)
