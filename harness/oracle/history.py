"""What happened in a case, read off its records: commits, damage, resumes, exits.

Responsible for: derivations that several oracles need, so that "committed" or "damaged" means one thing in all of them.
Not responsible for: judging. Nothing here knows what should have been.

Does not verify: that a rename that the gate let through really succeeded; it is believed where the target is still there
at the end of its attempt (or where that was not recorded), since a rank can be killed between the answer and the call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from harness import grammar
from harness.checkpoint_files import top_level
from harness.errors import UsageError
from harness.fault import DamageFault, ErrnoFault, Fault, NumericFault, PowerCutFault, SignalFault, matches_path
from harness.oracle.exports import exported, names_in, sort_of
from harness.scenario import MAX_RANKS, Command
from harness.store import AttemptRun, Baseline, Files, RankLog, Record, Run

HANGS = ("hang", "finished-but-did-not-exit")
_PARTIAL = re.compile(r"(^|[._-])(tmp|temp|partial|incomplete)([._-]|$)")
# Without one of these there is no file. A sync or a removal that fails leaves what was written.
_NEEDED = ("open", "write", "truncate", "rename", "link", "symlink", "mkdir")


@dataclass(frozen=True)
class Save:
    """One save as one rank logged it.

    Attributes:
        batch: batches done when it began.
        step: optimizer updates done when it began.
        name: top-level name of the checkpoint.
        digests: the state just before it, per component; empty where that was not logged.
        state: the whole record of that; empty where there is none.
        background: whether it was seen to begin in another thread than the one that trains.
        also: the other top-level names that a foreign job has written in it; empty where its end was not seen.
    """

    batch: int
    step: int
    name: str
    digests: dict[str, str]
    state: Record
    background: bool = False
    also: tuple[str, ...] = ()

    @property
    def tops(self) -> frozenset[str]:
        """All of its top-level names."""
        return frozenset({self.name, *self.also})


@dataclass(frozen=True)
class Commit:
    """A checkpoint that became visible as complete.

    Attributes:
        batch: batches that it holds. Checkpoints are ordered by this, not by step: a skipped batch completes no step.
        name: its top-level name in the checkpoint directory.
        attempt: the attempt that wrote it.
        files: its files when it was committed, of a foreign job under all names that it wrote between two batches; None where
            only the committing rename was seen, not `save()` returning.
        background: whether a thread of its own wrote it, so that it may hold a batch or two less than were done when it began.
    """

    batch: int
    name: str
    attempt: int
    files: Files | None
    background: bool = False

    @property
    def tops(self) -> frozenset[str]:
        """All of its top-level names."""
        return frozenset({self.name, *map(top_level, self.files or ())})


@dataclass(frozen=True)
class Resume:
    """How one attempt began.

    Attributes:
        attempt: its index.
        step: optimizer updates in the checkpoint it resumed from, 0 for a fresh start.
        batch: batches in it.
        name: the checkpoint, "" for a fresh start.
        rank: the rank that says so; the one furthest back where ranks disagree.
        lost: batches that the attempt before had done beyond that checkpoint.
    """

    attempt: int
    step: int
    batch: int
    name: str
    rank: int
    lost: int


@dataclass(frozen=True)
class Refused:
    """A save of which an operation failed for good.

    Attributes:
        rank: whose.
        name: top-level name of the checkpoint.
        step: optimizer updates done when it began.
        last: whether this rank began no save after it.
        operation: the record of the operation.
        error: name of the error.
    """

    rank: int
    name: str
    step: int
    last: bool
    operation: Record
    error: str


def parse_quietly(sentence: object) -> Fault | None:
    """The fault of a logged sentence; None where it is none (the log of another version, or no text at all)."""
    try:
        return grammar.parse(sentence) if isinstance(sentence, str) else None
    except UsageError:
        return None


def saves(log: RankLog, start: int) -> list[Save]:
    """The saves that a rank began, in order.

    Args:
        log: what the rank said.
        start: batches done when its attempt began.
    """
    found: list[Save] = []
    batch = start
    state: Record = {}
    for record in log.records:
        if record["event"] == "batch" and isinstance(record.get("batch"), int):
            batch = record["batch"]
        elif record["event"] == "state" and record.get("moment") == "save":
            state = record
        elif record["event"] == "save" and record.get("moment") == "begin":
            name, digests = top_level(record["checkpoint"]), state["digests"] if state else {}
            found.append(Save(batch, int(record["step"]), name, digests, state, bool(record.get("background"))))
            state = {}
        elif record["event"] == "save" and record.get("moment") == "end" and record.get("also") and found:
            found[-1] = replace(found[-1], also=tuple(names_in(record)))
    return found


class History:
    """The commits, damage and resumes of a case, worked out once, attempt after attempt.

    Attributes:
        saves: per attempt, per rank: the saves that it began.
        commits: per attempt: the checkpoints committed in it, in order.
        resumes: per attempt: where each rank began, the one furthest back first; ranks that never got there are left out.
    """

    def __init__(self, run: Run, baseline: Baseline | None = None) -> None:
        """Reads the records.

        Args:
            run: the case.
            baseline: the uninterrupted run, by which a foreign job's exports are told from its checkpoints; None where that
                makes no difference.
        """
        self._run = run
        self._exported = exported(baseline) if baseline and isinstance(run.plan.scenario.workload, Command) else frozenset()
        self.saves: list[dict[int, list[Save]]] = []
        self.commits: list[list[Commit]] = []
        self.resumes: list[list[Resume]] = []
        for attempt in run.attempts:
            resumes = self._resumes_in(attempt)
            starts = {resume.rank: resume.batch for resume in resumes}
            self.resumes.append(resumes)
            self.saves.append({rank: saves(log, starts.get(rank, 0)) for rank, log in attempt.ranks.items()})
            self.commits.append(self._without_parts(self._commits_in(attempt)))
        # What is resumed from is a checkpoint.
        self._exported -= {sort_of(resume.name) for found in self.resumes for resume in found}

    def position(self, before: int, name: str, step: int) -> int:
        """Batches in the checkpoint of this name and step, by the logs of the attempts before `before`.

        Where no log tells, the reference trainer's number in its name; for a foreign trainer the step.
        """
        past = [save for ranks in self.saves[:before] for found in ranks.values() for save in found]
        for save in reversed(past):
            if save.step == step and name in save.tops:
                return save.batch
        return self._number_in(name, step)

    def damaged(self, attempt: int, moment: str = "begin") -> dict[str, list[Record]]:
        """The checkpoints that the harness has really changed, as things stand in an attempt.

        Args:
            attempt: index of the attempt.
            moment: "begin" (after the damage that precedes the launch) or "end".

        Returns:
            The `damaged` records per checkpoint name. A checkpoint that was committed again since is whole again.
        """
        found: dict[str, list[Record]] = {}
        for past in self._run.attempts[: attempt + 1]:
            for record in past.of("damaged"):
                if not record.get("unchanged"):
                    found.setdefault(top_level(record["checkpoint"]), []).append(record)
            if past.index < attempt or moment == "end":
                for name in (name for commit in self.commits[past.index] for name in commit.tops):
                    found.pop(name, None)
        return found

    def still_damaged(self, attempt: int) -> dict[str, list[Record]]:
        """As `damaged`, at the beginning of an attempt, without the files that the trainer has written anew since.

        That may be known of a file long before its checkpoint is known to be committed.
        """
        now = self._run.attempts[attempt].files("begin")
        left: dict[str, list[Record]] = {}
        for name, records in self.damaged(attempt).items():
            kept = [r for r in records if now is None or self._is_as_damaged(r, attempt, now)]
            left |= {name: kept} if kept else {}
        return left

    def _is_as_damaged(self, record: Record, attempt: int, now: Files) -> bool:
        """Whether a file is what the damage has made of it, and not what it was before: a bit that is flipped twice is none."""
        path = str(record["path"])
        past = self._run.attempts[: attempt + 1]
        hit = [one.index for one in past for other in one.of("damaged") if other["path"] == path]
        before = self._run.attempts[hit[0] - 1].files("end") if len(hit) > 1 and hit[0] else None
        if before is not None and path in before and before[path] == now.get(path):
            return False
        for one in past:
            if record in one.of("damaged"):
                then = one.files("begin")  # which was listed once the damage was done
                return then is None or then.get(path) == now.get(path)
        return True

    def standing(self, before: int) -> list[Commit]:
        """What was committed before an attempt and is still owed, in order.

        Of one name only the last counts, which has replaced the others. A checkpoint of which files were gone at the end of an
        attempt while a newer one stood there was rotated away, and is owed no more: damage that comes later does not bring it
        back. Nor is one that a foreign job had replaced by what the harness damaged before anybody read it, nor an export, which
        no attempt ever resumed from.
        """
        last: dict[str, Commit] = {}
        for attempt, found in zip(self._run.attempts[:before], self.commits, strict=False):
            for commit in filter(None, map(self._without_exports, found)):
                for older in [one for one in last.values() if commit.tops & one.tops]:
                    del last[older.name]
                last[commit.name] = commit
            for commit in _rotated(list(last.values()), attempt.files("end"), self._run.plan.scenario.workload.commit_pattern):
                del last[commit.name]
            for commit in [one for one in last.values() if self._replaced_unread(attempt, one)]:
                del last[commit.name]
        return list(last.values())

    def _without_exports(self, commit: Commit) -> Commit | None:
        """What of a commit is a checkpoint; None where a foreign job has saved something else alone."""
        rest = sorted(name for name in commit.tops if sort_of(name) not in self._exported)
        if len(rest) == len(commit.tops):
            return commit
        if not rest:
            return None
        files = {path: content for path, content in (commit.files or {}).items() if top_level(path) in rest}
        return replace(commit, name=commit.name if commit.name in rest else rest[0], files=files)

    def newer_at_end(self, attempt: AttemptRun, commit: Commit) -> set[str]:
        """Of the checkpoints at the end of an attempt those that are newer, whether or not their saves are known to be done."""
        names = {name for name in map(top_level, attempt.files("end") or {}) if sort_of(name) not in self._exported} - {
            commit.name
        }
        begun = [save for ranks in self.saves[commit.attempt : attempt.index + 1] for found in ranks.values() for save in found]
        return {name for save in begun if save.batch > commit.batch for name in save.tops & names}

    def _replaced_unread(self, attempt: AttemptRun, commit: Commit) -> bool:
        """Whether nobody will ever know if that was whole with which a foreign job had replaced a checkpoint.

        All of that was damaged before an attempt came so far as to read it.
        """
        if not isinstance(self._run.plan.scenario.workload, Command) or not lost_files(commit, attempt, "end"):
            return False
        newer, hit = self.newer_at_end(attempt, commit), set[str]()
        for later in self._run.attempts[attempt.index + 1 :]:
            hit |= {top_level(record["checkpoint"]) for record in later.of("damaged") if not record.get("unchanged")}
            if self.resumes[later.index]:
                break
        return bool(newer) and newer <= hit

    def newest_undamaged(self, attempt: int) -> Commit | None:
        """The newest checkpoint that was committed before an attempt and that the harness left alone."""
        hit = self.damaged(attempt)
        whole = [commit for commit in self.standing(attempt) if not commit.tops & hit.keys()]
        return max(whole, key=lambda commit: commit.batch, default=None)

    def resume_of(self, attempt: int) -> Resume | None:
        """How a restart began, by the rank furthest back; None for the first launch, and where no rank got there."""
        return self.resumes[attempt][0] if attempt and self.resumes[attempt] else None

    def _resumes_in(self, attempt: AttemptRun) -> list[Resume]:
        reached = self._reached(attempt.index)
        found = []
        for rank, log in attempt.ranks.items():
            record = resume_record(log)
            if record is not None:
                name, step = top_level(record.get("checkpoint") or ""), int(record["step"])
                told = record.get("batch")
                batch = told if isinstance(told, int) else self.position(attempt.index, name, step) if name else step
                found.append(Resume(attempt.index, step, batch, name, rank, max(0, reached - batch)))
        return sorted(found, key=lambda resume: (resume.batch, resume.rank))

    def _reached(self, attempt: int) -> int:
        # By the furthest rank, and past attempts that died before their first batch.
        for past in reversed(self._run.attempts[:attempt]):
            done = [batch.batch for log in past.ranks.values() for batch in log.batches]
            if done:
                return max(done)
            if self.resumes[past.index]:
                return self.resumes[past.index][0].batch
        return 0

    def _commits_in(self, attempt: AttemptRun) -> list[Commit]:
        """What rank 0 saw `save()` return for, and what a rename onto the workload's commit pattern made visible."""
        logged = [save for found in self.saves[attempt.index].values() for save in found]
        commits: list[tuple[float, Commit]] = []
        # Whoever goes on after a save has failed says nothing, and whoever watches it from inside takes it for done.
        refused = {(one.name, one.step) for one in refused_saves(attempt)}
        if isinstance(self._run.plan.scenario.workload, Command):
            refused |= _written_on(attempt)
        for record in attempt.of("committed"):
            name, step = top_level(record["checkpoint"]), int(record["step"])
            if (name, step) in refused:
                continue
            files = {path: (int(size), str(digest)) for path, (size, digest) in record["files"].items()}
            those = [save for save in logged if (save.name, save.step) == (name, step)]
            told = record.get("batch")
            done = [save.batch for save in those] + ([told] if isinstance(told, int) else [])
            batch = max(done, default=self._number_in(name, step))
            commit = Commit(batch, name, attempt.index, files, bool(record.get("background")))
            commits.append((float(record.get("time_s") or 0), commit))
        if any(isinstance(parse_quietly(record.get("fault")), PowerCutFault) for record in attempt.of("fired")):
            # A name that was not yet reported as saved may be lost in a power cut, with or without its content.
            return [commit for _, commit in sorted(commits, key=lambda pair: pair[0])]
        known = {commit.name for _, commit in commits}
        at_end = attempt.files("end")
        for record in attempt.operations:
            target = _committing_target(self._run, record)
            if target is None or top_level(target) in known or (at_end is not None and target not in at_end):
                continue
            name = top_level(target)
            batch = max((save.batch for save in logged if save.name == name), default=self._number_in(name, 0))
            commits.append((float(record.get("time_s") or 0), Commit(batch, name, attempt.index, None)))
        return [commit for _, commit in sorted(commits, key=lambda pair: pair[0])]

    def _without_parts(self, commits: list[Commit]) -> list[Commit]:
        """Without what a foreign job left under a temporary name and gave no other: a thread gave up there, and told nobody.

        Nothing is a temporary name where all checkpoints have such a one.
        """
        every = [commit for found in (*self.commits, commits) for commit in found]
        if all(_PARTIAL.search(commit.name) for commit in every):
            return commits
        return [commit for commit in commits if not (commit.background and _PARTIAL.search(commit.name))]

    def _number_in(self, name: str, otherwise: int) -> int:
        # Only where the way a trainer names its checkpoints is known: "ckpt-v1" is not the first batch.
        number = re.search(r"\d+", name) if self._run.plan.scenario.workload.commit_pattern else None
        return int(number[0]) if number else otherwise


