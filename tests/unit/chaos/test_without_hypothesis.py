"""Where the extra is missing, that is said before anything runs."""

from __future__ import annotations

import pytest

from harness.chaos.request import parse_request
from harness.cli.chaos import chaos
from harness.errors import UsageError


def test_the_missing_extra_is_said_at_once(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    options = chaos.make_context("chaos", ["--reference", "single"]).params
    with pytest.raises(UsageError) as error:
        parse_request(options)
    assert any("pip install 'resume-harness[chaos]'" in problem for problem in error.value.problems)
