"""All crash states of a save: cuts, torn writes, power losses, promises, and the sentences that bring them about."""

from __future__ import annotations

import hashlib

import pytest

from harness.crash_states import Points
from harness.grammar import parse
from harness.trace import InitialFile, Mark, Operation, SaveWindow, Stretch, Trace


class Story:
    """Events of two ranks, written down in an order."""

    def __init__(self, path):
        self.data = path / "data.bin"
        if not self.data.exists():
            self.data.write_bytes(b"x" * 20_000)
        self.events, self.counts = [], {}

    def do(self, rank, operation, path, to=None, size=None, inode=0, **fields):
        index = self.counts.get(rank, 0)
        self.counts[rank] = index + 1
        number = sum(self.counts.values())
        data = None if size is None else Stretch(0, size, hashlib.sha256(b"x" * size).hexdigest())
        self.events.append(
            Operation(number, rank, index, operation, operation, path, to, size or 0, data=data, inode=inode, **fields)
        )
        return self

    def say(self, rank, moment):
        self.events.append(Mark(rank, "save", moment, 1, "s"))
        return self

    def trace(self):
        return Trace((InitialFile(".", "dir", 1, 0o755),), tuple(self.events), self.data)


def shard(story, rank, inode):
    story.do(rank, "open", f"shard{rank}", inode=inode, created=True, mode=0o644)
    return story.do(rank, "write", f"shard{rank}", size=10, inode=inode)


def commit(story):
    story.do(0, "open", "manifest", inode=30, created=True, mode=0o644)
    return story.do(0, "write", "manifest", size=5, inode=30).say(0, "end")


@pytest.fixture
def barrier(tmp_path):
    """Two shards at any time, then the manifest: rank 0's first two operations and rank 1's are free."""
    natural = commit(shard(shard(Story(tmp_path), 0, 10), 1, 20)).trace()
    rank_0_last = commit(shard(shard(Story(tmp_path), 1, 20), 0, 10)).trace()
    return [natural, rank_0_last]


def points_of(traces):
    return Points(traces[0], traces[-1], traces, SaveWindow("s", 0, len(traces[0].events), None))


def test_all_cuts_that_the_order_allows(barrier):
    cuts, left_out = points_of(barrier).cuts()
    assert left_out == 0
    # (done by rank 0, done by rank 1): the manifest comes after both shards are complete.
    assert set(cuts) == {(i, j) for i in range(3) for j in range(3)} | {(3, 2), (4, 2)}


def test_without_a_barrier_the_commit_can_come_before_the_other_shard(tmp_path):
    natural = commit(shard(shard(Story(tmp_path), 0, 10), 1, 20)).trace()
    rank_1_last = shard(commit(shard(Story(tmp_path), 0, 10)), 1, 20).trace()
    points = points_of([natural, rank_1_last])
    assert (4, 0) in points.cuts()[0]
    states = points.enumerate(power=False).states
    (early,) = [state for state in states if state.cut == (4, 0)]
    assert set(early.tree) == {"shard0", "manifest"}
    assert not early.natural
    assert early.owed == ("s",)


def test_a_report_counts_as_made_once_everything_that_it_needs_has_happened(barrier):
    states = points_of(barrier).enumerate(power=False).states
    assert [state.owed for state in states if state.cut == (3, 2)] == [()]
    assert [state.owed for state in states if state.cut == (4, 2)] == [("s",)]


def test_equal_directories_are_one_state(barrier):
    states = points_of(barrier).enumerate(power=False).states
    assert len({state.cut for state in states}) == len(states)
    keys = {state.key for state in states}
    assert len(keys) == len(states)  # each cut has other files here
    again = points_of(barrier).enumerate(power=False).states
    assert {state.key for state in again} == keys


def test_power_is_cut_where_something_is_unsynced(barrier):
    found = points_of(barrier).enumerate(kill=False)
    assert found.num_power == len(found.states) > 20
    everything = [state for state in found.states if state.cut == (4, 2)]
    assert {} in [state.tree for state in everything]  # nothing unsynced survives
    emptied = [s for s in everything if str(s.survivors) == "all names and no data"]
    assert [entry.pieces for entry in emptied[0].tree.values()] == [(), (), ()]
    assert all(state.lost for state in found.states)


def test_a_sync_before_or_after_another_ranks_rename_leaves_other_states(tmp_path):
    # Both ranks are done in either run; only where rank 0's sync came after the rename is the name durable.
    def story(*first):
        made = Story(tmp_path).do(1, "open", "shard.tmp", inode=20, created=True, mode=0o644)
        calls = {0: (0, "fsync", ".", None), 1: (1, "rename", "shard.tmp", "shard")}
        for rank in first:
            owner, operation, path, to = calls[rank]
            made.do(owner, operation, path, to, inode=1 if rank == 0 else 20)
        return made.trace()

    states = points_of([story(1, 0), story(0, 1)]).enumerate(kill=False).states
    lost = [state for state in states if state.cut == (1, 2) and "shard.tmp" in state.tree]
    assert len(lost) == 1
    assert not lost[0].natural
    # The order that it needs is part of what brings it about.
    assert "hold rank 1 before rename shard.tmp until rank 0 fsync ." in lost[0].faults


def test_a_write_is_torn_at_blocks(tmp_path):
    story = Story(tmp_path).do(0, "open", "big", inode=10, created=True).do(0, "write", "big", size=12_288, inode=10)
    found = points_of([story.trace(), story.trace()]).enumerate(power=False)
    torn = [state for state in found.states if state.torn is not None]
    assert [state.landed for state in torn] == [4096, 8192]
    assert [sum(piece.size_bytes for piece in state.tree["big"].pieces) for state in torn] == [4096, 8192]
    assert torn[0].faults == ("sigkill all ranks during write big at byte 4096 by rank 0",)
    assert found.num_points == 5


def test_sentences_are_faults_and_say_where_each_rank_stands(barrier):
    states = points_of(barrier).enumerate().states
    for state in states:
        for sentence in state.faults:
            assert str(parse(sentence)) == sentence
    (state,) = [s for s in states if s.cut == (1, 0) and s.survivors is None]
    assert state.faults == (
        "sigkill all ranks before write shard0 by rank 0 when others wait",
        "hold rank 1 before open shard1 until rank 0 write shard0",
    )
    (last,) = [s for s in states if s.cut == (4, 2) and s.survivors is None]
    assert last.faults == ("sigkill all ranks after write manifest by rank 0 when others wait",)


def test_a_launcher_that_has_made_a_directory_before_the_save_is_no_third_rank_of_it(tmp_path):
    def story(first):
        start = Story(tmp_path).do(-1, "mkdir", "d", inode=9, created=True, mode=0o755)
        return commit(shard(shard(start, first, 10 * first + 10), 1 - first, 20 - 10 * first)).trace()

    traces = [story(0), story(1)]
    points = Points(traces[0], traces[-1], traces, SaveWindow("s", 1, len(traces[0].events), None))
    cuts, left_out = points.cuts()
    assert (len(cuts), left_out) == (3 * 3 + 2, 0)


def test_more_ranks_than_two_take_the_orders_that_were_seen(tmp_path):
    one = shard(shard(shard(Story(tmp_path), 0, 10), 1, 20), 2, 30).trace()
    other = shard(shard(shard(Story(tmp_path), 2, 30), 1, 20), 0, 10).trace()
    cuts, left_out = points_of([one, other]).cuts()
    assert left_out == -1  # there are more, and nobody has counted them
    assert len(cuts) == 7 + 7 - 2