def _rotated(commits: list[Commit], files: Files | None, pattern: str | None) -> list[Commit]:
    """Those that are gone, or of which files are gone, in a listing in which a newer one stands with all of its files."""
    if files is None:
        return []
    standing = [commit for commit in commits if _stands(commit, files, pattern)]
    newest = max((commit.batch for commit in standing), default=0)
    return [commit for commit in commits if commit not in standing and commit.batch < newest]


def _stands(commit: Commit, files: Files, pattern: str | None) -> bool:
    """Whether none of its files is missing, whatever they hold.

    Where nobody knows its files, since `save()` never returned, the one that makes it a checkpoint must be there.
    """
    if commit.files is None:
        own = [path for path in files if top_level(path) == commit.name]
        return bool(own) and (pattern is None or any(matches_path(pattern, path) for path in own))
    return all(path in files for path in commit.files)


def _committing_target(run: Run, record: Record) -> str | None:
    """The path that a recorded operation made visible as a commit, None if it did not."""
    pattern, target = run.plan.scenario.workload.commit_pattern, record.get("to")
    if pattern is None or record["event"] != "operation" or record.get("operation") != "rename" or not isinstance(target, str):
        return None
    if not matches_path(pattern, target):
        return None
    if record.get("tampered") is None:
        return target
    tampered = parse_quietly(record["tampered"])
    if not isinstance(tampered, (SignalFault, PowerCutFault)):
        return None  # it failed, or nobody knows what became of it
    # Cut before it ran, a call made nothing visible; but it runs when its own rank lives on, and when death comes after it.
    stops = tampered.signal != "sigterm" and int(record["rank"]) in tampered.victims(MAX_RANKS, int(record["rank"]))
    return target if not stops or getattr(tampered.point, "moment", "") == "after" else None


