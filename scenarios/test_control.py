"""Nothing is done to the job. Whatever fails here is a false alarm of the harness, or a job that is not deterministic."""

from __future__ import annotations

import pytest
from saves import short_job

pytestmark = pytest.mark.control


@pytest.mark.parametrize(
    ("format", "ranks"), [("single", 1), ("single", 2), ("sharded", 2), ("dcp", 1), ("dcp", 2), ("sharded", 4)]
)
def test_an_undisturbed_job_equals_the_uninterrupted_run(check_resume, format, ranks):
    check_resume(short_job(format, ranks=ranks))


@pytest.mark.parametrize("format", ["single", "sharded"])
def test_an_undisturbed_fp16_job_equals_the_uninterrupted_run(check_resume, format):
    check_resume(short_job(format, ranks=2, precision="fp16"))


@pytest.mark.parametrize("ranks", [3])
def test_an_undisturbed_job_with_shared_random_streams(check_resume, ranks):
    check_resume(short_job("single", ranks=ranks, rng_scope="global"))


def test_an_undisturbed_job_that_goes_on_after_failed_saves(check_resume):
    check_resume(short_job("sharded", ranks=2, on_save_error="continue"))
