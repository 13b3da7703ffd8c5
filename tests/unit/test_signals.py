from __future__ import annotations

import pytest

from harness.commits import git


def test_a_git_that_was_ended_by_ctrl_c_is_no_failure_of_git(tmp_path, monkeypatch):
    """The same Ctrl-C was meant for whoever waits for it, and may not have come there yet."""
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nkill -INT $$\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(KeyboardInterrupt):
        git(tmp_path, "status")