def lost_files(commit: Commit, attempt: AttemptRun, moment: str) -> list[str]:
    """The files of a commit that no longer hold it byte for byte at the `begin` or `end` of an attempt; they may have grown.

    None where it was saved under several names and stands whole under one of them: they may be copies, as `last` often is.
    """
    files, heads = attempt.files(moment), attempt.heads(moment)
    if commit.files is None or files is None:
        return []
    lost = sorted(path for path, content in commit.files.items() if content not in (files.get(path), *heads.get(path, [])))
    return lost if set(map(top_level, commit.files)) == set(map(top_level, lost)) else []


def refused_saves(attempt: AttemptRun) -> list[Refused]:
    """The saves of an attempt that the disk has refused, and that nobody has tried again."""
    found: list[Refused] = []
    saves: dict[int, Record] = {}
    failing: dict[int, tuple[ErrnoFault, Record]] = {}
    for record in attempt.operations:
        rank = record.get("rank")
        if not isinstance(rank, int):
            continue
        if (record["event"], record.get("what"), record.get("moment")) == ("mark", "save", "begin"):
            found += _given_up(rank, saves, failing, last=False)
            saves[rank] = record
        elif record["event"] == "operation" and rank in saves:
            fault = parse_quietly(record.get("tampered"))
            if isinstance(fault, ErrnoFault) and fault.errno_name and record.get("operation") in _NEEDED:
                failing[rank] = fault, record
            elif rank in failing and _is_again(failing[rank][0], record):
                del failing[rank]
    return found + [one for rank in list(failing) for one in _given_up(rank, saves, failing, last=True)]


