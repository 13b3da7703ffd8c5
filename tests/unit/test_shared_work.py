"""What a check leaves to other machines: states, damages and cases are dealt out, and none of it is taken for left out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from harness.check import Part
from harness.check_request import parse_request
from harness.crash_states import Enumeration
from harness.damages import Damage
from harness.errors import UsageError
from harness.explore import Exploration, _share, _size
from harness.scenario import job
from harness.shard import Shard
from harness.sweep import Sweep, _of_share


@dataclass
class State:
    faults: tuple[str, ...]


def groups(count):
    return [[[State((f"sigkill rank 0 at step {n}",)), State((f"sigkill rank 1 at step {n}",))]] for n in range(1, count + 1)]


@pytest.mark.parametrize("limit", [None, 7])
def test_the_states_of_a_save_are_dealt_out_whatever_order_a_machine_found_them_in(limit):
    everything = groups(20)
    asked = everything[:limit]
    shares = [_share(asked if n == 1 else list(reversed(asked)), Shard(n, 3)) for n in (1, 2, 3)]
    assert sum(map(_size, shares)) == _size(asked)
    names = [group[0][0].faults for share in shares for group in share]
    assert sorted(names) == sorted(group[0][0].faults for group in asked)


def test_damages_are_dealt_out():
    damages = [Damage(f"truncate newest to byte {n}", "truncate", "", "cut") for n in range(9)]
    assert sorted(d.sentence for n in (1, 2) for d in _of_share(damages, Shard(n, 2))) == [d.sentence for d in damages]


def test_a_share_without_a_state_has_failed_in_nothing():
    nothing = Exploration(job(), None, Enumeration((), 1, 0, 0), (), 0, (), elsewhere=4)
    assert (nothing.num_states, Part("p", nothing).outcome) == (4, "PASS")
    unreached = Exploration(job(), None, Enumeration((), 1, 0, 0), (), 0, (), not_asked=1, elsewhere=4)
    assert Part("p", unreached).outcome == "INCONCLUSIVE", "nothing of its own was tried"
    assert Sweep(job(), "c", 9, 4, 0, (), (), elsewhere=4).outcome == "PASS"
    assert Sweep(job(), "c", 9, 4, 0, (), ()).outcome == "INCONCLUSIVE"


OPTIONS = {
    **dict.fromkeys(("world_size", "steps", "save", "crash_points", "jobs", "budget", "resume_command", "world_sizes")),
    **dict.fromkeys(("tolerance", "python", "loss_log", "loss_regex")),
    "format": "single",
    "command": (),
    "seed": "0",
    "defect": (),
    "power_cut": "model",
    "filesystem": "ext4",
    "launch": "auto",
    "recovery": True,
    "interleavings": True,
    "damage": False,
    "errors": False,
}


def test_the_share_is_asked_for_in_words():
    assert parse_request({**OPTIONS, "shard": "2/3"}).shard == Shard(2, 3)
    assert parse_request(OPTIONS).shard is None
    with pytest.raises(UsageError, match=r"--shard 4/3: expected a share of all"):
        parse_request({**OPTIONS, "shard": "4/3"})
