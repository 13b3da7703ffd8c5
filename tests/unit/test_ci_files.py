"""The workflow files of docs/ci: every command in them exists, with the options that it is given."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from harness.cli import cli

FILES = sorted((Path(__file__).parents[2] / "docs" / "ci").glob("*.yml"))
# As a CI system fills them in.
VALUES = {"BUDGET": "60m", "SHARD": "1/4", "ARTIFACT_LIMIT": "200MB", "CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "4"}


def commands(text, program):
    """The words of each line that runs the program."""
    text = re.sub(r"\$\{\{[^}]*\}\}", "7", text)
    text = re.sub(r"\$(\w+)", lambda match: VALUES.get(match[1], match[0]), text)
    for line in text.splitlines():
        found = re.match(rf"\s*(?:-\s+(?:run:\s+)?|run:\s+)?({program}\s.*)$", line)
        if found:
            yield shlex.split(found[1].removesuffix("|| true"))


def wrong_options(words):
    """What click says against a command line of ours, "" where it says nothing; nothing is run."""
    name, *rest = words[1:]
    command = cli.get_command(click.Context(cli), name)
    if command is None:
        return f"no command {name}"
    try:
        with command.make_context(name, list(rest), resilient_parsing=False):
            return ""
    except click.ClickException as error:
        return error.format_message()


def test_there_are_files():
    assert [file.name for file in FILES] == ["gitlab.yml", "nightly.yml"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_command_of_the_harness_is_one(file):
    found = list(commands(file.read_text(encoding="utf-8"), "harness"))
    assert len(found) >= 3
    # What is built beside this and joins it: its options are looked at as soon as it is there.
    known = [words for words in found if words[1] != "chaos" or "chaos" in cli.commands]
    assert {" ".join(words): problem for words in known if (problem := wrong_options(words))} == {}


def test_what_is_installed_has_the_extras_that_the_commands_need():
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        installed = [set(found.split(",")) for found in re.findall(r"pip install 'resume-harness\[([\w,]+)\]'", text)]
        assert installed
        assert all("report" in extras for extras in installed)
        if any(words[1] == "chaos" for words in commands(text, "harness")):
            assert any("chaos" in extras for extras in installed)


def test_a_wrong_option_would_be_seen():
    assert "--shards" in wrong_options(["harness", "check", "--shards", "1/4", "--reference", "single"])
    assert wrong_options(["harness", "no-such"]) == "no command no-such"
    assert list(commands("  - harness report x || true\n# harness no\n", "harness")) == [["harness", "report", "x"]]


def test_the_options_for_pytest_are_those_of_the_plugin(pytestconfig):
    lines = [words for file in FILES for words in commands(file.read_text(encoding="utf-8"), "pytest")]
    assert lines
    for words in lines:
        known, unknown = pytestconfig._parser.parse_known_and_unknown_args(words[1:])
        assert [word for word in unknown if word.startswith("-")] == []
        assert known.shard == "1/4"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_kept_has_a_limit(file):
    text = file.read_text(encoding="utf-8")
    assert "--artifact-limit" in text
    assert re.search(r"ARTIFACT_LIMIT: \d+MB", text)
