"""The one-line grammar of faults: a sentence in, a fault out (`str` of a fault is the sentence).

Responsible for: `parse`, and a text for everything that can be wrong with a sentence. The same sentence stands in a scenario, in
a replay file and in a report.

Grammar (words in capitals are filled in; brackets are optional)::

    SIGNAL WHO before|after OPERATION PATTERN [occurrence N] [by rank N] [when others wait] [attempt N]
    SIGNAL WHO during OPERATION PATTERN at POSITION [occurrence N] [by rank N] [when others wait] [attempt N]
    SIGNAL WHO at step N [by rank N] [attempt N]
    ERRNO WHO on OPERATION PATTERN [occurrence N] [times N | always] [attempt N]
    short-write WHO on OPERATION PATTERN at POSITION [occurrence N] [times N | always] [attempt N]
    quota N bytes [attempt N]
    full-disk N bytes [attempt N]
    power-cut keeping NAMES and DATA before|during|after OPERATION ... as for a SIGNAL
    power-cut on FILESYSTEM before|during|after OPERATION ... as for a SIGNAL
    power-cut ... at step N [by rank N] [attempt N]
    hold rank N before OPERATION PATTERN [occurrence N] until rank N OPERATION PATTERN [occurrence N] [attempt N]
    truncate CHECKPOINT[/PATTERN] to POSITION [attempt N]
    flip CHECKPOINT[/PATTERN] at POSITION [bit N] [attempt N]
    zero CHECKPOINT[/PATTERN] at POSITION [attempt N]
    delete CHECKPOINT[/PATTERN] [attempt N]
    swap CHECKPOINT/PATTERN with PATTERN [attempt N]
    replace CHECKPOINT[/PATTERN] from older [attempt N]
    tamper CHECKPOINT[/PATTERN] with TAMPERING [attempt N]
    overflow|nan|nonfinite-grad|spike WHO at batch N [micro-batch N] [times N]

    SIGNAL     sigkill, sigterm, sigstop
    ERRNO      ENOSPC, EIO, EDQUOT, ... (a name of the C library)
    WHO        rank N | ranks N,N | all ranks | any rank
    OPERATION  a family of system calls by its Linux name: write, open, read, fsync, rename, unlink, mkdir, ...
    PATTERN    of the path below the checkpoint directory: * within a name, ** over directories; a pattern without a
               slash is compared with the last name only, and `.` is the checkpoint directory itself
    POSITION   N% | byte N | last byte   (how many bytes land, or where)
    CHECKPOINT newest | older (the one before the newest) | every
    NAMES      no names | all names | N names (the first N) | all names but N: of the changes of names (a file made, renamed,
               removed) that no sync of their directory has made durable, those that survive the cut
    DATA       all data | no data (as of the last sync) | empty data (lengths as after the last truncation) | zeroed data
               (full length, zeros) | torn data at POSITION (so much of it) | rewritten data (only of files that were emptied
               and written anew, as XFS keeps it) | guarded data (also of files that were renamed over others; files that only
               grew end in zeros up to the end of their last block, as ext4 keeps it); each may end in `of PATTERN`: the files
               that suffer, others keep everything
    FILESYSTEM ext4 | xfs: the power of a real file system is cut, and what it kept is seen afterwards
    TAMPERING  what becomes wrong although every byte can still be read: a name of `TAMPERINGS`

`occurrence` counts from 1 over the whole attempt, for one rank and one pattern. `attempt` 0 is the first launch; damage
(`truncate` to `tamper`) is done before its attempt, 1 unless said otherwise. `zero` makes zeros of the aligned block of 4096
bytes that holds the position; `swap` lets two files of one checkpoint change places, the first that each pattern means;
`replace` puts in a file's place the one of its name in the checkpoint before (of a checkpoint that is one file, that file).
Numeric faults hit a *batch* (the count of batches over the whole job), not a step, because a skipped batch completes no step;
they hit every attempt, and the uninterrupted run too: a bad batch is part of the data. A `power-cut` ends all ranks at once,
and takes from the disk what was written and not synced (`harness.crash`). A `hold` makes an operation wait until another rank's
has happened (if it has by then, the order is there already), or until all other ranks wait as well, which shows that something
(a barrier) orders the two. `when others wait`
makes a kill as patient: the rank stands at its operation until the other ranks have gone as far as they can (to a `hold`, or to
a barrier).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.errors import UsageError
from harness.fault import (
    CHECKPOINT_CHOICES,
    DAMAGE_EFFECTS,
    DATA_CHOICES,
    DISK_EFFECTS,
    ERRNO_NAMES,
    FILESYSTEMS,
    NAMES_CHOICES,
    NUMERIC_EFFECTS,
    OPERATIONS,
    SIGNALS,
    TAMPERINGS,
    DamageFault,
    DiskFault,
    ErrnoFault,
    Fault,
    HoldFault,
    NumericFault,
    OperationPoint,
    Position,
    PowerCutFault,
    SignalFault,
    StepPoint,
    Survivors,
    Who,
)


def parse(text: str) -> Fault:
    """Reads one fault.

    Args:
        text: a sentence of the grammar above; commas are ignored.

    Returns:
        The fault; `str()` of it is the canonical sentence, and parses to the same fault.

    Raises:
        UsageError: the sentence is not understood; the text says which word, and what was expected instead.
    """
    return _Sentence(text).parse()


def parse_all(texts: Sequence[str]) -> tuple[Fault, ...]:
    """Reads several faults; all that is wrong with any of them is one `UsageError`."""
    faults: list[Fault] = []
    problems: list[str] = []
    for text in texts:
        try:
            faults.append(parse(text))
        except UsageError as error:
            problems.extend(error.problems)
    if problems:
        raise UsageError(problems)
    return tuple(faults)


class _Sentence:
    """One pass over the words of a fault, left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        # "ranks 0,2" keeps its comma; every other comma is punctuation. "50 %" is written by people as often as "50%".
        joined = re.sub(r"([0-9])\s+%", r"\1%", re.sub(r",(?=\s|$)", " ", text))
        self.words = joined.split()

    def parse(self) -> Fault:
        effect = self._take("a fault word")
        if effect in SIGNALS:
            fault: Fault = self._signal(effect)
        elif effect == "short-write" or effect in ERRNO_NAMES:
            fault = self._errno(effect)
        elif effect in DISK_EFFECTS:
            fault = self._disk(effect)
        elif effect == "power-cut":
            fault = self._power_cut()
        elif effect == "hold":
            fault = self._hold()
        elif effect in DAMAGE_EFFECTS:
            fault = self._damage(effect)
        elif effect in NUMERIC_EFFECTS:
            fault = self._numeric(effect)
        else:
            known = [*SIGNALS, *NUMERIC_EFFECTS, *DAMAGE_EFFECTS, *DISK_EFFECTS, "power-cut", "hold", "short-write"]
            raise self._problem(f"unknown fault word {effect!r}; expected one of {', '.join(known)}, or an errno such as ENOSPC")
        if self.words:
            raise self._problem(f"did not expect {' '.join(self.words)!r} at the end")
        return fault

    def _signal(self, effect: str) -> SignalFault:
        who = self._who()
        point, trigger, patient = self._place()
        return SignalFault(effect, who, point, trigger, self._attempt(), patient)

    def _place(self) -> tuple[OperationPoint | StepPoint, int | None, bool]:
        moment = self._one_of("before", "during", "after", "at")
        point: OperationPoint | StepPoint
        if moment == "at":
            self._word("step")
            point = StepPoint(self._number("a step", minimum=1))
        else:
            point = self._point(moment)
        trigger = None
        if self._optional("by"):
            self._word("rank")
            trigger = self._number("a rank")
        patient = isinstance(point, OperationPoint) and self._optional("when")
        if patient:
            self._word("others")
            self._word("wait")
        return point, trigger, patient

    def _power_cut(self) -> PowerCutFault:
        survivors, filesystem = None, ""
        if self._one_of("keeping", "on") == "on":
            filesystem = self._one_of(*FILESYSTEMS)
        else:
            survivors = self._survivors()
        point, trigger, patient = self._place()
        return PowerCutFault(survivors, filesystem, point, trigger, self._attempt(), patient)

    def _survivors(self) -> Survivors:
        first, lost, torn_at, pattern = -1, 0, None, ""
        if self.words and self.words[0] in NAMES_CHOICES:
            first = -1 if self._take("no or all") == "all" else 0
        else:
            first = self._number("a count of names, no, or all", minimum=1)
        self._word("names")
        if first == -1 and self._optional("but"):
            lost = self._number("which name", minimum=1)
        self._word("and")
        data = self._one_of(*DATA_CHOICES)
        self._word("data")
        if data == "torn":
            self._word("at")
            torn_at = self._position()
        if data != "all" and self._optional("of"):
            pattern = self._pattern()
        return Survivors(first, lost, data, torn_at, pattern)

    def _hold(self) -> HoldFault:
        self._word("rank")
        who = Who((self._number("a rank"),))
        self._word("before")
        point = self._point("before")
        self._word("until")
        self._word("rank")
        until_rank = self._number("a rank")
        if (until_rank,) == who.ranks:
            raise self._problem(f"rank {until_rank} would wait for itself; expected another rank after until")
        return HoldFault(who, point, until_rank, self._point("after"), self._attempt())

    def _errno(self, effect: str) -> ErrnoFault:
        who = self._who()
        self._word("on")
        point = self._point("during" if effect == "short-write" else "before")
        times = 0 if self._optional("always") else self._times()
        return ErrnoFault("" if effect == "short-write" else effect, who, point, times, self._attempt())

    def _disk(self, effect: str) -> DiskFault:
        size_bytes = self._number("a size", minimum=1)
        self._word("bytes")
        return DiskFault(effect, size_bytes, self._attempt())

    def _damage(self, effect: str) -> DamageFault:
        target = self._take("newest, older or every")
        checkpoint, _, pattern = target.partition("/")
        if checkpoint not in CHECKPOINT_CHOICES:
            raise self._problem(f"unknown checkpoint {checkpoint!r}; expected {', '.join(CHECKPOINT_CHOICES)}, then /PATTERN")
        if pattern.startswith("/") or ".." in pattern.split("/"):
            raise self._problem(f"{pattern!r} leaves the checkpoint directory; expected a pattern inside it")
        position, bit, tampering, other = None, 0, "", ""
        if effect in ("truncate", "flip", "zero"):
            self._word("to" if effect == "truncate" else "at")
            position = self._position()
            bit = self._number("a bit", maximum=7) if effect == "flip" and self._optional("bit") else 0
        elif effect == "replace":
            self._word("from")
            self._word("older")
        elif effect in ("swap", "tamper"):
            if effect == "swap" and not pattern:
                raise self._problem(f"{target!r} names no file; expected {checkpoint}/PATTERN, one of two that change places")
            self._word("with")
            other, tampering = (self._pattern(), "") if effect == "swap" else ("", self._tampering())
        return DamageFault(effect, checkpoint, pattern, position, bit, self._attempt(default=1, minimum=1), tampering, other)

    def _tampering(self) -> str:
        word = self._take(f"one of {', '.join(TAMPERINGS)}")
        if word not in TAMPERINGS:
            known = "; ".join(f"{name} ({sentence})" for name, sentence in TAMPERINGS.items())
            raise self._problem(f"unknown tampering {word!r}; expected one of {known}")
        return word

    def _numeric(self, effect: str) -> NumericFault:
        who = self._who()
        self._word("at")
        self._word("batch")
        batch = self._number("a batch", minimum=1)
        micro_batch = self._number("a micro-batch", minimum=1) if self._optional("micro-batch") else 0
        return NumericFault(effect, who, batch, self._times(), micro_batch)

    def _who(self) -> Who:
        word = self._one_of("rank", "ranks", "all", "any")
        if word == "rank":
            return Who((self._number("a rank"),))
        if word == "ranks":
            listed = self._take("ranks such as 0,2")
            if not re.fullmatch(r"[0-9]{1,18}(,[0-9]{1,18})*", listed):
                raise self._problem(f"{listed!r} is no list of ranks; expected numbers such as 0,2")
            ranks = [int(n) for n in listed.split(",")]
            if len(set(ranks)) < len(ranks):
                raise self._problem(f"{listed!r} names a rank twice; expected each rank once")
            return Who(tuple(sorted(ranks)))
        self._word("ranks" if word == "all" else "rank")
        return Who(quantifier=word)

    def _point(self, moment: str) -> OperationPoint:
        operation = self._take("an operation")
        if operation not in OPERATIONS:
            raise self._problem(f"unknown operation {operation!r}; expected one of {', '.join(OPERATIONS)}")
        pattern = self._pattern()
        position = None
        if moment == "during":
            if operation != "write":
                raise self._problem(f"only a write can be cut in the middle; found {operation!r}, expected write")
            self._word("at")
            position = self._position()
        occurrence = self._number("a count", minimum=1) if self._optional("occurrence") else 1
        return OperationPoint(operation, pattern, moment, position, occurrence)

    def _pattern(self) -> str:
        pattern = self._take("a path pattern")
        if pattern.startswith("/") or ".." in pattern.split("/"):
            raise self._problem(f"{pattern!r} leaves the checkpoint directory; expected a pattern below it, such as *.tmp")
        return pattern

    def _position(self) -> Position:
        word = self._take("a position: N%, byte N, or last byte")
        if word in ("last", "byte"):
            if word == "last":
                self._word("byte")
                return Position(byte=-1)
            return Position(byte=self._number("a byte"))
        if match := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)%", word):
            percent = float(match[1])
            if percent <= 100:
                return Position(percent=percent)
        raise self._problem(f"{word!r} is no position; expected N% (0 to 100), byte N, or last byte")

    def _attempt(self, default: int = 0, minimum: int = 0) -> int:
        return self._number("an attempt", minimum=minimum) if self._optional("attempt") else default

    def _times(self) -> int:
        return self._number("a count", minimum=1) if self._optional("times") else 1

    def _number(self, what: str, minimum: int = 0, maximum: int | None = None) -> int:
        word = self._take(what)
        limits = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"
        if not re.fullmatch(r"[0-9]{1,18}", word) or int(word) < minimum or (maximum is not None and int(word) > maximum):
            raise self._problem(f"{word!r} is not {what}; expected a whole number, {limits}")
        return int(word)

    def _take(self, what: str) -> str:
        if not self.words:
            raise self._problem(f"ends too early; expected {what}")
        return self.words.pop(0)

    def _word(self, expected: str) -> None:
        self._one_of(expected)

    def _one_of(self, *expected: str) -> str:
        word = self._take(" or ".join(expected))
        if word not in expected:
            raise self._problem(f"found {word!r} where {' or '.join(expected)} was expected")
        return word

    def _optional(self, word: str) -> bool:
        if self.words and self.words[0] == word:
            self.words.pop(0)
            return True
        return False

    def _problem(self, text: str) -> UsageError:
        return UsageError([f"fault {self.text!r}: {text}"])