def _written_on(attempt: AttemptRun) -> set[tuple[str, int]]:
    """Name and step of the saves that were taken for done too early.

    The same folder was written on, and no save of it begun; or one of the same step was begun after it, and never ended: what was
    done first was only a part of it, such as a pointer to the save before.
    """
    found: set[tuple[str, int]] = set()
    done: dict[str, int] = {}
    again: dict[str, int] = {}
    known = set(attempt.files("begin") or {})
    for record in attempt.operations:
        if record["event"] == "mark" and record.get("what") == "save" and isinstance(record.get("step"), int):
            name = top_level(str(record.get("checkpoint")))
            before = done.pop(name, None)
            if record.get("rank") != 0:
                continue  # rank 0 says when a save is done
            again.pop(name, None)
            if record.get("moment") == "end":
                done[name] = record["step"]
            elif before == record["step"]:
                again[name] = record["step"]
        elif record["event"] == "operation":
            path, operation = str(record.get("to") or record.get("path")), record.get("operation")
            writes = operation in ("write", "rename") or (operation == "open" and path not in known)
            known.add(path)
            # A single file is replaced by the save that follows, under whatever name that has begun.
            if writes and "/" in path and (name := top_level(path)) in done:
                found.add((name, done.pop(name)))
    return found | set(again.items())


