"""The vocabulary of faults: what can be done to a training job, where, and when.

Responsible for: pure data, and the one sentence that says each of them: `str` of a fault, which `harness.grammar` reads back.
Not responsible for: doing any of it (`harness.inject`, `harness.supervisor`).
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

SIGNALS = {"sigkill": signal.SIGKILL, "sigterm": signal.SIGTERM, "sigstop": signal.SIGSTOP}
NUMERIC_EFFECTS = ("overflow", "nan", "nonfinite-grad", "spike")
DAMAGE_EFFECTS = ("truncate", "flip", "zero", "delete", "swap", "replace", "tamper")
DISK_EFFECTS = ("quota", "full-disk")
CHECKPOINT_CHOICES = ("newest", "older", "every")
NAMES_CHOICES = ("no", "all")
DATA_CHOICES = ("all", "no", "empty", "zeroed", "torn", "rewritten", "guarded")
FILESYSTEMS = ("ext4", "xfs")
# What `tamper` can do to a checkpoint. Checksums on the way to the damage are corrected, so that they do not hide it.
TAMPERINGS = {
    "unknown-schema": "the schema in a manifest or a payload is one that nobody knows",
    "unsafe-path-absolute": "a manifest gives its last shard by an absolute path",
    "unsafe-path-parent": "a manifest gives its last shard by a path through the directory above",
    "duplicate-rank": "a manifest lists its last shard twice",
    "missing-rank": "a manifest does not list its last shard, which is there",
    "sha256-mismatch": "one digit of a recorded sha256 is another: a manifest's for its last shard, or a data file's for itself",
    "missing-key": "a part of a payload has another name, so that it is missing",
    "unexpected-key": "a payload has one more part, which nobody knows",
    "renamed-tensor": "one tensor of the model has another name",
    "hostile-pickle": "a payload runs code when it is unpickled carelessly, and is otherwise what it was",
}
# All names, not `errno.errorcode`: that has one name a number, and would not know EOPNOTSUPP or EWOULDBLOCK.
ERRNO_NAMES = frozenset(name for name in dir(errno) if name.startswith("E"))

# One word for one thing: the family carries the Linux name of its oldest member; the log keeps the exact call beside it.
OPERATIONS: dict[str, tuple[str, ...]] = {
    "open": ("open", "openat", "openat2", "creat"),
    "read": ("read", "pread64", "readv", "preadv", "preadv2"),
    "write": ("write", "writev", "pwrite64", "pwritev", "pwritev2", "sendfile", "copy_file_range"),
    "truncate": ("truncate", "ftruncate", "fallocate"),
    "fsync": ("fsync", "fdatasync", "sync_file_range", "syncfs", "sync"),
    "rename": ("rename", "renameat", "renameat2"),
    "link": ("link", "linkat"),
    "symlink": ("symlink", "symlinkat"),
    "unlink": ("unlink", "unlinkat"),
    "mkdir": ("mkdir", "mkdirat"),
    "rmdir": ("rmdir",),
    "chmod": ("chmod", "fchmod", "fchmodat", "fchmodat2"),
}


@dataclass(frozen=True)
class Who:
    """The ranks a fault speaks of.

    Attributes:
        ranks: the named ranks; empty for a quantifier.
        quantifier: "all" or "any", or "" when ranks are named.
    """

    ranks: tuple[int, ...] = ()
    quantifier: str = ""

    def __str__(self) -> str:
        if self.quantifier:
            return "all ranks" if self.quantifier == "all" else "any rank"
        if len(self.ranks) == 1:
            return f"rank {self.ranks[0]}"
        return "ranks " + ",".join(map(str, self.ranks))

    def covers(self, rank: int) -> bool:
        """Whether the fault concerns this rank at all."""
        return bool(self.quantifier) or rank in self.ranks


@dataclass(frozen=True)
class Position:
    """A place in a run of bytes: `percent`, or `byte` (negative: counted from the end, -1 is all but the last byte)."""

    percent: float | None = None
    byte: int | None = None

    def __str__(self) -> str:
        if self.percent is not None:
            digits = f"{Decimal(repr(self.percent)):f}"  # every digit, never an exponent: `parse` must read the same number
            return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}%"
        return "last byte" if self.byte == -1 else f"byte {self.byte}"

    def of(self, size_bytes: int) -> int:
        """The byte count that this position means in a run of `size_bytes`, clamped to it."""
        if self.percent is not None:
            return min(size_bytes, int(size_bytes * Fraction(repr(self.percent)) / 100))  # in floats, 32.3% of 1000 bytes are 322
        assert self.byte is not None
        return max(0, min(size_bytes, self.byte if self.byte >= 0 else size_bytes + self.byte))


@dataclass(frozen=True)
class OperationPoint:
    """A file operation of a rank: the `occurrence`-th of this family whose path matches."""

    operation: str
    pattern: str
    moment: str = "before"  # before | during | after
    position: Position | None = None
    occurrence: int = 1

    def matches(self, operation: str, paths: Sequence[str]) -> bool:
        """Whether an operation on these paths (relative to the checkpoint directory) is of this kind."""
        return operation == self.operation and any(matches_path(self.pattern, path) for path in paths)


@dataclass(frozen=True)
class StepPoint:
    """The moment at which a rank has completed optimizer update number `step` and has logged it."""

    step: int


@dataclass(frozen=True)
class SignalFault:
    """A signal to one rank, some, or all at once, when the triggering rank reaches a point.

    `patient`: it waits there until the other ranks can go on no further without it.
    """

    signal: str
    who: Who
    point: OperationPoint | StepPoint
    trigger: int | None = None
    attempt: int = 0
    patient: bool = False

    def __str__(self) -> str:
        return f"{self.signal} {self.who} {_place(self.point, self.trigger, self.patient)}{_attempt(self.attempt)}"

    def triggered_by(self, rank: int) -> bool:
        """Whether this rank's operations are the ones that are counted."""
        if self.trigger is not None:
            return rank == self.trigger
        return self.who.covers(rank)

    def victims(self, world_size: int, trigger_rank: int) -> tuple[int, ...]:
        """The ranks that get the signal once `trigger_rank` has reached the point."""
        if self.who.quantifier == "all":
            return tuple(range(world_size))
        return self.who.ranks or (trigger_rank,)


