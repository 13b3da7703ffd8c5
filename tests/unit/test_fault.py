"""The vocabulary of faults: parse and print are inverse, each refusal says what was found and what was expected."""

from __future__ import annotations

import re
import signal

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.fault import (
    CHECKPOINT_CHOICES,
    DAMAGE_EFFECTS,
    DISK_EFFECTS,
    ERRNO_NAMES,
    NUMERIC_EFFECTS,
    OPERATIONS,
    SIGNALS,
    TAMPERINGS,
    DamageFault,
    DiskFault,
    ErrnoFault,
    NumericFault,
    OperationPoint,
    Position,
    SignalFault,
    StepPoint,
    Who,
    matches_path,
)
from harness.grammar import parse, parse_all

# --- every value that the grammar can say

counts = st.integers(1, 10**18 - 1)
naturals = st.integers(0, 10**18 - 1)
attempts = st.integers(0, 99)
whos = st.one_of(
    st.sampled_from([Who(quantifier="all"), Who(quantifier="any")]),
    st.sets(naturals, min_size=1, max_size=4).map(lambda ranks: Who(tuple(sorted(ranks)))),
)
percents = st.floats(0, 100) | st.integers(0, 100).map(float)
positions = st.one_of(
    percents.map(lambda n: Position(percent=n)), naturals.map(lambda n: Position(byte=n)), st.just(Position(byte=-1))
)
# A word of the sentence: no white space inside, no comma at its end, and it stays below the checkpoint directory.
patterns = (st.text(min_size=1, max_size=12) | st.text("ab*?./%0", min_size=1, max_size=12)).filter(
    lambda p: p.split() == [p] and not p.endswith(",") and not p.startswith("/") and ".." not in p.split("/")
)


@st.composite
def operation_points(draw, moments=("before", "during", "after"), operations=tuple(OPERATIONS)):
    moment = draw(st.sampled_from(moments))
    during = moment == "during"
    return OperationPoint(
        "write" if during else draw(st.sampled_from(operations)),
        draw(patterns),
        moment,
        draw(positions) if during else None,
        draw(counts),
    )


signal_faults = st.builds(
    SignalFault,
    signal=st.sampled_from(list(SIGNALS)),
    who=whos,
    point=operation_points() | st.builds(StepPoint, counts),
    trigger=st.none() | naturals,
    attempt=attempts,
)
errno_faults = st.builds(
    ErrnoFault, st.sampled_from(sorted(ERRNO_NAMES)), whos, operation_points(("before",)), naturals, attempts
) | st.builds(ErrnoFault, st.just(""), whos, operation_points(("during",)), naturals, attempts)
disk_faults = st.builds(DiskFault, st.sampled_from(DISK_EFFECTS), counts, attempts)


@st.composite
def damage_faults(draw):
    effect = draw(st.sampled_from(DAMAGE_EFFECTS))
    return DamageFault(
        effect,
        draw(st.sampled_from(CHECKPOINT_CHOICES)),
        draw(patterns if effect == "swap" else st.just("") | patterns),
        draw(positions) if effect in ("truncate", "flip", "zero") else None,
        draw(st.integers(0, 7)) if effect == "flip" else 0,
        draw(st.integers(1, 99)),
        draw(st.sampled_from(list(TAMPERINGS))) if effect == "tamper" else "",
        draw(patterns) if effect == "swap" else "",
    )


numeric_faults = st.builds(NumericFault, st.sampled_from(NUMERIC_EFFECTS), whos, counts, counts, st.just(0) | counts)
faults = st.one_of(signal_faults, errno_faults, disk_faults, damage_faults(), numeric_faults)


@settings(deadline=None, max_examples=200)
@given(faults)
@example(DamageFault("flip", "newest", "x", Position(percent=1e-05)))
@example(DamageFault("truncate", "older", "x", Position(percent=33.333333333)))
@example(ErrnoFault("ENOSPC", Who((0,)), OperationPoint("write", "**", "before"), times=0))
def test_every_fault_prints_a_sentence_that_parses_to_it(fault):
    assert parse(str(fault)) == fault