def _given_up(rank: int, saves: dict[int, Record], failing: dict[int, tuple[ErrnoFault, Record]], *, last: bool) -> list[Refused]:
    if rank not in failing:
        return []
    fault, operation = failing.pop(rank)
    save = saves[rank]
    return [Refused(rank, top_level(str(save.get("checkpoint"))), int(save["step"]), last, operation, fault.errno_name)]


def _is_again(fault: ErrnoFault, record: Record) -> bool:
    """Whether an operation is the one that was refused, tried again and done."""
    paths = [str(path) for path in (record.get("path"), record.get("to")) if path]
    return record.get("tampered") is None and fault.point.matches(str(record.get("operation")), paths)


def resume_record(log: RankLog) -> Record | None:
    """What a rank said about its load, None if it never got that far."""
    records = log.of("resume")
    return records[0] if records else None


def exit_of(attempt: AttemptRun, rank: int) -> Record | None:
    """How a rank ended; for a rank that a launcher made and nobody else watched, how the launcher ended."""
    return attempt.exits.get(rank, attempt.exits.get(-1))


def succeeded(exit_record: Record | None) -> bool:
    """Whether a process ended by itself with exit code 0."""
    return exit_record is not None and exit_record.get("code") == 0 and exit_record.get("kind", "exited") == "exited"


