"""When a foreign job saves and loads: by what it writes below the checkpoint directory, and by what it calls.

Responsible for: one save for everything that is written between two batches, begun before its first byte, and ended once all
ranks must be past it. Opens and renames are seen through Python's audit events; what torch and safetensors write by
themselves, through their functions. Nothing that goes wrong here reaches the trainer.
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
_LOGS = re.compile(r"(\.log|\.csv|\.jsonl|\.md|\.lock|\.html|\.png|\.py)$|tfevents")
# Text may be a checkpoint, a configuration, or figures for people: by its name, where no save is under way.
_TEXTS = re.compile(r"\.(txt|json|ya?ml)([-_.](tmp|temp|partial|new))?$")
_STATE = re.compile(r"ckpt|checkpoint|state|model|weights|step|epoch|resume|snapshot", re.IGNORECASE)
# What says which checkpoint counts, and is none itself.
_POINTERS = re.compile(
    r"^[._]?(latest|last|current|newest|tracker|pointer|checkpoint)[\w-]*(\.(txt|json))?(\.tmp)?$", re.IGNORECASE
)
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR


class Saves:
    """Watches a checkpoint directory.

    Args:
        root: of the checkpoints, absolute.
        began: called with the name of the checkpoint, before anything of it is written.
        moved_on: whether another batch has been done since the save began.
        ended: called when it must be over because another one begins.
        failed: told of what goes wrong here.
    """

    def __init__(
        self,
        root: str,
        began: Callable[[str], None],
        moved_on: Callable[[], bool],
        ended: Callable[[], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._roots = tuple({os.path.abspath(root) + os.sep, os.path.realpath(root) + os.sep})  # noqa: PTH100
        self._began, self._moved_on, self._ended, self._failed = began, moved_on, ended, failed
        self.opened: dict[str, None] = {}  # in order; of each the last time counts
        self.loading = True  # what is read later on is of no interest
        self.name = ""
        self.written: dict[str, None] = {}  # top-level names that are written in the current save, its own among them
        self.pending = 0
        self.busy = False
        self.pointer = False  # all that was written of it so far says which checkpoint counts
        self.goes_on = False  # what begins now is the rest of the save before, of which it has written no file yet
        self._elsewhere = False
        self._writers: set[threading.Thread] = set()
        self._own: set[threading.Thread] = set()  # those that have written something of the current save
        self._of_last: tuple[str, set[str]] = ("", set())
        self._promised = False  # by `async_save`, whose future says when it is done
        self._serialised = False  # in this batch, into memory: what is written next is a save, whatever its name
        self._main = threading.get_ident()
        sys.addaudithook(self._heard)
        when_imported("torch", self._patch_torch)
        when_imported("torch.distributed.checkpoint", self._patch_dcp)
        when_imported("safetensors.torch", lambda: self._patch_safetensors("safetensors.torch"))
        when_imported("safetensors.numpy", lambda: self._patch_safetensors("safetensors.numpy"))

    def quiet(self) -> bool:
        """Whether nothing of the current save is being written in the background any more.

        Of `async_save` its future tells; of a thread of the trainer's own its end. One that lives on may be about to write more.
        """
        elsewhere, self._elsewhere = self._elsewhere, False
        if self._promised or not self._writers:
            return not elsewhere and self.pending == 0
        return not any(thread.is_alive() for thread in self._writers)

    def batch_done(self) -> None:
        """What was serialised before is no matter of what is written from now on."""
        self._serialised = False

    def taken(self) -> tuple[str, list[str]]:
        """Forgets the current save, and returns its name, and all top-level names that were written in it."""
        name, written = self.name, list(self.written)
        self.name, self.written, self._own = "", {}, set()
        return name, written

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.link", "_thread.start_new_thread") or self.busy:
            return
        try:
            if event == "_thread.start_new_thread":
                self._thread_begins()
            elif event == "open":
                self._opens(*args)
            else:
                self._renames(args[0], args[1])
        except Exception as error:  # noqa: BLE001  an audit hook that raises stops the trainer's own call
            self._failed("saves", error)

    def _thread_begins(self) -> None:
        """Who has waited for a background save and begins the next has done with the first, though no batch lies between."""
        if self.name and self._own and not self._promised and not any(thread.is_alive() for thread in self._own):
            self.busy = True
            try:
                self._ended()
            finally:
                self.busy = False

    def _opens(self, path: Any, mode: Any, flags: Any) -> None:
        inside = self._inside(path)
        if not inside:
            return
        appends = "a" in mode if isinstance(mode, str) else bool(flags & os.O_APPEND)
        writes = any(letter in mode for letter in "wx+") if isinstance(mode, str) else bool(flags & _WRITE_FLAGS)
        if not writes and not appends:
            self._read(inside)
        elif flags & getattr(os, "O_DIRECTORY", 0):
            return
        elif (self._serialised and appends) or (writes and not appends and not _LOGS.search(inside)):
            self._touched(inside)

    def _renames(self, source: Any, target: Any) -> None:
        inside = self._inside(target)
        if not inside or _LOGS.search(inside):
            return
        start = self._inside(source)
        if start and _top(start) in self.written:
            del self.written[_top(start)]
            self.written[_top(inside)] = None
        if self.name and start and _top(start) == self.name:
            self.name = _top(inside)
        elif not start:
            self._touched(inside)  # what was written elsewhere is put into its place

    def _read(self, inside: str) -> None:
        if self.loading and not self.busy:
            self.opened.pop(_top(inside), None)
            self.opened[_top(inside)] = None

    def _inside(self, path: Any) -> str:
        """The path below the checkpoint directory, "" for any other."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return ""
        text = os.fsdecode(path)
        if not os.path.isabs(text) or "/." in text or "//" in text:  # noqa: PTH117
            text = os.path.abspath(text)  # noqa: PTH100
        return next((text[len(root) :] for root in self._roots if text.startswith(root)), "")

    def _touched(self, inside: str) -> None:
        if self.busy:
            return
        self.busy = True  # what is done to write this down is not a save
        try:
            is_pointer = bool(_POINTERS.search(inside))
            # What the thread that has written a checkpoint says of it is a part of that save, however far training has got.
            closes = is_pointer and threading.current_thread() in self._own
            if threading.get_ident() != self._main:
                self._elsewhere = True
                self._writers = {one for one in self._writers if one.is_alive()} | {threading.current_thread()}
            if self.name and _top(inside) != self.name and self._moved_on() and self.pending == 0 and not closes:
                self._ended()
            if self.pointer and _top(inside) != self.name and not _TEXTS.search(inside) and not self._moved_on():
                if threading.get_ident() == self._main:
                    self.name = _top(inside)  # the pointer came first; what it points to is the checkpoint
                else:
                    self._ended()  # the pointer was to another one
                self.pointer = False
            is_state = not _TEXTS.search(inside) or _STATE.search(inside)
            if not self.name and is_state:
                self.name = _top(inside)
                name, written = self._of_last
                self.goes_on = self._elsewhere and name == self.name and inside not in written
                self._of_last = (self.name, set())
                self.pointer = is_pointer
                self._began(self.name)
            if self.name and threading.get_ident() != self._main:
                self._own.add(threading.current_thread())
            if self.name and is_state and not is_pointer:
                self.written[_top(inside)] = None
            if self.name and _top(inside) == self._of_last[0]:
                self._of_last[1].add(inside)
        finally:
            self.busy = False

    # -- functions that open files without Python ---------------------------------------------------------------------

    def _careful(self, what: Callable[[str], None], target: Any) -> None:
        try:
            if isinstance(target, (str, os.PathLike)) and (inside := self._inside(target)):
                what(inside)
        except Exception as error:  # noqa: BLE001  whatever it is
            self._failed("saves", error)

    def _seeing(self, real: Callable[..., Any], what: Callable[[str], None], place: int, *names: str) -> Callable[..., Any]:
        """The function, which tells `what` of the path in its argument number `place`, or by one of the names."""

        @functools.wraps(real)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            named = [kwargs[name] for name in names if kwargs.get(name) is not None]
            for target in [*args[place : place + 1], *named]:
                self._careful(what, target)
            return real(*args, **kwargs)

        return wrapper

    def _patch_torch(self) -> None:
        real = sys.modules["torch"].save
        seen = self._seeing(real, self._touched, 1, "f")

        @functools.wraps(real)
        def save(*args: Any, **kwargs: Any) -> Any:
            target = kwargs.get("f", args[1] if len(args) > 1 else None)
            self._serialised = self._serialised or not isinstance(target, (str, os.PathLike))
            return seen(*args, **kwargs)

        put_in_place({real: save})

    def _patch_safetensors(self, name: str) -> None:
        module = sys.modules[name]
        writer, reader = module.save_file, module.load_file
        put_in_place(
            {
                writer: self._seeing(writer, self._touched, 1, "filename"),
                reader: self._seeing(reader, self._read, 0, "filename"),
            }
        )

    def _patch_dcp(self) -> None:
        module = sys.modules["torch.distributed.checkpoint"]
        save, load, later = module.save, module.load, getattr(module, "async_save", None)
        replaced = {
            save: self._of_storage(save, self._touched, "storage_writer"),
            load: self._of_storage(load, self._read, "storage_reader"),
        }
        if later is not None:
            replaced[later] = self._counted(self._of_storage(later, self._touched, "storage_writer"))
        put_in_place(replaced)

    def _of_storage(self, real: Callable[..., Any], what: Callable[[str], None], storage: str) -> Callable[..., Any]:
        @functools.wraps(real)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            place = kwargs.get("checkpoint_id") or getattr(kwargs.get(storage), "path", None)
            self._careful(what, place)
            return real(*args, **kwargs)

        return wrapper

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """A save in the background is under way until its future is done."""

        @functools.wraps(real)
        def async_save(*args: Any, **kwargs: Any) -> Any:
            answer = real(*args, **kwargs)
            self._promised = True
            future = getattr(answer, "upload_completion", answer)
            self.pending += 1
            future.add_done_callback(lambda _: setattr(self, "pending", self.pending - 1))
            return answer

        return async_save


def _top(inside: str) -> str:
    return inside.split("/", 1)[0]


def put_in_place(replaced: dict[Callable[..., Any], Callable[..., Any]]) -> None:
    """Wherever a loaded module has one of these functions by a name of its own, it gets the other one.

    A module that was loaded before has them from `from … import …`, and functions are pickled by the name that finds them.
    """
    by_id = {id(real): new for real, new in replaced.items()}
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            for name, value in list(names.items()):
                if id(value) in by_id:
                    names[name] = by_id[id(value)]
