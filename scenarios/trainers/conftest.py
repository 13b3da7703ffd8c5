"""Real trainers of other projects: collected only where they are installed (the extra `trainers`)."""

from __future__ import annotations

import importlib.util

import pytest

MISSING = [name for name in ("accelerate", "lightning", "torchdata", "transformers") if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_header():
    if MISSING:
        how = "pip install -c constraints.txt -e '.[trainers]', or scripts/trainers"
        return f"scenarios/trainers: not collected, {', '.join(MISSING)} not installed ({how})"
    return None


@pytest.fixture
def attack(harness_workbench, tmp_path):
    """Explores crash states of the second save of a command, a sample of them, and gives what was found."""
    from harness.check_request import parse_command
    from harness.explore import explore, record
    from harness.warming import choose_launch

    def run(words, *, limit, power=True, save=2):
        started = choose_launch(parse_command(words), harness_workbench)
        bench = started.bench
        recordings = record(started.scenario, bench, tmp_path / "recorded")
        window = recordings.recorded.trace.saves()[save - 1]
        found = explore(recordings, window, bench, tmp_path / "states", limit=limit, power=power)
        return found, started.text

    return run