def exit_text(exit_record: Record | None) -> str:
    """How a process ended, in words."""
    if exit_record is None:
        return "no recorded end"
    if exit_record.get("signal"):
        return f"{exit_record['signal']} ({exit_record.get('kind')})"
    return f"exit code {exit_record.get('code')}"


def finished(attempt: AttemptRun) -> bool:
    """Whether every rank said that all is done, and left with exit code 0."""
    logs = attempt.ranks
    return all(rank in logs and logs[rank].ended and succeeded(exit_of(attempt, rank)) for rank in range(attempt.world_size))


def foreign_deaths(attempt: AttemptRun) -> list[Record]:
    """Deaths that neither the harness nor the program caused, such as the kernel's out-of-memory killer."""
    return attempt.of("exited", kind="foreign-death")


def same_work(run: Run, baseline: Baseline, attempt: AttemptRun) -> bool:
    """Whether a batch of this attempt is the uninterrupted run's batch of that number.

    The reference trainer keeps its global batch. A foreign job on another number of ranks often has a batch per rank, and then
    does other work under the same number: told by how many samples all ranks take together.
    """
    if attempt.world_size == baseline.world_size or not isinstance(run.plan.scenario.workload, Command):
        return True
    sizes = [_samples_per_batch(ranks) for ranks in (baseline.ranks, attempt.ranks)]
    return sizes[0] > 0 and sizes[0] == sizes[1]


def _samples_per_batch(ranks: dict[int, RankLog]) -> int:
    """Of the first batch that all ranks have done; 0 where none is known."""
    done = [{batch.batch: len(batch.samples) for batch in log.batches} for log in ranks.values()]
    common = set.intersection(*map(set, done)) if done else set()
    return sum(sizes[min(common)] for sizes in done) if common else 0


def live_faults_fired(attempt: AttemptRun) -> list[Record]:
    """The `fired` records of faults that hit running processes: all but damage at rest and bad batches."""
    return [
        record
        for record in attempt.of("fired")
        # A sentence that cannot be read is taken for a live fault: the trainer must not be blamed for it.
        if not isinstance(parse_quietly(record.get("fault")), (DamageFault, NumericFault))
    ]


def own_failures(attempt: AttemptRun) -> list[Record]:
    """The `exited` records of processes that failed by themselves, the first to do so first."""
    found = [r for r in attempt.of("exited") if r.get("kind") == "crashed" or (r.get("kind") == "exited" and r.get("code") != 0)]
    return sorted(found, key=lambda record: float(record.get("time_s") or 0))