@settings(deadline=None, max_examples=100)
@given(faults, st.data())
def test_commas_and_white_space_between_words_mean_nothing(fault, data):
    words = str(fault).split()
    gaps = st.sampled_from([" ", "  ", "\t", ", ", "\n", ",\n"])
    text = "".join(word + data.draw(gaps) for word in words)
    # "%" may stand apart from its number, in which case a comma between them would be a word of its own.
    assert parse(text) == fault


@settings(deadline=None, max_examples=100)
@given(faults)
def test_the_printed_sentence_is_canonical(fault):
    assert str(parse(str(fault))) == str(fault)
    assert str(fault) == " ".join(str(fault).split())


WORDS = [
    *SIGNALS,
    *NUMERIC_EFFECTS,
    *DISK_EFFECTS,
    *OPERATIONS,
    *CHECKPOINT_CHOICES,
    *TAMPERINGS,
    *DAMAGE_EFFECTS,
    *[
        "with",
        "from",
        "short-write",
        "ENOSPC",
        "EIO",
        "rank",
        "ranks",
        "all",
        "any",
        "before",
        "during",
    ],
    *["after", "at", "step", "by", "on", "occurrence", "times", "always", "attempt", "bytes", "byte", "last", "bit", "to"],
    *["batch", "0", "1", "2", "0,2", "1,", ",", "50%", "50", "%", "100.5%", "-1", "1e3", "newest/..", "newest/*.pt", "*.tmp"],
    *["**", ".", "..", "/etc", "a/../b", "9" * 19, "9" * 5000, "²", "٣", "0x10", "\x00", "'", "{", "1.5.5%", "newest//"],
]


def understood(text):
    try:
        return parse(text), ()
    except UsageError as error:
        return None, error.problems


@settings(deadline=None, max_examples=400)
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=6), max_size=14).map(" ".join) | st.text(max_size=60))
@example("sigkill ranks " + "9" * 5000 + " at step 1")
@example("flip newest at " + "9" * 5000 + "%")
@example("sigkill rank 0 at step " + "9" * 5000)
@example("")
def test_any_text_is_understood_or_refused_as_a_usage_error(text):
    fault, problems = understood(text)
    if fault is None:
        assert len(problems) == 1
        assert problems[0].startswith(f"fault {text!r}: ")
    else:
        assert parse(str(fault)) == fault