@dataclass(frozen=True)
class Survivors:
    """What is left of unsynced changes after a power cut (the words NAMES and DATA of the grammar).

    Attributes:
        first_names: so many unsynced changes of names survive, the first ones; -1 for all.
        lost_name: all survive but this one, counted from 1; 0 for none.
        data: one of `DATA_CHOICES`.
        torn_at: how much of each file's unsynced data landed (torn).
        pattern: the files whose data suffers; "" for every file.
    """

    first_names: int = -1
    lost_name: int = 0
    data: str = "all"
    torn_at: Position | None = None
    pattern: str = ""

    def __str__(self) -> str:
        names = {0: "no names", -1: "all names"}.get(self.first_names, f"{self.first_names} names")
        lost = f" but {self.lost_name}" if self.lost_name else ""
        torn = "" if self.torn_at is None else f" at {self.torn_at}"
        files = f" of {self.pattern}" if self.pattern else ""
        return f"{names}{lost} and {self.data} data{torn}{files}"


@dataclass(frozen=True)
class PowerCutFault:
    """All ranks die at once when the triggering rank reaches a point, and the disk forgets what was not synced.

    Attributes:
        survivors: what is left of it; None where a real file system decides.
        filesystem: that file system, "" for none.
        point: where.
        trigger: the rank whose operations are counted; None for the first to get there.
        patient: the triggering rank waits at that point until the others can go on no further without it.
    """

    survivors: Survivors | None
    filesystem: str
    point: OperationPoint | StepPoint
    trigger: int | None = None
    attempt: int = 0
    patient: bool = False
    signal: str = "sigkill"  # what the ranks get

    def __str__(self) -> str:
        how = f"on {self.filesystem}" if self.survivors is None else f"keeping {self.survivors}"
        return f"power-cut {how} {_place(self.point, self.trigger, self.patient)}{_attempt(self.attempt)}"

    @property
    def who(self) -> Who:
        """Everybody."""
        return Who(quantifier="all")

    def triggered_by(self, rank: int) -> bool:
        """Whether this rank's operations are the ones that are counted."""
        return self.trigger is None or rank == self.trigger

    def victims(self, world_size: int, trigger_rank: int) -> tuple[int, ...]:  # noqa: ARG002  as `SignalFault.victims`
        """All ranks."""
        return tuple(range(world_size))


