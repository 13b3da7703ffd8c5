"""What docs/findings.md says of other libraries still holds: each replay file fails, as it is written there.

Expected failures: the libraries are what they are, and the oracles are not softened for them. A finding that passes one day makes
its test fail: the library has been mended, and the row in docs/findings.md needs the version. One that fails in another way fails
here too.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.case import run_case
from harness.errors import CapabilityError
from harness.plan import read_plan
from harness.report.text import render

FOLDER = Path(__file__).resolve().parents[2] / "scenarios" / "findings"
LOST = ("FAIL", "last-good-lost", "checkpoint-files")
# Replay file → the file that is lost, and why.
FINDINGS = {
    "dcp-overwrite-unlinks-metadata": ("latest/.metadata", "torch 2.13.0 DCP: overwriting removes .metadata before the rename"),
    "dcp-overwrite-truncates-shards": ("latest/__0_0.distcp", "torch 2.13.0 DCP: overwriting empties the shards of the last one"),
    "dcp-metadata-is-not-synced": ("step-2/.metadata", "torch 2.13.0 DCP: .metadata is synced before it is flushed"),
    "dcp-metadata-is-not-synced-ext4": ("step-2/.metadata", "the same on a real ext4"),
    "dcp-names-are-not-synced": ("step-2/.metadata", "torch 2.13.0 DCP: no directory is synced"),
    "safetensors-is-not-synced": ("latest.safetensors", "safetensors 0.8.0: save_file syncs nothing"),
}


class StillFailsError(Exception):
    """It fails exactly as it is written down."""


def case(name):
    _, reason = FINDINGS[name]
    # What a real disk has written by itself before its power is cut is chance: on a slow day the file may be whole.
    strict = not name.endswith("-ext4")
    return pytest.param(name, marks=pytest.mark.xfail(strict=strict, raises=StillFailsError, reason=reason))


@pytest.mark.parametrize("name", [case(name) for name in FINDINGS])
def test_a_finding_still_holds(harness_workbench, name):
    scenario = read_plan(FOLDER / f"{name}.toml").scenario
    try:
        verdict, directory = run_case(scenario, harness_workbench)
    except CapabilityError as error:
        if not name.endswith("-ext4"):
            raise
        # Without root or loop devices there is no real file system to cut, which is said, and is no finding.
        raise StillFailsError(str(error)) from None
    found = (verdict.outcome, verdict.kind, verdict.component)
    shutil.rmtree(directory.path)
    if found == LOST and verdict.root is not None and verdict.root.file == FINDINGS[name][0]:
        raise StillFailsError(verdict.root.message)
    assert verdict.outcome == "PASS", render(verdict, directory.path)  # a failure, but another one than was written down


def test_every_replay_file_is_a_row_of_the_document():
    text = (FOLDER.parents[1] / "docs" / "findings.md").read_text()
    files = sorted(path.stem for path in FOLDER.glob("*.toml"))
    assert files == sorted(FINDINGS)
    assert [name for name in files if f"`{name}.toml`" not in text] == []