@settings(deadline=None, max_examples=200)
@given(faults, st.data())
def test_a_sentence_with_one_word_changed_is_understood_or_refused(fault, data):
    words = str(fault).split()
    index = data.draw(st.integers(0, len(words)))
    how = data.draw(st.sampled_from(["drop", "insert", "replace", "swap"]))
    word = data.draw(st.sampled_from(WORDS))
    before, here, after = words[:index], words[index : index + 1], words[index + 1 :]
    changed = {"drop": [], "insert": [word, *here], "replace": [word], "swap": [*after[:1], *here]}[how]
    text = " ".join(before + changed + (after[1:] if how == "swap" else after))
    changed_fault, problems = understood(text)
    if changed_fault is None:
        assert "expect" in problems[0]
    else:
        assert parse(str(changed_fault)) == changed_fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "sigkill rank 1 during write rank1.bin.tmp at 50 %, occurrence 2, by rank 0, attempt 1",
            SignalFault(
                "sigkill", Who((1,)), OperationPoint("write", "rank1.bin.tmp", "during", Position(percent=50.0), 2), 0, 1
            ),
        ),
        ("sigterm all ranks at step 7", SignalFault("sigterm", Who(quantifier="all"), StepPoint(7))),
        (
            "sigstop any rank before rename step-*/manifest.json",
            SignalFault("sigstop", Who(quantifier="any"), OperationPoint("rename", "step-*/manifest.json", "before")),
        ),
        ("sigkill ranks 2,0 after fsync .", SignalFault("sigkill", Who((0, 2)), OperationPoint("fsync", ".", "after"))),
        ("ENOSPC rank 0 on write *.tmp always", ErrnoFault("ENOSPC", Who((0,)), OperationPoint("write", "*.tmp"), times=0)),
        (
            "EIO all ranks on fsync ** occurrence 3 times 2 attempt 1",
            ErrnoFault("EIO", Who(quantifier="all"), OperationPoint("fsync", "**", "before", None, 3), 2, 1),
        ),
        (
            "short-write rank 0 on write * at last byte",
            ErrnoFault("", Who((0,)), OperationPoint("write", "*", "during", Position(byte=-1))),
        ),
        ("quota 300000 bytes", DiskFault("quota", 300000)),
        ("full-disk 1 bytes attempt 2", DiskFault("full-disk", 1, 2)),
        (
            "truncate newest/rank0.bin to byte 0",
            DamageFault("truncate", "newest", "rank0.bin", Position(byte=0)),
        ),
        (
            "flip older/** at 12.5% bit 7 attempt 2",
            DamageFault("flip", "older", "**", Position(percent=12.5), 7, 2),
        ),
        ("delete every", DamageFault("delete", "every")),
        ("delete every/", DamageFault("delete", "every")),
        ("zero newest/rank1.bin at 50 %", DamageFault("zero", "newest", "rank1.bin", Position(percent=50.0))),
        ("zero every at last byte, attempt 3", DamageFault("zero", "every", "", Position(byte=-1), attempt=3)),
        ("swap newest/rank0.bin with rank1.bin", DamageFault("swap", "newest", "rank0.bin", other="rank1.bin")),
        ("swap older/a/* with b/* attempt 2", DamageFault("swap", "older", "a/*", attempt=2, other="b/*")),
        ("replace newest/rank0.bin from older", DamageFault("replace", "newest", "rank0.bin")),
        ("replace newest from older, attempt 2", DamageFault("replace", "newest", attempt=2)),
        ("tamper newest/*.bin with hostile-pickle", DamageFault("tamper", "newest", "*.bin", tampering="hostile-pickle")),
        ("tamper every, with unknown-schema, attempt 2", DamageFault("tamper", "every", attempt=2, tampering="unknown-schema")),
        ("overflow rank 0 at batch 5 times 3", NumericFault("overflow", Who((0,)), 5, 3)),
        ("overflow rank 0 at batch 7 micro-batch 2", NumericFault("overflow", Who((0,)), 7, 1, 2)),
        ("nan any rank at batch 7, micro-batch 2, times 3", NumericFault("nan", Who(quantifier="any"), 7, 3, 2)),
        ("spike all ranks at batch 1 times 1", NumericFault("spike", Who(quantifier="all"), 1)),
    ],
)
def test_sentences_that_people_write(text, fault):
    assert parse(text) == fault


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "ends too early; expected a fault word"),
        ("   ", "ends too early; expected a fault word"),
        ("kill rank 0 at step 1", "unknown fault word 'kill'; expected one of sigkill, sigterm, sigstop"),
        ("ENOSUCH rank 0 on write x", "unknown fault word 'ENOSUCH'"),
        ("SIGKILL rank 0 at step 1", "unknown fault word 'SIGKILL'"),
        ("sigkill", "ends too early; expected rank or ranks or all or any"),
        ("sigkill 0 at step 1", "found '0' where rank or ranks or all or any was expected"),
        ("sigkill rank x at step 1", "'x' is not a rank; expected a whole number, 0 or more"),
        ("sigkill rank -1 at step 1", "'-1' is not a rank; expected a whole number, 0 or more"),
        ("sigkill ranks 0,x at step 1", "'0,x' is no list of ranks; expected numbers such as 0,2"),
        ("sigkill all rank at step 1", "found 'rank' where ranks was expected"),
        ("sigkill any ranks at step 1", "found 'ranks' where rank was expected"),
        ("sigkill rank 0 when step 1", "found 'when' where before or during or after or at was expected"),
        ("sigkill rank 0 at batch 1", "found 'batch' where step was expected"),
        ("sigkill rank 0 at step 0", "'0' is not a step; expected a whole number, 1 or more"),
        ("sigkill rank 0 at step 1.5", "'1.5' is not a step; expected a whole number, 1 or more"),
        ("sigkill rank 0 at step 1 by 0", "found '0' where rank was expected"),
        ("sigkill rank 0 at step 1 times 2", "did not expect 'times 2' at the end"),
        ("sigkill rank 0 before pwrite x", "unknown operation 'pwrite'; expected one of open, read, write"),
        ("sigkill rank 0 before write", "ends too early; expected a path pattern"),
        ("sigkill rank 0 before write /etc/passwd", "'/etc/passwd' leaves the checkpoint directory; expected a pattern below"),
        ("sigkill rank 0 before write a/../../b", "'a/../../b' leaves the checkpoint directory; expected a pattern below it"),
        ("sigkill rank 0 during rename x at 50%", "only a write can be cut in the middle; found 'rename', expected write"),
        ("sigkill rank 0 during write x", "ends too early; expected at"),
        ("sigkill rank 0 during write x at", "ends too early; expected a position: N%, byte N, or last byte"),
        ("sigkill rank 0 during write x at 101%", "'101%' is no position; expected N% (0 to 100), byte N, or last byte"),
        ("sigkill rank 0 during write x at 50", "'50' is no position; expected N%"),
        ("sigkill rank 0 during write x at last", "ends too early; expected byte"),
        ("sigkill rank 0 during write x at byte -1", "'-1' is not a byte; expected a whole number, 0 or more"),
        ("sigkill rank 0 before write x occurrence 0", "'0' is not a count; expected a whole number, 1 or more"),
        ("sigkill rank 0 before write x attempt 0 attempt 1", "did not expect 'attempt 1' at the end"),
        ("ENOSPC rank 0 before write x", "found 'before' where on was expected"),
        ("ENOSPC rank 0 on write x times 0", "'0' is not a count; expected a whole number, 1 or more"),
        ("short-write rank 0 on read x at 5%", "only a write can be cut in the middle; found 'read', expected write"),
        ("quota 0 bytes", "'0' is not a size; expected a whole number, 1 or more"),
        ("quota 5", "ends too early; expected bytes"),
        ("quota 5 MB", "found 'MB' where bytes was expected"),
        ("truncate latest to 5%", "unknown checkpoint 'latest'; expected newest, older, every, then /PATTERN"),
        ("truncate newest/../x to 5%", "'../x' leaves the checkpoint directory; expected a pattern inside it"),
        ("truncate newest//etc to 5%", "'/etc' leaves the checkpoint directory; expected a pattern inside it"),
        ("truncate newest at 5%", "found 'at' where to was expected"),
        ("flip newest at 5% bit 8", "'8' is not a bit; expected a whole number, 0 to 7"),
        ("sigkill ranks 0,0,1 at step 3", "'0,0,1' names a rank twice; expected each rank once"),
        ("sigkill rank \u0663 at step 3", "'\u0663' is not a rank; expected a whole number, 0 or more"),
        ("flip newest at 5% attempt 0", "'0' is not an attempt; expected a whole number, 1 or more"),
        ("delete newest at 5%", "did not expect 'at 5%' at the end"),
        ("zero newest to 5%", "found 'to' where at was expected"),
        ("zero newest at 5% bit 1", "did not expect 'bit 1' at the end"),
        ("swap newest with rank1.bin", "'newest' names no file; expected newest/PATTERN, one of two that change places"),
        ("swap newest/rank0.bin", "ends too early; expected with"),
        ("swap newest/rank0.bin with ../rank1.bin", "'../rank1.bin' leaves the checkpoint directory; expected a pattern below"),
        ("replace newest/rank0.bin", "ends too early; expected from"),
        ("replace newest/rank0.bin from newest", "found 'newest' where older was expected"),
        ("tamper newest", "ends too early; expected with"),
        ("tamper newest at 5%", "found 'at' where with was expected"),
        ("tamper newest with", "ends too early; expected one of unknown-schema, unsafe-path-absolute"),
        ("tamper newest with malice", "unknown tampering 'malice'; expected one of unknown-schema (the schema in a manifest or"),
        ("tamper newest/../x with missing-key", "'../x' leaves the checkpoint directory; expected a pattern inside it"),
        ("nan rank 0 at step 3", "found 'step' where batch was expected"),
        ("nan rank 0 at batch 3 micro-batch 0", "'0' is not a micro-batch; expected a whole number, 1 or more"),
        ("nan rank 0 at batch 3 times 2 micro-batch 1", "did not expect 'micro-batch 1' at the end"),
        ("nan rank 0 at batch 3 attempt 1", "did not expect 'attempt 1' at the end"),
    ],
)
def test_a_refusal_says_the_sentence_what_was_found_and_what_was_expected(text, problem):
    with pytest.raises(UsageError, match=re.escape(problem)) as caught:
        parse(text)
    assert str(caught.value).startswith(f"fault {text!r}: ")