@dataclass(frozen=True)
class HoldFault:
    """An operation of one rank that waits until another rank's operation has happened, or until all others wait too."""

    who: Who
    point: OperationPoint
    until_rank: int
    until: OperationPoint
    attempt: int = 0

    def __str__(self) -> str:
        until = f"until rank {self.until_rank} {_operation(self.until)}"
        return f"hold {self.who} before {_operation(self.point)} {until}{_attempt(self.attempt)}"


@dataclass(frozen=True)
class ErrnoFault:
    """A file operation that fails with an error of the C library, or (`short-write`) writes only a part."""

    errno_name: str  # "" for a short write
    who: Who
    point: OperationPoint
    times: int = 1  # 0: from then on
    attempt: int = 0

    def __str__(self) -> str:
        times = {1: "", 0: " always"}.get(self.times, f" times {self.times}")
        name = self.errno_name or "short-write"
        return f"{name} {self.who} on {_operation(self.point)}{times}{_attempt(self.attempt)}"


@dataclass(frozen=True)
class DiskFault:
    """A disk that is too small: `quota` is kept by the gate, `full-disk` is a real file system of that size."""

    effect: str
    size_bytes: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.effect} {self.size_bytes} bytes{_attempt(self.attempt)}"


@dataclass(frozen=True)
class DamageFault:
    """Damage to files at rest, done between two attempts.

    Attributes:
        effect: one of `DAMAGE_EFFECTS`.
        checkpoint: newest, older, every.
        pattern: which files of it; "" for a checkpoint that is one file, or for all its files.
        position: the size that is left (truncate), the byte that is hit (flip), or a byte of the block that is (zero).
        bit: the bit of that byte, 0 to 7 (flip).
        attempt: the launch before which it is done.
        tampering: a name of `TAMPERINGS` (tamper).
        other: the pattern of the file that changes places with the first (swap).
    """

    effect: str
    checkpoint: str
    pattern: str = ""
    position: Position | None = None
    bit: int = 0
    attempt: int = 1
    tampering: str = ""
    other: str = ""

    def __str__(self) -> str:
        target = f"{self.checkpoint}/{self.pattern}" if self.pattern else self.checkpoint
        how = ""
        if self.effect == "truncate":
            how = f" to {self.position}"
        elif self.effect == "flip":
            how = f" at {self.position}" + (f" bit {self.bit}" if self.bit else "")
        elif self.effect == "zero":
            how = f" at {self.position}"
        elif self.effect == "replace":
            how = " from older"
        elif self.effect in ("swap", "tamper"):
            how = f" with {self.other or self.tampering}"
        return f"{self.effect} {target}{how}{_attempt(self.attempt, default=1)}"


@dataclass(frozen=True)
class NumericFault:
    """A bad batch: `times` batches in a row from `batch` on, on the ranks of `who`.

    `micro_batch` is the one of each batch that is bad, from 1, where gradients are accumulated; 0 for all of them.
    """

    effect: str
    who: Who
    batch: int
    times: int = 1
    micro_batch: int = 0

    def __str__(self) -> str:
        micro = f" micro-batch {self.micro_batch}" if self.micro_batch else ""
        return f"{self.effect} {self.who} at batch {self.batch}{micro}" + (f" times {self.times}" if self.times > 1 else "")


Fault = SignalFault | PowerCutFault | HoldFault | ErrnoFault | DiskFault | DamageFault | NumericFault


def matches_path(pattern: str, path: str) -> bool:
    """Whether `path` (relative to the checkpoint directory, "." for itself) is meant by `pattern`.

    A pattern without a slash is compared with the last name of the path; `*` and `?` do not cross a slash, `**` does.
    """
    if "/" not in pattern:
        path = path.rsplit("/", 1)[-1]
    return re.fullmatch(_regex(pattern), path, re.DOTALL) is not None


def _regex(pattern: str) -> str:
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    return "".join(parts.get(token, re.escape(token)) for token in tokens)


def _operation(point: OperationPoint) -> str:
    at = "" if point.position is None else f" at {point.position}"
    nth = "" if point.occurrence == 1 else f" occurrence {point.occurrence}"
    return f"{point.operation} {point.pattern}{at}{nth}"


def _place(point: OperationPoint | StepPoint, trigger: int | None, patient: bool) -> str:
    where = f"at step {point.step}" if isinstance(point, StepPoint) else f"{point.moment} {_operation(point)}"
    by = "" if trigger is None else f" by rank {trigger}"
    return f"{where}{by}{' when others wait' * patient}"


def _attempt(attempt: int, default: int = 0) -> str:
    return "" if attempt == default else f" attempt {attempt}"
