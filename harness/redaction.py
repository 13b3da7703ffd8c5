"""What is given away says nothing of whose machine it comes from: paths, user names and host names are replaced.

Responsible for: text and JSON, with the same word for the same thing everywhere. Paths that are known get a word that says what
they are (`TRAINER`, `RUN`, `HOME`); of others the folder becomes a number and the last name stays (`PATH-1/train.py`): a trace
is of no use without it. What lies below `site-packages` or the standard library stays from there on.
Not covered: names in another form than the system's (a nickname in a run's title), and what a trainer says of its data.
"""

from __future__ import annotations

import getpass
import ipaddress
import os
import platform
import re
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.failures import COMPONENTS

# Names that are on every second machine say nothing of a person, and are words of logs and code.
_EVERYBODYS = frozenset(
    {*COMPONENTS, "root", "user", "admin", "ubuntu", "debian", "runner", "nobody", "localhost"}
    | {"torch", "python", "harness", "train", "trainer", "test", "state", "rank", "step", "steps", "batch", "event", "save"}
)
_OF_NO_MACHINE = ("127.", "0.0.0.")
_NO_SECRET = ("/dev/", "/proc/", "/sys/")
_PART = r"[^\s\"'`,;:()<>|*?\[\]{}\\/=]+"
_PATH = re.compile(rf"(?:(?<=file://)|(?<![\w.}}/*?\])~-]))/{_PART}(?:/{_PART})+/?")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
# What looks like one: the time of day and the names of C++ are told from it by reading it.
_ADDRESS_6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:%\w+)?(?![\w:])")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_OF_A_PERSON = re.compile(r"/(?:home|Users)/([^/]+)")
_KEPT_FROM = re.compile(r".*/(?:(?=(?:site|dist)-packages/)|lib/(?=python3\.\d+/))")


def known_places() -> dict[str, str]:
    """The paths of this machine that have a word of their own."""
    places = {str(Path.home()): "HOME", tempfile.gettempdir(): "TMP", sys.prefix: "PYTHON", str(Path.cwd()): "HERE"}
    return places | {os.path.realpath(path): word for path, word in places.items()}


def known_names() -> dict[str, str]:
    """The names of this user and this machine."""
    names = dict.fromkeys([os.environ.get("USER"), os.environ.get("LOGNAME"), _user(), Path.home().name], "USER")
    host = socket.gethostname()
    names |= dict.fromkeys([host, host.partition(".")[0], platform.node(), os.environ.get("HOSTNAME")], "HOST")
    return {name: word for name, word in names.items() if name}


def names_in(paths: Iterable[str]) -> dict[str, str]:
    """The names of people in whose folders these paths lie: a trainer runs as another user in a container."""
    return {found[1]: "USER" for path in paths if (found := _OF_A_PERSON.match(path))}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id that no file knows, as in containers
        return ""


class Redactor:
    """Replaces paths and names.

    Args:
        places: paths and the words for them; a longer one goes before a shorter one.
        names: user and host names and the words for them.
    """

    def __init__(self, places: Mapping[str, str], names: Mapping[str, str]) -> None:
        paths = [path for path in places if len(path) > 1]
        self._places = {path.rstrip("/"): places[path] for path in sorted(paths, key=len, reverse=True)}
        self._names = {name: word for name, word in names.items() if len(name) > 1 and name.lower() not in _EVERYBODYS}
        self._folders: dict[str, str] = {}
        self._known = _either(self._places, r"(?<![\w.-])", r"(?![\w.-])")
        self._named = _either(self._names, r"(?<![^\W_])", r"(?![^\W_])")

    def text(self, text: str) -> str:
        """The text without them."""
        if self._known:
            text = self._known.sub(lambda found: self._places[found[0]], text)
        text = _PATH.sub(lambda found: self._path(found[0]), text)
        text = _MAIL.sub("MAIL", text)
        text = _ADDRESS.sub(lambda found: found[0] if found[0].startswith(_OF_NO_MACHINE) else "ADDRESS", text)
        text = _ADDRESS_6.sub(lambda found: _address_6(found[0]), text)
        if self._named:
            by_name = {name.lower(): word for name, word in self._names.items()}
            text = self._named.sub(lambda found: by_name[found[0].lower()], text)
        return text

    def data(self, value: Any) -> Any:
        """The same of JSON: every text in it, keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.data(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(item) for item in value]
        return value

    def _path(self, path: str) -> str:
        if path.startswith(_NO_SECRET):
            return path
        if kept := _KEPT_FROM.match(path):
            return path[kept.end() :]
        folder, _, name = path.rstrip("/").rpartition("/")
        if folder in ("/home", "/Users"):
            name = "USER"
        word = self._folders.setdefault(folder, f"PATH-{len(self._folders) + 1}")
        return f"{word}/{name}"


def _address_6(text: str) -> str:
    """The word for an address, where the text is one, and not one that every machine has."""
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return text
    return text if address.is_loopback or address.is_unspecified else "ADDRESS"


def _either(texts: Iterable[str], before: str, after: str) -> re.Pattern[str] | None:
    longest_first = sorted(texts, key=len, reverse=True)
    if not longest_first:
        return None
    return re.compile(f"{before}(?:{'|'.join(map(re.escape, longest_first))}){after}", re.IGNORECASE if "_" in after else 0)
