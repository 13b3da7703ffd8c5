"""What is said of a preloaded process that does not come to be ready in time."""

from __future__ import annotations

import io
import os
import types

import pytest

from harness.errors import LaunchError
from harness.launch import warm
from harness.launch.warm import Preloading, WarmLaunch


@pytest.mark.parametrize(
    ("code", "said"), [(None, "had not imported torch after 0.05 s: the machine is too"), (1, "ended without a word")]
)
def test_a_server_that_is_late_is_told_from_one_that_has_ended(tmp_path, monkeypatch, code, said):
    monkeypatch.setattr(warm, "_PRELOAD_S", 0.05)
    ready, kept_open = os.pipe()
    if code is not None:
        os.close(kept_open)
    (tmp_path / "log").touch()
    process = types.SimpleNamespace(stdin=io.BytesIO(), poll=lambda: code, kill=lambda: None, wait=lambda: code)
    preloading = Preloading.__new__(Preloading)
    launch = WarmLaunch(tmp_path, os.getpid())
    preloading.__dict__.update(_first=launch, _process=process, _ready=ready, _log=tmp_path / "log", _draft=tmp_path / "draft")
    with pytest.raises(LaunchError, match=said):
        preloading.finish(launch)
    if code is None:
        os.close(kept_open)
