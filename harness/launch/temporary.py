"""A folder that goes when this process goes, however it ends.

Responsible for: large things that nobody may find again after a kill, such as check-outs of a repository. A process of its own
waits for the end of this one (its standard input, a pipe, ends then) and removes the folder; the ordinary end takes the same way.
Not covered: a machine that stops, and a SIGKILL of that process as well.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_REMOVED_S = 60.0
# What still runs in the folder when its owner is killed is ended by its keeper meanwhile, and may write until then.
_REMOVER = """
import os, shutil, sys, time
sys.stdin.buffer.read()
for _ in range(100):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.lexists(sys.argv[1]):
        break
    time.sleep(0.3)
"""


@contextlib.contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """A new folder below the system's temporary directory, readable by this user only; `purpose` is a part of its name."""
    folder = Path(tempfile.mkdtemp(prefix=f"harness-{purpose}-")).resolve()
    remover = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _REMOVER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # Ctrl-C is for the process that waits for this one
    )
    try:
        yield folder
    finally:
        assert remover.stdin is not None
        remover.stdin.close()
        remover.wait(_REMOVED_S)