def test_parse_all_collects_every_problem():
    with pytest.raises(UsageError) as caught:
        parse_all(["sigkill rank 0 at step 1", "bogus", "quota x bytes", "delete every"])
    assert len(caught.value.problems) == 2
    assert "'bogus'" in caught.value.problems[0]
    assert "'x'" in caught.value.problems[1]


def test_parse_all_keeps_the_order():
    texts = ["delete every", "quota 5 bytes", "sigkill rank 0 at step 1"]
    assert [str(fault) for fault in parse_all(texts)] == texts
    assert parse_all([]) == ()


def test_signal_words_are_the_signals_of_those_names():
    assert {word: number.name.lower() for word, number in SIGNALS.items()} == {word: word for word in SIGNALS}
    assert SIGNALS["sigkill"] == signal.SIGKILL


@pytest.mark.parametrize("name", ["ENOSPC", "EIO", "EDQUOT", "EROFS", "EOPNOTSUPP", "ENOTSUP", "EWOULDBLOCK", "EAGAIN", "ESTALE"])
def test_errno_names_of_the_c_library_are_known_also_where_two_share_a_number(name):
    assert str(parse(f"{name} rank 0 on fsync x")) == f"{name} rank 0 on fsync x"


def test_a_system_call_belongs_to_one_family_only():
    calls = [call for family in OPERATIONS.values() for call in family]
    assert len(calls) == len(set(calls))
    assert all(family in members for family, members in OPERATIONS.items())


