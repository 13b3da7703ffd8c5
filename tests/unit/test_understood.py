"""Which command lines are started from the preloaded process, and where their ranks meet."""

from __future__ import annotations

import sys

import pytest

from harness.launch.ports import reserved_port
from harness.launch.understood import keeps_out, understand, why_cold

OWN = sys.executable


@pytest.mark.parametrize(
    ("words", "program", "ranks"),
    [
        ([OWN, "train.py", "--out", "x"], ("train.py", "--out", "x"), None),
        ([OWN, "-u", "train.py"], ("train.py",), None),
        ([OWN, "-m", "package.train", "-v"], ("-m", "package.train", "-v"), None),
        ([OWN, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"], ("train.py",), 2),
        ([OWN, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=4", "-m", "train", "x"], ("-m", "train", "x"), 4),
    ],
)
def test_a_program_is_read_off_its_command_line(words, program, ranks):
    found = understand(words)
    assert (found.words, found.ranks, found.own_interpreter) == (program, ranks, True)
    assert why_cold(words) == ""


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["bash", "train.sh"],
        [OWN, "-c", "pass"],
        [OWN, "-I", "train.py"],
        [OWN],
        [OWN, "-m", "torch.distributed.run", "--nnodes", "2", "train.py"],
        [OWN, "-m", "torch.distributed.run", "--nproc-per-node", "auto", "train.py"],
        [OWN, "-m", "torch.distributed.run", "--no-python", "train.sh"],
        [OWN, "-m", "torch.distributed.run", "--unheard-of", "1", "train.py"],
    ],
)
def test_what_is_not_understood_is_started_as_it_stands(words):
    assert understand(words) is None
    assert "is no `python SCRIPT`" in why_cold(words)


def test_another_interpreter_is_started_as_it_stands(tmp_path):
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert "is another Python than the one that runs the harness" in why_cold([str(other), "train.py"])


def test_no_two_attempts_meet_at_one_port(monkeypatch):
    monkeypatch.setattr("harness.launch.ports._PORTS", (28_000, 28_002))
    with reserved_port() as one, reserved_port() as other:
        assert {one, other} == {28_000, 28_001}


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["python", "-I", "train.py"], "-I"),
        (["/usr/bin/python3.11", "-u", "-sE", "train.py"], "-E"),
        (["python3", "-W", "ignore", "-S", "-m", "train"], "-S"),
        (["python", "-Wignore", "-X", "dev", "-BI", "train.py"], "-I"),
        (["python", "-u", "train.py", "-I"], ""),
        (["python", "-m", "train", "-S"], ""),
        (["python", "-mtrain", "-S"], ""),
        (["python", "-c", "import train", "-E"], ""),
        (["python", "-W", "-S", "train.py"], ""),
        (["python", "--check-hash-based-pycs", "default", "-S", "train.py"], ""),
        (["python", "-"], ""),
        (["torchrun", "-S"], ""),
        (["no-such-program", "-I"], ""),
        ([], ""),
    ],
)
def test_an_option_that_keeps_watchers_out_is_found(words, option):
    assert keeps_out(words) == option


@pytest.mark.parametrize(
    ("first", "option"),
    [
        ("#!/usr/bin/python3 -I", "-I"),
        ("#!/usr/bin/env -S python3 -sE", "-E"),
        ("#!/usr/bin/python3", ""),
        ("#!/bin/sh -e", ""),
        ("import sys", ""),
        ("", ""),
    ],
)
def test_the_same_in_the_first_line_of_a_script(tmp_path, first, option):
    script = tmp_path / "train"
    script.write_text(f"{first}\n")
    script.chmod(0o755)
    assert keeps_out([str(script), "-S"]) == option
