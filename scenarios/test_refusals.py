"""The job is killed, and before it comes back a checkpoint says something else than it did, although every byte can be read.

What must hold: whatever is wrong with a checkpoint, it is seen before anything of it is used. With an older good one the job
resumes from that and names the one that it passed over; with none left it refuses, naming the file, what was expected and
what was found, and leaves everything as it is. A newest checkpoint with tensors of other names is not damaged but of another
model: to go back behind it would lose work silently, so that every format refuses. Code in a checkpoint is never run.
Checksums are corrected on the way to the damage, so that it is not they that see it. What they see: test_truncated_shards.py.
Controls: test_control.py; and here, the same kill with nothing tampered with.
"""

from __future__ import annotations

import pytest
from saves import FORMATS, short_job

KILL = "sigkill all ranks at step 7"  # the newest checkpoint is then that of batch 6
RANKS = {"single": 1, "sharded": 2, "dcp": 1}
# Where the payload's names stand; a checkpoint that is one file has no names below it.
PAYLOAD = {"single": "", "sharded": "/rank1.bin", "dcp": "/.metadata"}
MANIFEST = {"single": "", "sharded": "/manifest.json", "dcp": "/manifest.json"}

WRONG_MANIFESTS = [
    ("sharded", "unknown-schema"),
    ("sharded", "unsafe-path-absolute"),
    ("sharded", "duplicate-rank"),
    ("sharded", "missing-rank"),
    ("sharded", "sha256-mismatch"),
    ("dcp", "unsafe-path-parent"),
    ("dcp", "missing-rank"),
]
WRONG_PAYLOADS = [
    ("single", "unknown-schema"),
    ("single", "sha256-mismatch"),
    ("sharded", "unknown-schema"),
    *((name, word) for name in FORMATS for word in ("missing-key", "unexpected-key", "hostile-pickle")),
]


def tampered(format, target, word, **settings):
    """The short job, killed and tampered with."""
    return short_job(format, ranks=RANKS[format], faults=[KILL, f"tamper {target} with {word}"], **settings)


@pytest.mark.control
@pytest.mark.parametrize("format", ["single", "dcp"])  # of `sharded`: test_truncated_shards.py
def test_the_kill_alone_loses_nothing(check_resume, format):
    check_resume(short_job(format, ranks=RANKS[format], faults=KILL))


@pytest.mark.parametrize(("format", "word"), WRONG_MANIFESTS)
def test_the_manifest_of_the_newest_is_wrong(check_resume, format, word):
    check_resume(tampered(format, f"newest{MANIFEST[format]}", word))


@pytest.mark.parametrize(("format", "word"), [*WRONG_PAYLOADS[:4], *WRONG_PAYLOADS[5::2]])
def test_the_payload_of_the_newest_is_wrong(check_resume, format, word):
    check_resume(tampered(format, f"newest{PAYLOAD[format]}", word))


@pytest.mark.parametrize(
    ("format", "word"), [("sharded", "unsafe-path-parent"), ("dcp", "unknown-schema"), ("dcp", "duplicate-rank")]
)
def test_the_manifests_of_all_are_wrong(check_resume, format, word):
    check_resume(tampered(format, f"every{MANIFEST[format]}", word, expect="refuses"))


@pytest.mark.parametrize(
    ("format", "word"),
    [("single", "missing-key"), ("sharded", "unexpected-key"), *((name, "hostile-pickle") for name in FORMATS)],
)
def test_the_payloads_of_all_are_wrong(check_resume, format, word):
    check_resume(tampered(format, f"every{PAYLOAD[format]}", word, expect="refuses"))


@pytest.mark.parametrize("format", FORMATS)
def test_the_newest_is_of_another_model(check_resume, format):
    check_resume(tampered(format, f"newest{PAYLOAD[format]}", "renamed-tensor", expect="refuses"))


@pytest.mark.parametrize(("format", "files"), [("single", ""), ("sharded", "/rank*.bin"), ("dcp", "/.metadata")])
def test_all_are_of_another_model(check_resume, format, files):
    check_resume(tampered(format, f"every{files}", "renamed-tensor", expect="refuses"))


@pytest.mark.parametrize("format", ["sharded", "dcp"])
def test_a_file_of_all_is_empty(check_resume, format):
    emptied = f"truncate every{MANIFEST[format]} to byte 0"
    check_resume(short_job(format, ranks=RANKS[format], faults=[KILL, emptied], expect="refuses"))


def test_all_were_saved_by_another_number_of_ranks(check_resume):
    check_resume(short_job("sharded", ranks=(2, 1), rng_scope="global", faults=KILL, expect="refuses"))