# --- paths


@pytest.mark.parametrize(
    ("pattern", "path", "meant"),
    [
        # without a slash: the last name only
        ("*.tmp", "rank0.bin.tmp", True),
        ("*.tmp", "step-00000004/rank0.bin.tmp", True),
        ("*.tmp", "x.tmp/rank0.bin", False),
        ("*.tmp", ".tmp", True),
        ("*.tmp", "x.tmp2", False),
        ("rank?.bin", "a/rank1.bin", True),
        ("rank?.bin", "a/rank10.bin", False),
        ("manifest.json", "a/b/manifest.json", True),
        ("manifest.json", "a/manifestXjson", False),
        ("**", "a/b/c", True),
        ("", "a", False),
        # with a slash: the whole path
        ("step-*/manifest.json", "step-00000004/manifest.json", True),
        ("step-*/manifest.json", "old/step-00000004/manifest.json", False),
        ("step-*/manifest.json", "step-1/x/manifest.json", False),
        ("step-*/*", "step-1/x", True),
        ("step-*/*", "step-1/x/y", False),
        ("step-*/*", "step-1", False),
        ("a/?", "a//", False),
        # ** over directories
        ("**/manifest.json", "manifest.json", True),
        ("**/manifest.json", "a/b/manifest.json", True),
        ("**/manifest.json", "a/xmanifest.json", False),
        ("a/**", "a/b/c", True),
        ("a/**", "a", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "a/bz", False),
        ("a/**z", "a/b/cz", True),
        # the checkpoint directory itself
        (".", ".", True),
        (".", "a", False),
        (".", "a/.", True),
        ("**/.", ".", True),
        # nothing else is special
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("a+b|c$", "a+b|c$", True),
        ("a.b", "aXb", False),
        # a name may hold anything
        ("a*b", "a\nb", True),
        ("a/**/b", "a/x\ny/b", True),
    ],
)
def test_path_patterns(pattern, path, meant):
    assert matches_path(pattern, path) is meant


