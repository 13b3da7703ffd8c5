"""Causes from hand-made crash states: no process, no file."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from harness.causes import Judged, find_causes, general, phrase
from harness.crash import Change
from harness.crash_sample import whole_files
from harness.crash_states import CrashState
from harness.fault import Survivors
from harness.oracle.finding import fail
from harness.oracle.verdict import Verdict
from harness.pieces import Piece
from harness.trace import Mark, Operation, Order, Trace
from harness.tree import Entry


def trace_of(*rows):
    """A trace of (rank, operation, path[, to])."""
    counts = {}
    events = []
    for n, (rank, name, path, *to) in enumerate(rows, 1):
        events.append(Operation(n, rank, counts.get(rank, 0), name, name, path, to[0] if to else None, 0))
        counts[rank] = counts.get(rank, 0) + 1
    return Trace((), tuple(events), Path("data.bin"))


def cuts_of(trace, order):
    """Every consistent cut, as the set of what has happened, the smallest first."""
    per_rank = [range(len(trace.of_rank(rank)) + 1) for rank in trace.ranks]
    found = []
    for cut in itertools.product(*per_rank):
        done = {(op.rank, op.index) for op in trace.operations if op.index < cut[trace.ranks.index(op.rank)]}
        left = [op for op in trace.operations if (op.rank, op.index) not in done]
        ahead = any(order.enforced((late.rank, late.index), early) for late in left for early in done if early[0] != late.rank)
        if not ahead:
            found.append((cut, done))
    return sorted(found, key=lambda one: sum(one[0]))


def state(trace, cut, done, **more):
    indices = tuple(i for i, op in enumerate(trace.events) if isinstance(op, Operation) and (op.rank, op.index) in done)
    last = trace.events[indices[-1]] if indices else None
    # Of the undisturbed run, where nothing has happened out of turn.
    natural = indices == tuple(range(len(indices)))
    fields = {"torn": None, "landed": 0, "survivors": None, "lost": (), "owed": ()} | more
    return CrashState(
        (f"kill at {cut}",), cut, indices, last, natural=natural, tree={}, digest=str((cut, fields["lost"])), **fields
    )


def judged(one, kind, *, oracle="retention", **where):
    findings = (
        (fail(kind, oracle, "it is so", component="checkpoint-files", **{"expected": "x", "found": "y", **where}),)
        if kind
        else ()
    )
    verdict = Verdict("case", "", "FAIL" if kind else "PASS", findings, "checkpoint-files" if kind else "none")
    return Judged(one, 1, verdict, Path(f"runs/{one.digest}"), [one])


def kills(trace, order, kind_of):
    """All kills; `kind_of` gets the texts of what has happened."""
    text = {(op.rank, op.index): str(op) for op in trace.operations}
    return [judged(state(trace, cut, done), kind_of({text[key] for key in done})) for cut, done in cuts_of(trace, order)]


ATOMIC = trace_of(
    (0, "open", "a.tmp"),
    (0, "write", "a.tmp"),
    (0, "write", "a.tmp"),
    (0, "rename", "a.tmp", "a"),
    (0, "fsync", "."),
    (0, "unlink", "old"),
)
ALONE = Order.learn([ATOMIC])


def test_what_passes_has_no_cause():
    assert find_causes(kills(ATOMIC, ALONE, lambda done: ""), ATOMIC, ALONE) == []


def test_a_gap_is_named_by_what_opens_and_what_closes_it():
    states = kills(ATOMIC, ALONE, lambda done: "lost-work" if "write a.tmp" in done and "fsync ." not in done else "")
    (cause,) = find_causes(states, ATOMIC, ALONE)
    assert (cause.sort, cause.kind, cause.component, cause.num_states) == ("gap", "lost-work", "checkpoint-files", 3)
    assert cause.text == "rank 0's first write of a.tmp comes before rank 0's fsync of the checkpoint directory"
    assert (cause.operation, cause.rank, cause.file) == ("write", 0, "a.tmp")
    assert cause.missing == "rank 0's fsync of the checkpoint directory"
    assert cause.shortest.state.cut == (2,)
    assert [path.name for path in cause.kept] == [str(((n,), ())) for n in (2, 3, 4)]
    assert cause.sentence == f"3 states fail because {cause.text}; the first is: kill at (2,)"


def test_a_gap_may_stay_open_or_be_open_from_the_start():
    (late,) = find_causes(kills(ATOMIC, ALONE, lambda done: "last-good-lost" if "unlink old" in done else ""), ATOMIC, ALONE)
    assert late.text == "nothing that was saved is whole after rank 0's unlink of old"
    (early,) = find_causes(kills(ATOMIC, ALONE, lambda done: "" if "rename a.tmp to a" in done else "lost-work"), ATOMIC, ALONE)
    assert early.text == "nothing that was saved is whole before rank 0's rename of a"
    (always,) = find_causes(kills(ATOMIC, ALONE, lambda done: "hang"), ATOMIC, ALONE)
    assert (always.text, always.num_states) == ("nothing that was saved is whole before the end of the save", 7)


def test_two_gaps_are_two_causes():
    def kind_of(done):
        opened = "open a.tmp" in done and "write a.tmp" not in done
        return "lost-work" if opened or ("fsync ." in done and "unlink old" not in done) else ""

    found = find_causes(kills(ATOMIC, ALONE, kind_of), ATOMIC, ALONE)
    assert {cause.operation for cause in found} == {"open", "fsync"}


def test_rubbish_is_another_cause_than_the_loss_that_lies_within():
    def kind_of(done):
        if "rename a.tmp to a" in done and "fsync ." not in done:
            return "last-good-lost"
        return "retention" if "open a.tmp" in done and "unlink old" not in done else ""

    found = {cause.kind: cause for cause in find_causes(kills(ATOMIC, ALONE, kind_of), ATOMIC, ALONE)}
    assert found["last-good-lost"].num_states == 1
    assert found["last-good-lost"].operation == "rename"
    assert (found["retention"].num_states, found["retention"].operation) == (4, "open")


def test_kinds_of_one_weight_are_one_cause_that_names_both():
    def kind_of(done):
        if "open a.tmp" not in done or "unlink old" in done:
            return ""
        return "last-good-lost" if "fsync ." in done else "bad-refusal"

    (cause,) = find_causes(kills(ATOMIC, ALONE, kind_of), ATOMIC, ALONE)
    assert (cause.kind, cause.num_states) == ("bad-refusal", 5)
    assert cause.text == "rank 0's open of a.tmp comes before rank 0's unlink of old (last-good-lost in 1 of them)"


def test_a_write_that_is_cut():
    write = ATOMIC.events[1]
    torn = [judged(state(ATOMIC, (1,), {(0, 0)}, torn=write, landed=landed), "corrupt-accepted") for landed in (1, 2)]
    (cause,) = find_causes([*kills(ATOMIC, ALONE, lambda done: ""), *torn], ATOMIC, ALONE)
    assert (cause.sort, cause.num_states, cause.operation) == ("gap", 2, "write")
    assert cause.text == "a kill in the middle of rank 0's first write of a.tmp leaves a part of it"


def test_what_nothing_tells_from_states_that_pass():
    odd = {2, 4}
    states = kills(ATOMIC, ALONE, lambda done: "")
    states = [judged(one.state, "hang") if one.state.cut[0] in odd else one for one in states]
    found = find_causes(states, ATOMIC, ALONE)
    assert sum(cause.num_states for cause in found) == 2
    twice = [*kills(ATOMIC, ALONE, lambda done: "hang"), *kills(ATOMIC, ALONE, lambda done: "")]
    (cause,) = find_causes(twice, ATOMIC, ALONE)
    assert (cause.num_states, cause.rank, cause.operation) == (7, -1, "")
    assert "no operation tells from states that pass" in cause.text


SHARDS = trace_of(
    (0, "write", "step-00000002/rank0.tmp"),
    (0, "rename", "step-00000002/rank0.tmp", "step-00000002/rank0.bin"),
    (1, "write", "step-00000002/rank1.tmp"),
    (1, "rename", "step-00000002/rank1.tmp", "step-00000002/rank1.bin"),
    (0, "rename", "step-00000002/m.tmp", "step-00000002/manifest.json"),
    (0, "unlink", "step-00000001"),
)
COMMIT, SHARD = (
    "rename step-00000002/m.tmp to step-00000002/manifest.json",
    "rename step-00000002/rank1.tmp to step-00000002/rank1.bin",
)
BY_LUCK = Order.learn([SHARDS, Trace((), tuple(sorted(SHARDS.operations, key=lambda op: op.rank)), Path("data.bin"))])


def without_its_shard(done):
    return "" if COMMIT not in done or SHARD in done else "last-good-lost" if "unlink step-00000001" in done else "lost-work"


def test_an_operation_that_goes_ahead_of_another_rank():
    (cause,) = find_causes(kills(SHARDS, BY_LUCK, without_its_shard), SHARDS, BY_LUCK)
    assert (cause.sort, cause.kind, cause.num_states) == ("order", "lost-work", 4)
    assert (cause.operation, cause.rank, cause.file) == ("rename", 0, "step-00000002/manifest.json")
    assert cause.missing == "rank 1's rename of step-*/rank1.bin"
    waits = "rank 0's rename of step-*/manifest.json does not wait for rank 1's rename of step-*/rank1.bin"
    assert cause.text == f"{waits} (last-good-lost in 2 of them)"


def test_a_barrier_leaves_nothing_to_find():
    enforced = Order.learn([SHARDS, SHARDS])
    assert find_causes(kills(SHARDS, enforced, without_its_shard), SHARDS, enforced) == []


FIRST = trace_of(
    (0, "rename", "m.tmp", "manifest.json"),
    (0, "rename", "0.tmp", "rank0.bin"),
    (1, "rename", "1.tmp", "rank1.bin"),
    (2, "rename", "2.tmp", "rank2.bin"),
    (3, "rename", "3.tmp", "rank3.bin"),
)


def test_what_comes_before_several_is_one_cause_that_names_them():
    later = FIRST.operations[1:]
    runs = [Trace((), (FIRST.events[0], *some), Path("data.bin")) for some in (later, later[::-1])]
    order = Order.learn(runs)
    states = kills(FIRST, order, lambda done: "lost-work" if done and len(done) < 5 else "")
    (cause,) = find_causes(states, FIRST, order)
    assert (cause.sort, cause.num_states) == ("gap", 15)
    assert cause.text.startswith("rank 0's rename of manifest.json comes before rank ")
    assert cause.text.endswith(" and 1 more")


# -- power cuts


def unsynced(number, op, sort="data"):
    return Change(number, op, sort, number)


def cut_power(trace, cut, lost, kind, **more):
    done = {(op.rank, op.index) for op in trace.operations if op.index < cut[trace.ranks.index(op.rank)]}
    return judged(state(trace, cut, done, survivors=Survivors(), lost=lost, **more), kind)


def test_the_smallest_loss_that_is_enough_is_the_cause():
    written, named = unsynced(1, ATOMIC.events[1]), unsynced(2, ATOMIC.events[3], "name")
    powers = [
        cut_power(ATOMIC, (5,), (named,), ""),
        cut_power(ATOMIC, (5,), (written,), "last-good-lost", owed=("a",)),
        cut_power(ATOMIC, (5,), (written, named), "last-good-lost", owed=("a",)),
        cut_power(ATOMIC, (6,), (written,), "lost-work", owed=("a",)),
    ]
    (cause,) = find_causes([*kills(ATOMIC, ALONE, lambda done: ""), *powers], ATOMIC, ALONE)
    assert (cause.sort, cause.kind, cause.num_states) == ("durability", "last-good-lost", 3)
    assert (cause.operation, cause.rank, cause.file) == ("write", 0, "a.tmp")
    # Under the name that the file had by then.
    assert cause.missing == "the content of a by rank 0 (no fsync of the file)"
    when = "after rank 0's fsync of the checkpoint directory (when a had been reported as saved)"
    assert cause.text == f"a power cut {when} takes {cause.missing} (lost-work in 1 of them)"
    assert cause.shortest.state.lost == (written,)


def test_a_lost_name_is_told_with_its_directory():
    inside = trace_of((0, "mkdir", "d"), (0, "rename", "d/a.tmp", "d/a"), (0, "unlink", "old"))
    order = Order.learn([inside])
    name, gone = unsynced(0, inside.events[1], "name"), unsynced(1, inside.events[2], "name")
    powers = [cut_power(inside, (2,), (name,), "lost-work"), cut_power(inside, (3,), (gone,), "retention")]
    causes = find_causes([*kills(inside, order, lambda done: ""), *powers], inside, order)
    assert {cause.missing for cause in causes} == {
        "the rename of d/a by rank 0 (no fsync of d)",
        "the unlink of old by rank 0 (no fsync of the checkpoint directory)",
    }


def test_a_sync_that_comes_after_the_cut_is_late_and_not_missing():
    inplace = trace_of(
        (0, "write", "a"), (0, "fsync", "a"), (0, "write", "b.tmp"), (0, "rename", "b.tmp", "b"), (0, "fsync", "b")
    )
    order = Order.learn([inplace])
    first, second = unsynced(0, inplace.events[0]), unsynced(1, inplace.events[2])
    name = unsynced(2, inplace.events[3], "name")
    powers = [
        cut_power(inplace, (1,), (first,), "last-good-lost"),
        cut_power(inplace, (4,), (second,), "lost-work"),
        cut_power(inplace, (5,), (name,), "retention"),
    ]
    causes = find_causes([*kills(inplace, order, lambda done: ""), *powers], inplace, order)
    assert {cause.missing for cause in causes} == {
        "the content of a by rank 0 (the fsync of the file comes too late)"
        " and the content of b by rank 0 (the fsync of the file comes too late)",
        "the rename of b by rank 0 (no fsync of the checkpoint directory)",
    }


def test_a_sync_in_the_next_save_is_none():
    one = trace_of((0, "write", "a"), (0, "write", "a"), (0, "fsync", "a"))
    marked = replace(one, events=(one.events[0], Mark(0, "save", "end", 1, "a"), *one.events[1:]))
    order = Order.learn([marked])
    powers = [cut_power(marked, (1,), (unsynced(0, marked.events[0]),), "last-good-lost")]
    (cause,) = find_causes(powers, marked, order)
    assert cause.missing == "the content of a by rank 0 (no fsync of the file)"


@pytest.mark.parametrize("moved", [False, True])
def test_a_file_that_is_changed_under_its_own_name_is_said_to_be(moved):
    trace = trace_of((0, "open", "a"), (0, "write", "a"), (0, "truncate", "a"), *([(0, "rename", "a", "b")] if moved else []))
    order = Order.learn([trace])
    failing = kills(trace, order, lambda done: "last-good-lost" if "open a" in done and "truncate a" not in done else "")
    (cause,) = find_causes(failing, trace, order)
    plain = "rank 0's open of a comes before rank 0's truncate of a"
    assert cause.text == (plain if moved else f"a is written in place: {plain}")


def test_the_same_loss_on_several_ranks_is_one_cause():
    powers = [cut_power(SHARDS, (3, 2), (unsynced(rank, SHARDS.events[place]),), "lost-work") for rank, place in ((0, 0), (1, 2))]
    (cause,) = find_causes([*kills(SHARDS, BY_LUCK, lambda done: ""), *powers], SHARDS, BY_LUCK)
    assert cause.num_states == 2
    shards = [f"the content of step-*/rank{rank}.bin by rank {rank} (no fsync of the file)" for rank in (0, 1)]
    assert cause.missing == " and ".join(shards)


def test_a_cut_that_needs_no_loss_is_counted_with_the_kill():
    states = kills(ATOMIC, ALONE, lambda done: "lost-work" if "open a.tmp" in done and "fsync ." not in done else "")
    loss = unsynced(1, ATOMIC.events[1])
    (cause,) = find_causes([*states, cut_power(ATOMIC, (3,), (loss,), "last-good-lost")], ATOMIC, ALONE)
    assert (cause.sort, cause.num_states) == ("gap", 5)


def test_a_cut_that_leaves_what_a_kill_leaves_is_counted_with_the_kill():
    states = kills(ATOMIC, ALONE, lambda done: "lost-work" if "open a.tmp" in done and "fsync ." not in done else "")
    failing = next(one for one in states if one.state.cut == (2,))
    done = {(0, index) for index in range(5)}
    failing.members.append(state(ATOMIC, (5,), done, survivors=Survivors(), lost=(unsynced(1, ATOMIC.events[3], "name"),)))
    (cause,) = find_causes(states, ATOMIC, ALONE)
    assert (cause.sort, cause.num_states, cause.shortest.state.cut) == ("gap", 5, (1,))


def seen_only(one, file="a", expected="a sync of the file"):
    return judged(one.state, "not-durable", oracle="durability", file=file, expected=expected)


def test_a_missing_sync_that_was_only_seen_is_counted_with_the_cut_that_shows_it():
    seen = [seen_only(one) for one in kills(ATOMIC, ALONE, lambda done: "")]
    lost = cut_power(ATOMIC, (5,), (unsynced(1, ATOMIC.events[1]),), "last-good-lost")
    (cause,) = find_causes([*seen, lost], ATOMIC, ALONE)
    assert (cause.sort, cause.kind, cause.num_states) == ("durability", "last-good-lost", 8)
    assert cause.shortest is lost
    assert cause.text.endswith("(not-durable in 7 of them)")


@pytest.mark.parametrize(
    ("expected", "missing"),
    [
        ("a sync of the file", "the content of a (no fsync of the file)"),
        ("a sync of the directory that holds its name", "the name a (no fsync of its directory)"),
    ],
)
def test_a_missing_sync_that_no_cut_shows(expected, missing):
    seen = [seen_only(one, expected=expected) for one in kills(ATOMIC, ALONE, lambda done: "")]
    (cause,) = find_causes(seen, ATOMIC, ALONE)
    assert (cause.sort, cause.kind, cause.missing) == ("durability", "not-durable", missing)
    assert cause.text == f"a save is reported as done while a power cut could still take {missing}"


# -- words


def test_numbers_of_steps_and_drawn_names_are_left_open():
    assert general("step-00000012.pt.4711-0a1b2c3d.tmp") == "step-*.pt.*.tmp"
    assert general("step-00000012/rank1.bin") == "step-*/rank1.bin"
    assert general("rank 0's rename of step-6.pt") == "rank 0's rename of step-*.pt"
    assert general("the content of checkpoint-4/shard-1.pt by rank 10") == "the content of checkpoint-*/shard-1.pt by rank 10"
    assert general("(when epoch=0-step=8.ckpt had been reported)") == "(when epoch=*-step=*.ckpt had been reported)"
    assert general("rank1.bin and ckpt2 and v-1a") == "rank1.bin and ckpt2 and v-1a"


def test_an_operation_in_words():
    first, last = ATOMIC.events[1], ATOMIC.events[2]
    assert phrase(first) == "rank 0's write of a.tmp"
    assert phrase(first, ATOMIC) == "rank 0's first write of a.tmp"
    assert phrase(last, ATOMIC) == "rank 0's last write of a.tmp"
    moved = (replace(first, inode=5), replace(last, inode=5, path="b.tmp"))  # by another rank, between the two
    assert (
        phrase(moved[1], replace(ATOMIC, events=(*ATOMIC.events[:1], *moved, *ATOMIC.events[3:])))
        == "rank 0's last write of b.tmp"
    )
    assert phrase(SHARDS.events[0], SHARDS) == "rank 0's write of step-*/rank0.tmp"
    assert phrase(ATOMIC.events[4], ATOMIC) == "rank 0's fsync of the checkpoint directory"


def test_a_resume_that_is_never_exact_is_one_cause_and_no_matter_of_operations():
    trace = trace_of((0, "write", "a.tmp"), (0, "rename", "a.tmp", "a"), (0, "write", "b.tmp"))
    found = []
    for cut, done in cuts_of(trace, Order.learn([trace])):
        kind = "last-good-lost" if cut == (2,) else "diverged"
        one = judged(state(trace, cut, done), kind)
        found.append(replace(one, verdict=replace(one.verdict, resumed_from=(4,), component="optimizer")))
    causes = {cause.sort: cause for cause in find_causes(found, trace, Order.learn([trace]))}
    assert causes["resume"].num_states == 3
    assert causes["resume"].text == (
        "no resume from a checkpoint is exact, wherever the crash comes: optimizer is not what it was when that was saved"
    )
    assert causes["gap"].num_states == 1
    # One resume that is right shows that it does depend on the operations.
    found[0] = replace(found[0], verdict=replace(found[0].verdict, outcome="PASS", findings=()))
    assert "resume" not in {cause.sort for cause in find_causes(found, trace, Order.learn([trace]))}


def test_what_some_resumes_have_lost_beside_it_has_a_cause_of_its_own():
    trace = trace_of((0, "write", "a"), (0, "write", "b"), (0, "rename", "a", "c"))
    order = Order.learn([trace])
    found = []
    for cut, done in cuts_of(trace, order):
        more = ["optimizer"] if cut == (2,) else []  # after the write of b, before the rename
        lost = tuple(fail("state-lost", "state", "it is so", component=component) for component in [*more, "rng.torch"])
        verdict = Verdict("case", "", "FAIL", lost, lost[0].component, resumed_from=(4,))
        found.append(replace(judged(state(trace, cut, done), "diverged"), verdict=verdict))
    causes = {cause.component: cause for cause in find_causes(found, trace, order)}
    assert (causes["rng.torch"].sort, causes["rng.torch"].num_states) == ("resume", 3)
    assert (causes["optimizer"].sort, causes["optimizer"].num_states) == ("gap", 1)
    assert causes["optimizer"].text == "rank 0's write of b comes before rank 0's rename of c"


# -- where kills and power cuts were judged apart, and of each a sample only

TWO_FILES = trace_of(
    (0, "write", "m.tmp"),
    (0, "fsync", "m.tmp"),
    (0, "rename", "m.tmp", "model.pt"),
    (0, "fsync", "."),
    (0, "open", "o.tmp"),
    (0, "write", "o.tmp"),
    (0, "fsync", "o.tmp"),
    (0, "rename", "o.tmp", "optim.pt"),
    (0, "fsync", "."),
)
ONE_RANK = Order.learn([TWO_FILES])


def torn_apart(done):
    return "data-repeated" if "rename m.tmp to model.pt" in done and "rename o.tmp to optim.pt" not in done else ""


@pytest.mark.parametrize("sampled", [(0, 2, 3, 8, 9), (0, 1, 5, 9), (0, 2, 6, 9)])
def test_of_a_sample_what_a_restart_can_notice_is_named(sampled):
    states = [one for one in kills(TWO_FILES, ONE_RANK, torn_apart) if one.state.cut[0] in sampled]
    (cause,) = find_causes(states, TWO_FILES, ONE_RANK)
    assert cause.text == "rank 0's rename of model.pt comes before rank 0's rename of optim.pt"


def test_a_power_cut_where_a_kill_fails_too_is_its_cause_though_they_were_judged_apart():
    sampled = (0, 2, 3, 8, 9)  # the cut of the power is not among them
    kill = find_causes(
        [one for one in kills(TWO_FILES, ONE_RANK, torn_apart) if one.state.cut[0] in sampled], TWO_FILES, ONE_RANK
    )
    loss = unsynced(1, TWO_FILES.events[5])
    within = cut_power(TWO_FILES, (6,), (loss,), "data-repeated")
    (again,) = find_causes([within], TWO_FILES, ONE_RANK, kill)
    assert (again.text, again.num_states, again.kept) == (kill[0].text, 1, (within.path,))
    # Before the gap, behind it, and where more is lost than in it, it is the loss that does the harm.
    for cut, kind in (((1,), "data-repeated"), ((9,), "data-repeated"), ((6,), "last-good-lost")):
        (other,) = find_causes([cut_power(TWO_FILES, cut, (loss,), kind)], TWO_FILES, ONE_RANK, kill)
        assert other.sort == "durability", (cut, kind)


def test_what_lies_under_a_name_that_a_restart_looks_for_is_noticed():
    kept = trace_of((0, "write", "last.pt"), (0, "write", "last.pt"), (0, "rename", "last.pt", "older.pt"))
    marked = replace(kept, events=(*kept.events[:2], Mark(0, "save", "end", 1, "last.pt"), kept.events[2]))
    order = Order.learn([marked])
    written, moved = "write last.pt", "rename last.pt to older.pt"
    states = kills(marked, order, lambda done: "lost-work" if written in done and moved not in done else "")
    (cause,) = find_causes([one for one in states if one.state.cut != (1,)], marked, order)
    assert cause.text == "rank 0's last write of last.pt comes before rank 0's rename of older.pt"


# -- a save in the background: where it begins and ends, nothing of the disk tells

POINTER_FIRST = trace_of(
    (0, "write", "c-000003.tmp"),
    (0, "rename", "c-000003.tmp", "c-000003"),
    (0, "fsync", "."),
    (0, "rename", "latest.tmp", "latest"),
    (0, "write", "c-000006.tmp"),
    (0, "rename", "c-000006.tmp", "c-000006"),
    (0, "fsync", "."),
    (0, "rename", "latest.tmp", "latest"),
    (0, "write", "c-000009.tmp"),
)
BEHIND = Order.learn([POINTER_FIRST])


def without_its_file(first):
    """Fails where the pointer names what is not there; `first` is where the window begins."""

    def kind_of(cut):
        return "" if cut in (2, 3, 6, 7) else "resume-crashed"

    states = [one.state for one in kills(POINTER_FIRST, BEHIND, lambda done: "") if first[0] <= one.state.cut[0] <= first[1]]
    return [judged(one, kind_of(one.cut[0])) for one in states]


@pytest.mark.parametrize("window", [(0, 9), (0, 5), (4, 8), (0, 6), (4, 9)])
def test_a_gap_that_a_window_begins_or_ends_within_is_one_cause(window):
    (cause,) = find_causes(without_its_file(window), POINTER_FIRST, BEHIND)
    assert cause.text == "rank 0's rename of latest comes before rank 0's rename of c-*"


def test_a_power_cut_in_either_half_of_it_is_that_cause():
    cause = find_causes(without_its_file((0, 5)), POINTER_FIRST, BEHIND)
    loss = unsynced(1, POINTER_FIRST.events[0])
    powers = [cut_power(POINTER_FIRST, (place,), (loss,), "resume-crashed") for place in (1, 4)]
    (again,) = find_causes(powers, POINTER_FIRST, BEHIND, cause)
    assert (again.text, again.num_states) == (cause[0].text, 2)


def file(*pieces):
    return Entry("file", 0o644, tuple(Piece(size, source) for source, size in pieces))


def test_a_power_cut_that_leaves_what_a_kill_leaves_is_its_cause_until_the_save_is_reported():
    trace = trace_of((0, "open", "a"), (0, "write", "a"), (0, "fsync", "a"))
    order = Order.learn([trace])
    old, new = {"a": file((0, 8))}, {"a": file((100, 8))}
    trees = [old, {"a": file()}, new, new]
    states = [
        judged(replace(one.state, tree=tree), "") for one, tree in zip(kills(trace, order, lambda done: ""), trees, strict=True)
    ]
    torn = replace(states[1].state, tree={"a": file((100, 4))}, torn=trace.events[1], landed=4)
    states[1] = judged(states[1].state, "resume-crashed")
    whole = whole_files(old, new)
    known = find_causes([*states, judged(torn, "resume-crashed")], trace, order, (), whole)
    lost = cut_power(trace, (2,), (unsynced(1, trace.events[1]),), "resume-crashed")
    for content, owed, sorts in (
        (file((100, 3)), (), {"gap"}),
        (file((100, 3)), ("a",), {"durability"}),
        (file((-1, 8)), (), {"gap"}),
    ):
        state_of = replace(lost.state, tree={"a": content}, owed=owed)
        found = find_causes([judged(state_of, "resume-crashed")], trace, order, known, whole)
        assert {cause.sort for cause in found} == sorts, (content, owed)


def test_what_is_lost_of_a_checkpoint_that_is_made_in_its_place_is_that_cause_until_the_save_is_reported():
    steps = ("mkdir", "d"), ("open", "d/a"), ("write", "d/a"), ("open", "d/b"), ("write", "d/b"), ("fsync", "d")
    trace = trace_of(*((0, *step) for step in steps), (0, "open", "other"))
    order = Order.learn([trace])
    states = kills(trace, order, lambda done: "resume-crashed" if "mkdir d" in done and "write d/b" not in done else "")
    states = [judged(replace(one.state, tree={"x": file((0, n))}), one.verdict.kind) for n, one in enumerate(states)]
    known = find_causes(states, trace, order)
    creation, content, foreign = (unsynced(n, trace.events[n], sort) for n, sort in ((1, "name"), (4, "data"), (6, "name")))
    for lost, owed, sort in (
        ((creation,), (), "gap"),
        ((creation, content), (), "gap"),
        ((content,), ("d",), "durability"),
        ((content, foreign), (), "durability"),
    ):
        (found,) = find_causes([cut_power(trace, (6,), lost, "resume-crashed", owed=owed)], trace, order, known)
        assert found.sort == sort, (lost, owed)


def test_a_missing_sync_that_loses_a_checkpoint_is_not_called_rubbish_though_a_plainer_state_leaves_no_more():
    name = unsynced(3, ATOMIC.events[3], "name")
    more = unsynced(5, ATOMIC.events[5], "name")
    states = [
        cut_power(ATOMIC, (4,), (name,), "retention", owed=("a",)),
        cut_power(ATOMIC, (6,), (name, more), "last-good-lost", owed=("a",)),
    ]
    (cause,) = find_causes([*kills(ATOMIC, ALONE, lambda done: ""), *states], ATOMIC, ALONE)
    assert (cause.kind, cause.num_states, cause.shortest) == ("last-good-lost", 2, states[1])
    assert cause.text.endswith("(retention in 1 of them)")
