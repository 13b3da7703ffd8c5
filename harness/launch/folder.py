"""The folder that the processes of a session share: kept while any of them lives, swept by a later session.

Responsible for: telling a folder that is in use from one that was left over. Each process that needs a folder holds a shared lock
on a file in it, for as long as it lives; the kernel lets go of the lock however the process ends. Process ids would not do: the
same number is another process in another container that sees the same directory.
Not covered: a folder whose owner died before its lock was there; a file system that knows no locks (nothing is then swept).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from pathlib import Path

_LOCK = "in-use"
_NAME = re.compile(r"harness-\d+-[0-9a-f]{8}")
_held: dict[Path, int] = {}  # descriptors of lock files


def new_name() -> str:
    """A name for a folder of this process."""
    return f"harness-{os.getpid()}-{secrets.token_hex(4)}"


def hold(folder: Path) -> None:
    """Makes the folder, readable by this user only, and keeps it from being swept until `let_go` or the end of this process.

    Raises:
        OSError: it cannot be made.
    """
    while folder not in _held:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            if folder.stat().st_uid != os.getuid():
                return  # not ours to lock; whoever wants to use it sees that
            fd = _lock(folder)
        except FileNotFoundError:
            continue  # it was swept at this very moment
        except OSError:
            return  # no locks here, so there is no lock file, and nobody sweeps it
        if _is_at(fd, folder / _LOCK):
            _held[folder] = fd
        else:
            os.close(fd)


def let_go(folder: Path) -> None:
    """The inverse of `hold`."""
    if (fd := _held.pop(folder, None)) is not None:
        os.close(fd)


def sweep(place: Path) -> None:
    """Removes the folders of this user's sessions in `place` that nobody holds any more; of others, none. Never an error."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _sweep_one(Path(entry.path))


def _sweep_one(folder: Path) -> None:
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(directory).st_uid != os.getuid():
            return
        fd = os.open(_LOCK, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: somebody is alive
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(fd)
    finally:
        os.close(directory)


def _lock(folder: Path) -> int:
    """The lock file, open and locked. It appears under its name when it is locked, so that no sweep finds it free."""
    if (folder / _LOCK).exists():
        return _locked(os.open(folder / _LOCK, os.O_RDONLY))
    draft = folder / f"{_LOCK}-{secrets.token_hex(4)}"
    fd = os.open(draft, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _locked(fd)
        os.link(draft, folder / _LOCK)
    except FileExistsError:  # another process of the session was first
        os.close(fd)
        return _locked(os.open(folder / _LOCK, os.O_RDONLY))
    except OSError:
        os.close(fd)
        raise
    finally:
        draft.unlink(missing_ok=True)
    return fd


def _locked(fd: int) -> int:
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def _is_at(fd: int, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