names = st.text("ab.*[\\", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))


@settings(deadline=None)
@given(st.lists(names, min_size=1, max_size=4))
def test_a_path_is_meant_by_its_own_name_and_by_the_stars(parts):
    path = "/".join(parts)
    assume("**" not in path)
    assert matches_path(path, path)
    assert matches_path(parts[-1], path)
    assert matches_path("*", path)
    assert matches_path("**/" + parts[-1], path)
    assert matches_path("/".join("*" * len(parts)), path)
    assert not matches_path("*/" + "/".join("*" * len(parts)), path)


@settings(deadline=None)
@given(st.text("a*?/", max_size=6), st.text("ab/\n.", max_size=8))
def test_any_pattern_can_be_compared_with_any_path(pattern, path):
    assert matches_path(pattern, path) in (True, False)


def test_an_operation_point_matches_its_own_family_and_any_of_the_paths():
    point = OperationPoint("rename", "*.pt")
    assert point.matches("rename", ["x.tmp", "step-1.pt"])
    assert not point.matches("rename", ["x.tmp", "y.tmp"])
    assert not point.matches("rename", [])
    assert not point.matches("unlink", ["step-1.pt"])


# --- positions


@pytest.mark.parametrize(
    ("position", "size_bytes", "expected"),
    [
        (Position(percent=0.0), 1000, 0),
        (Position(percent=100.0), 1000, 1000),
        (Position(percent=50.0), 1, 0),
        (Position(percent=50.0), 3, 1),
        (Position(percent=32.3), 1000, 323),
        (Position(percent=0.57), 10_000, 57),
        (Position(percent=99.9), 10, 9),
        (Position(percent=50.0), 0, 0),
        (Position(byte=0), 10, 0),
        (Position(byte=10), 10, 10),
        (Position(byte=11), 10, 10),
        (Position(byte=5), 0, 0),
        (Position(byte=-1), 10, 9),
        (Position(byte=-1), 1, 0),
        (Position(byte=-1), 0, 0),
        (Position(byte=-20), 10, 0),
    ],
)
def test_position_at_the_edges(position, size_bytes, expected):
    assert position.of(size_bytes) == expected


@settings(deadline=None)
@given(positions, st.integers(0, 2**63))
def test_a_position_never_leaves_the_bytes(position, size_bytes):
    assert 0 <= position.of(size_bytes) <= size_bytes


@settings(deadline=None)
@given(st.integers(0, 100), st.integers(0, 2**63))
def test_whole_percents_are_exact(percent, size_bytes):
    assert Position(percent=float(percent)).of(size_bytes) == size_bytes * percent // 100


# --- who is hit, and by whom


@pytest.mark.parametrize(
    ("text", "triggers", "victims_of_2"),
    [
        ("sigkill rank 1 at step 3", {1}, (1,)),
        ("sigkill ranks 0,3 at step 3", {0, 3}, (0, 3)),
        ("sigkill all ranks at step 3", {0, 1, 2, 3}, (0, 1, 2, 3)),
        ("sigkill any rank at step 3", {0, 1, 2, 3}, (2,)),
        ("sigkill rank 1 at step 3 by rank 2", {2}, (1,)),
        ("sigkill all ranks before write x by rank 2", {2}, (0, 1, 2, 3)),
    ],
)
def test_who_triggers_and_who_is_hit(text, triggers, victims_of_2):
    fault = parse(text)
    assert isinstance(fault, SignalFault)
    assert {rank for rank in range(4) if fault.triggered_by(rank)} == triggers
    assert fault.victims(4, 2) == victims_of_2


def test_who_covers():
    assert Who((1,)).covers(1)
    assert not Who((1,)).covers(0)
    assert Who(quantifier="any").covers(7)
