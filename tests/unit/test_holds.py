"""Operations that wait for one another: in which order the injector lets them go. No process; an operation is a name."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.grammar import parse
from harness.inject.arming import Injector
from harness.plan import AttemptPlan
from harness.store import RecordWriter


@dataclass
class World:
    """What the injector sees, and what it does to it."""

    happened: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    idle: bool = False
    injector: Injector | None = None

    def others_wait(self):
        return self.idle

    def fired(self, fault, rank, **facts):
        self.told.append(f"fired {fault}")

    def released(self, fault, rank, why):
        self.told.append(f"released: {why}")

    def signal_ranks(self, ranks, number, why):
        self.told.append(f"killed {list(ranks)}")
        for rank in ranks:
            self.injector.forget(rank)

    def seen(self, rank, pid):
        """Of no interest."""

    def ask(self, rank, operation, path):
        """A rank stops at an operation."""
        text = f"rank {rank} {operation} {path}"
        call = SimpleNamespace(operation=operation, name=operation, data=None)
        asked = SimpleNamespace(rank=rank, pid=rank, call=call, names=[path], paths=[path], resolved=[path], size_bytes=0)
        asked.let_run = lambda: self.happened.append(text)
        self.injector.decide(asked)


@pytest.fixture
def world(tmp_path):
    def build(*sentences):
        made = World()
        plan = AttemptPlan(0, 2, tuple(map(parse, sentences)), None, ())
        made.injector = Injector(plan, Path("/nowhere"), {}, made, RecordWriter(tmp_path / "operations.jsonl"))
        return made

    return build


HOLD = "hold rank 0 before rename m until rank 1 rename b"
KILL = "sigkill all ranks before rename b by rank 1 when others wait"


def test_a_held_operation_goes_on_when_the_other_has_happened(world):
    one = world(HOLD)
    one.ask(0, "rename", "m")
    assert one.happened == []
    one.ask(1, "rename", "b")
    assert one.happened == ["rank 1 rename b", "rank 0 rename m"]
    assert one.told == [f"fired {HOLD}", "released: rank 1 went first"]


def test_nothing_is_held_for_what_has_happened_before(world):
    one = world(HOLD)
    one.ask(1, "rename", "b")
    one.ask(0, "rename", "m")
    assert one.happened == ["rank 1 rename b", "rank 0 rename m"]
    assert one.told == [f"fired {HOLD}"]  # the order that is asked for is there, and nothing waited


def test_an_operation_that_is_asked_for_and_held_has_not_happened(world):
    one = world(KILL, HOLD)
    one.ask(1, "rename", "b")  # it stands there until the others can go on no further
    one.ask(0, "rename", "m")
    assert one.happened == []
    assert one.told == [f"fired {HOLD}"]


@pytest.mark.parametrize("first", [0, 1])
def test_when_all_stand_still_the_patient_kill_comes_before_the_end_of_a_hold(world, first):
    one = world(KILL, HOLD)
    for rank in (first, 1 - first):
        one.ask(rank, "rename", "mb"[rank])
    one.idle = True
    one.injector.release_waiting()
    assert one.happened == []
    assert one.told == [f"fired {HOLD}", f"fired {KILL}", "killed [0, 1]"]


def test_a_hold_ends_when_all_others_wait(world):
    one = world(HOLD)
    one.ask(0, "rename", "m")
    one.injector.release_waiting()
    assert one.happened == []
    one.idle = True
    one.injector.release_waiting()
    assert one.happened == ["rank 0 rename m"]
    assert one.told == [f"fired {HOLD}", "released: all other ranks were waiting for it"]


def test_what_is_let_go_may_let_others_go(world):
    one = world(HOLD, "hold rank 1 before rename b until rank 0 rename x")
    one.ask(0, "rename", "m")
    one.ask(1, "rename", "b")
    assert one.happened == []
    one.idle = True
    one.injector.release_waiting()  # the first of them; the other waits on
    assert one.happened == ["rank 0 rename m"]
    one.injector.release_waiting()
    assert one.happened == ["rank 0 rename m", "rank 1 rename b"]
