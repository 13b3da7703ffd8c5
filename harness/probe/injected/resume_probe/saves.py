"""When a foreign job saves and loads: by what it writes below the checkpoint directory, and by what it calls.

Responsible for: one save for everything that is written between two batches, begun before its first byte, and ended once all
ranks must be past it. Opens are seen through Python's audit events; what torch and safetensors write by themselves, through
their functions.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

from .imports import when_imported

# Files that a job writes beside its checkpoints all the time.
_LOGS = re.compile(r"(\.log|\.txt|\.csv|\.json|\.jsonl|\.ya?ml|\.md|\.lock|\.html)$|tfevents")
_TEMPORARY = re.compile(r"(^(tmp|temp)[-_.]|^\.|[-_.](tmp|temp|partial|incomplete|new|saving|staging)([-_.].*)?$)")


class Saves:
    """Watches a checkpoint directory.

    Args:
        root: of the checkpoints, absolute.
        began: called with the name of the checkpoint, before anything of it is written.
    """

    def __init__(self, root: str, began: Callable[[str], None]) -> None:
        self._root = os.path.realpath(root)
        self._began = began
        self.opened: list[str] = []
        self.name = ""
        self.pending = 0
        self.busy = False
        self._elsewhere = False
        self._main = threading.get_ident()
        sys.addaudithook(self._heard)
        when_imported("torch", self._patch_torch)
        when_imported("torch.distributed.checkpoint", self._patch_dcp)
        when_imported("safetensors.torch", self._patch_safetensors)

    def quiet(self) -> bool:
        """Whether nothing of the current save has been written in the background since the last call."""
        elsewhere, self._elsewhere = self._elsewhere, False
        return not elsewhere and self.pending == 0

    def ended(self) -> str:
        """Forgets the current save, and returns its name."""
        name, self.name = self.name, ""
        return name

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            if isinstance(path, (str, bytes)) and (inside := self._inside(path)):
                writes = (mode and any(letter in mode for letter in "wax+")) or (not mode and flags & (os.O_WRONLY | os.O_RDWR))
                if writes and not _LOGS.search(inside):
                    self._touched(inside)
                elif not writes:
                    self.opened.append(inside.split("/", 1)[0])
        elif event == "os.rename" and self.name and isinstance(args[1], (str, bytes)):
            inside = self._inside(args[1])
            if inside and _TEMPORARY.search(self.name) and not _LOGS.search(inside):
                self.name = inside.split("/", 1)[0]

    def _inside(self, path: str | bytes) -> str:
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        return text[len(self._root) + 1 :] if text.startswith(self._root + "/") else ""

    def _touched(self, inside: str) -> None:
        if self.busy:
            return
        self.busy = True  # what is done to write this down is not a save
        try:
            self._elsewhere = self._elsewhere or threading.get_ident() != self._main
            if not self.name:
                self.name = inside.split("/", 1)[0]
                self._began(self.name)
        finally:
            self.busy = False

    def _wrapped(self, owner: Any, name: str, place: int) -> None:
        """Sees a function that opens the path in its argument number `place` without Python."""
        real = getattr(owner, name, None)
        if real is None:
            return

        @functools.wraps(real)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            target = args[place] if len(args) > place else kwargs.get("f", kwargs.get("filename"))
            if isinstance(target, (str, os.PathLike)) and (inside := self._inside(os.fspath(target))):
                self._touched(inside)
            return real(*args, **kwargs)

        setattr(owner, name, wrapper)

    def _reader(self, owner: Any, name: str) -> None:
        real = getattr(owner, name, None)
        if real is None:
            return

        @functools.wraps(real)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if args and isinstance(args[0], (str, os.PathLike)) and (inside := self._inside(os.fspath(args[0]))):
                self.opened.append(inside.split("/", 1)[0])
            return real(*args, **kwargs)

        setattr(owner, name, wrapper)

    def _patch_torch(self) -> None:
        self._wrapped(sys.modules["torch"], "save", 1)

    def _patch_safetensors(self) -> None:
        module = sys.modules["safetensors.torch"]
        self._wrapped(module, "save_file", 1)
        self._reader(module, "load_file")

    def _patch_dcp(self) -> None:
        module = sys.modules["torch.distributed.checkpoint"]
        real = getattr(module, "async_save", None)
        if real is None:
            return

        @functools.wraps(real)
        def async_save(*args: Any, **kwargs: Any) -> Any:
            self.pending += 1
            answer = real(*args, **kwargs)
            future = getattr(answer, "upload_completion", answer)
            future.add_done_callback(lambda _: setattr(self, "pending", self.pending - 1))
            return answer

        setattr(module, "async_save", async_save)  # noqa: B010
