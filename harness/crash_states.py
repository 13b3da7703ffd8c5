"""All crash states of one save: every point at which the job can die, and what is left of the directory there.

Responsible for: listing the points (every consistent cut of the ranks' operations, and block boundaries within writes), the
power-loss variants of each, recognising equal states by content, and the sentences (`harness.grammar`) that bring each about in
a real run. Pure.

Bounds, which `Enumeration` states: with one or two ranks all cuts are taken, with more (or over `MAX_CUTS`) those that were
seen; within a write at most three block boundaries; power is cut at the points of the orders that were seen, with each first
part of the unsynced changes of names, each single one lost, and each file's unsynced content gone, empty, zeroed, torn, or as
ext4 and XFS keep it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.crash import BLOCK_BYTES, Change, Model
from harness.fault import (
    HoldFault,
    OperationPoint,
    Position,
    PowerCutFault,
    SignalFault,
    StepPoint,
    Survivors,
    Who,
)
from harness.trace import Event, Mark, Operation, Order, SaveWindow, Trace, stable_pattern
from harness.tree import Contents, Tree, difference

MAX_CUTS = 400
_ALL = Who(quantifier="all")
Cut = tuple[int, ...]  # per rank, in the order of `Points.ranks`: how many of its operations have happened


@dataclass(frozen=True)
class CrashState:
    """One state of the directory after a crash, and how the job died.

    Attributes:
        faults: the sentences that bring it about.
        cut: operations done, per rank.
        done: the events that had happened, by their index in the trace.
        last: the operation that happened last; None before the first one.
        torn: the write that was cut, if any, and `landed`, how many of its bytes are there.
        lost: the unsynced changes that a power cut took; empty for the death of processes.
        natural: whether the order is that of the undisturbed run.
        tree: the directory.
        digest: of the tree.
        owed: checkpoints that were reported as saved, in order: what a resume must find.
    """

    faults: tuple[str, ...]
    cut: Cut
    done: tuple[int, ...]
    last: Operation | None
    torn: Operation | None
    landed: int
    survivors: Survivors | None
    lost: tuple[Change, ...]
    natural: bool
    tree: Tree = field(repr=False)
    digest: str
    owed: tuple[str, ...]

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        """Equal for two states that must be judged alike: the same directory, and the same promises."""
        return self.digest, self.owed


@dataclass(frozen=True)
class Enumeration:
    """What there is to explore, and how it was bounded.

    Attributes:
        states: every state, in order; several may be equal (`CrashState.key`).
        num_points: crash points: places between operations, over all orders of the ranks, and within writes.
        num_points_bounded: points that exist and were left out.
        num_power: power-loss states among the states.
    """

    states: tuple[CrashState, ...]
    num_points: int
    num_points_bounded: int
    num_power: int


@dataclass(frozen=True)
class _Path:
    """An order in which the operations of a cut can come, and the directory after it."""

    operations: tuple[Operation, ...]
    model: Model
    natural: bool


class Points:
    """The crash points of one save.

    Args:
        trace: the undisturbed run.
        other: the same job run again, to see which names are drawn anew.
        order: which operations of different ranks come in an enforced order.
        orders: the orders that were seen, the undisturbed run's first.
        window: the save.
        attempt: index of the attempt that was traced.
    """

    def __init__(self, trace: Trace, other: Trace, orders: Sequence[Trace], window: SaveWindow, attempt: int = 0) -> None:
        self.trace, self.window, self.attempt = trace, window, attempt
        self.order = Order.learn(orders)
        self.ranks = trace.ranks
        self._orders = orders
        self._contents = Contents(trace.data)
        self._twins: dict[tuple[int, int], list[str]] = {}
        for op in (op for one in (other, *orders) for op in one.operations):
            self._twins.setdefault((op.rank, op.index), []).append(op.path)
        before = [event for event in trace.events[: window.start] if isinstance(event, Operation)]
        self._before = before
        self._base = Model.of(trace)
        self._base.run(before)
        inside = [event for event in trace.events[window.start : window.stop] if isinstance(event, Operation)]
        self.operations = inside
        self._own = {rank: [op for op in inside if op.rank == rank] for rank in self.ranks}
        self._first = {rank: sum(op.rank == rank for op in before) for rank in self.ranks}
        self._place = {(op.rank, op.index): place for place, op in enumerate(inside)}
        self._marks = _needs_of_marks(orders)

    # -- cuts ---------------------------------------------------------------------------------------------------------

    def cuts(self) -> tuple[list[Cut], int]:
        """The consistent cuts, in the order of how much has happened, and how many were left out."""
        natural = self.chain(self.trace)
        seen = list(dict.fromkeys(cut for trace in self._orders for cut in self.chain(trace)))
        if sum(map(bool, self._own.values())) > 2:
            return sorted(seen, key=sum), -1
        found = sorted(self._lattice(), key=sum)
        if len(found) > MAX_CUTS:
            return sorted(set(seen) | set(natural), key=sum), len(found) - len(seen)
        return found, 0

    def chain(self, trace: Trace) -> list[Cut]:
        """The cuts that a run went through, from the start of the window to its end."""
        cut = [0] * len(self.ranks)
        chain = [tuple(cut)]
        for op in trace.operations:
            if (op.rank, op.index) in self._place:
                cut[self.ranks.index(op.rank)] += 1
                chain.append(tuple(cut))
        return chain

    def _lattice(self) -> set[Cut]:
        start = (0,) * len(self.ranks)
        found, todo = {start}, [start]
        while todo and len(found) <= 4 * MAX_CUTS:
            cut = todo.pop()
            for place in range(len(self.ranks)):
                following = self.following(cut, place)
                if following is None or not self._possible(cut, following):
                    continue
                further = (*cut[:place], cut[place] + 1, *cut[place + 1 :])
                if further not in found:
                    found.add(further)
                    todo.append(further)
        return found

    def following(self, cut: Cut, place: int) -> Operation | None:
        """The next operation of a rank behind a cut; None if it has no more in this save."""
        own = self._own[self.ranks[place]]
        return own[cut[place]] if cut[place] < len(own) else None

    def _possible(self, cut: Cut, op: Operation) -> bool:
        """Whether everything that must come before an operation has happened."""
        return all(
            not self.order.enforced((other.rank, other.index), (op.rank, op.index))
            for place, rank in enumerate(self.ranks)
            if rank != op.rank
            for other in self._own[rank][cut[place] :]
        )

    def happened(self, cut: Cut) -> list[Operation]:
        """The operations of the window up to a cut, in the order of the undisturbed run."""
        kept = {(op.rank, op.index) for place, rank in enumerate(self.ranks) for op in self._own[rank][: cut[place]]}
        return [op for op in self.operations if (op.rank, op.index) in kept]

    # -- states -------------------------------------------------------------------------------------------------------

    def enumerate(self, *, kill: bool = True, power: bool = True) -> Enumeration:
        """All crash states of this save.

        Args:
            kill: those after the death of all processes.
            power: those after a power cut.
        """
        cuts, left_out = self.cuts()
        natural = set(self.chain(self.trace))
        seen = {cut for trace in self._orders for cut in self.chain(trace)}
        states: list[CrashState] = []
        num_points = num_power = 0
        for cut, paths in self._paths(cuts).items():
            num_points += 1
            known: set[str] = set()
            for path in paths:
                tree = path.model.everything()
                digest = self._contents.digest_of(tree)
                if (
                    kill and digest not in known
                ):  # a second one only where ranks change the same name; mostly the order is no matter
                    states.append(self._state(cut, tree, natural=path.natural, path=path if known else None))
                known.add(digest)
                if power and cut in seen:
                    variants = list(self._power_states(cut, path, known))
                    num_power += len(variants)
                    states += variants
            if cut in natural:
                torn = list(self._torn_states(cut, paths[0].model))
                num_points += len(torn)
                states += torn if kill else []
        return Enumeration(tuple(states), num_points, left_out, num_power)

    def _paths(self, cuts: Sequence[Cut]) -> dict[Cut, list[_Path]]:
        """Per cut, the orders of its operations that leave different things behind; the undisturbed run's first, where it is one.

        One set of operations is not one state: whether a rank's sync of a directory came before or after another rank's rename
        in it decides what a power cut can take.
        """
        paths: dict[Cut, list[_Path]] = {cut: [] for cut in cuts}
        keys: dict[Cut, set[object]] = {cut: set() for cut in cuts}
        for cut in self.chain(self.trace):
            operations = self.happened(cut)
            model = self._base.copy()
            model.run(operations)
            self._add(_Path(tuple(operations), model, natural=True), paths[cut], keys[cut])
        if not any(paths[cut] for cut in cuts[:1]):
            self._add(_Path((), self._base.copy(), natural=False), paths[cuts[0]], keys[cuts[0]])
        for cut in cuts:  # by how much has happened, so that those before a cut are complete
            for place in range(len(self.ranks)):
                op = self.following(cut, place)
                further = (*cut[:place], cut[place] + 1, *cut[place + 1 :])
                if op is None or further not in paths or not self._possible(cut, op):
                    continue
                for path in paths[cut]:
                    model = path.model.copy()
                    model.run([op])
                    self._add(_Path((*path.operations, op), model, natural=False), paths[further], keys[further])
        return paths

    def _add(self, path: _Path, paths: list[_Path], keys: set[object]) -> None:
        pending = frozenset((c.sort, c.offset, c.operation.rank, c.operation.index) for c in path.model.pending if c.operation)
        key = (self._contents.digest_of(path.model.everything()), pending)
        if key not in keys:
            keys.add(key)
            paths.append(path)

    @property
    def before(self) -> Tree:
        """The directory as this save finds it."""
        return self._base.everything()

    def finished(self) -> CrashState:
        """The state in which everything of this save has happened and nothing of the next.

        Its sentence is a kill at a step that was logged in between, where there is one, since that is plain and needs no
        order of operations.
        """
        cut = self.chain(self.trace)[-1]
        model = self._base.copy()
        model.run(self.happened(cut))
        state = self._state(cut, model.everything(), natural=True)
        done = tuple(index for index in state.done if index < self.window.stop)
        events = self.trace.events[self.window.start : self.window.stop]
        steps = [event.step for event in events if isinstance(event, Mark) and event.what == "batch" and event.step]
        if not steps:
            return replace(state, done=done)
        return replace(state, done=done, faults=(self._killing(StepPoint(steps[-1]), None, None, patient=False),))

    def _torn_states(self, cut: Cut, model: Model) -> Iterator[CrashState]:
        op = self._next_in_order(cut)
        if op is None or op.data is None:
            return
        for landed in block_boundaries(op.offset, op.data.size_bytes):
            part = model.copy()
            part.write_part(op, landed)
            yield self._state(cut, part.everything(), natural=True, torn=op, landed=landed)

    def _power_states(self, cut: Cut, path: _Path, known: set[str]) -> Iterator[CrashState]:
        """The states that a power cut can leave at a cut reached in this order, but for those that are `known` there already."""
        if not path.model.pending:
            return
        for survivors in power_choices(path.model):
            tree = path.model.after_power_loss(survivors)
            digest = self._contents.digest_of(tree)
            if digest not in known:
                known.add(digest)
                lost = lost_changes(path.model, survivors)
                yield self._state(cut, tree, natural=path.natural, survivors=survivors, lost=lost, path=path)

    def _state(
        self,
        cut: Cut,
        tree: Tree,
        *,
        natural: bool,
        torn: Operation | None = None,
        landed: int = 0,
        survivors: Survivors | None = None,
        lost: tuple[Change, ...] = (),
        path: _Path | None = None,
    ) -> CrashState:
        done = self._done(cut)
        happened = self.happened(cut)
        owed = [name for index in done if (name := _reported(self.trace.events[index]))]
        return CrashState(
            faults=(*self._sentences(cut, survivors, torn, landed), *self._ordering(path)),
            cut=cut,
            done=done,
            last=happened[-1] if happened else (self._before[-1] if self._before else None),
            torn=torn,
            landed=landed,
            survivors=survivors,
            lost=lost,
            natural=natural,
            tree=tree,
            digest=self._contents.digest_of(tree),
            owed=tuple(owed),
        )

    def _done(self, cut: Cut) -> tuple[int, ...]:
        """The events up to a cut: its operations, and every line of a log that could have been written by then."""
        kept = {(op.rank, op.index) for op in (*self._before, *self.happened(cut))}
        counts = dict.fromkeys(self.ranks, 0)
        done = []
        for index, event in enumerate(self.trace.events):
            if isinstance(event, Operation):
                if (event.rank, event.index) in kept:
                    done.append(index)
            else:
                number = counts.get(event.rank, 0)
                counts[event.rank] = number + 1
                if self._marks.get((event.rank, number), frozenset()) <= kept:
                    done.append(index)
        return tuple(done)

    # -- sentences ----------------------------------------------------------------------------------------------------

    def _next_in_order(self, cut: Cut) -> Operation | None:
        """The operation that the undisturbed run would do next, of those that can come now."""
        following = [op for place in range(len(self.ranks)) if (op := self.following(cut, place)) is not None]
        possible = [op for op in following if self._possible(cut, op)]
        return min(possible, key=lambda op: op.n, default=None)

    def _sentences(self, cut: Cut, survivors: Survivors | None, torn: Operation | None, landed: int) -> tuple[str, ...]:
        op = torn or self._next_in_order(cut) or self._after_window()
        if op is None:
            return self._at_the_end(survivors)
        point = self.point(op)
        if torn is not None:
            point = OperationPoint(point.operation, point.pattern, "during", Position(byte=landed), point.occurrence)
        alone = len(self.ranks) == 1
        following = [self.following(cut, place) for place in range(len(self.ranks))]
        others = [one for one in following if one is not None and one.rank != op.rank and self._possible(cut, one)]
        holds = [self._hold(other, op) for other in others]
        killing = self._killing(point, op.rank, survivors, patient=not alone)
        return (killing, *map(str, holds))

    def _ordering(self, path: _Path | None) -> tuple[str, ...]:
        """Holds that bring an order about where it is not the undisturbed run's: around syncs, which are what it matters for."""
        if path is None or path.natural:
            return ()
        holds: dict[tuple[int, int], HoldFault] = {}
        for place, sync in enumerate(path.operations):
            if sync.operation != "fsync":
                continue
            for rank in self.ranks:
                before = [op for op in path.operations[:place] if op.rank == rank and op.n > sync.n and _names_in(op, sync.path)]
                after = [op for op in path.operations[place:] if op.rank == rank and op.n < sync.n and _names_in(op, sync.path)]
                if rank != sync.rank and before:
                    holds[sync.rank, sync.index] = self._hold(sync, before[-1])
                if rank != sync.rank and after:
                    holds[rank, after[0].index] = self._hold(after[0], sync)
        return tuple(map(str, holds.values()))

    def _hold(self, held: Operation, until: Operation) -> HoldFault:
        point = self.point(until)
        happened = OperationPoint(point.operation, point.pattern, "after", None, point.occurrence)
        return HoldFault(Who((held.rank,)), self.point(held), until.rank, happened, self.attempt)

    def _killing(self, point: OperationPoint | StepPoint, rank: int | None, survivors: Survivors | None, *, patient: bool) -> str:
        if survivors is None:
            return str(SignalFault("sigkill", _ALL, point, rank, self.attempt, patient))
        return str(PowerCutFault(survivors, "", point, rank, self.attempt, patient=patient))

    def _after_window(self) -> Operation | None:
        later = [event for event in self.trace.events[self.window.stop :] if isinstance(event, Operation)]
        return later[0] if later else None

    def _at_the_end(self, survivors: Survivors | None) -> tuple[str, ...]:
        last = self.operations[-1]
        point = self.point(last)
        after = OperationPoint(point.operation, point.pattern, "after", None, point.occurrence)
        return (self._killing(after, last.rank, survivors, patient=len(self.ranks) > 1),)

    def _pattern(self, op: Operation) -> str:
        if op.path.startswith("/") and op.to is not None:  # moved in from elsewhere
            return op.to
        return stable_pattern(op.path, *self._twins.get((op.rank, op.index), ()))

    def point(self, op: Operation) -> OperationPoint:
        """Right before an operation, in words that are valid in every run."""
        pattern = self._pattern(op)
        return OperationPoint(op.operation, pattern, "before", None, self.trace.occurrence(op, pattern))


def _names_in(op: Operation, directory: str) -> bool:
    """Whether an operation may change a name in a directory."""
    changes = op.operation not in ("write", "fsync", "truncate", "chmod")
    return changes and any((name.rpartition("/")[0] or ".") == directory for name in op.names)


def _reported(event: Event) -> str:
    """The checkpoint that rank 0 reports as saved with this line, "" if it does not."""
    done = isinstance(event, Mark) and (event.rank, event.what, event.moment) == (0, "save", "end")
    return str(event.checkpoint) if done and isinstance(event, Mark) else ""


def _needs_of_marks(orders: Sequence[Trace]) -> dict[tuple[int, int], frozenset[tuple[int, int]]]:
    """Per line of a log (rank, number): the operations that came before it in every run, so that it needs them."""
    needs: dict[tuple[int, int], frozenset[tuple[int, int]]] = {}
    for trace in orders:
        counts: dict[int, int] = {}
        before: set[tuple[int, int]] = set()
        for event in trace.events:
            if isinstance(event, Operation):
                before.add((event.rank, event.index))
                continue
            key = (event.rank, counts.get(event.rank, 0))
            counts[event.rank] = key[1] + 1
            needs[key] = needs[key] & before if key in needs else frozenset(before)
    return needs


def block_boundaries(offset: int, size_bytes: int) -> list[int]:
    """At most three places within a write at which a block of the file ends: bytes of the write that have landed by then."""
    first = BLOCK_BYTES - offset % BLOCK_BYTES
    inside = list(range(first, size_bytes, BLOCK_BYTES))
    return sorted({inside[0], inside[len(inside) // 2], inside[-1]}) if inside else []


def power_choices(model: Model) -> Iterator[Survivors]:
    """What a power cut may leave at this moment; the plainest losses first."""
    num_names = len(model.pending_names)
    files = model.paths_with_pending_data()
    yield Survivors(0, 0, "no")  # nothing that is unsynced survives
    for data in ("no", "empty", "zeroed"):
        yield Survivors(-1, 0, data)  # names survive, data does not
    for data in ("guarded", "rewritten"):  # as ext4 and XFS keep it
        yield Survivors(-1, 0, data)
        yield Survivors(0, 0, data)
    for position in (Position(byte=BLOCK_BYTES), Position(percent=50.0), Position(byte=-1)):
        yield Survivors(-1, 0, "torn", position)
    yield Survivors(0, 0, "all")  # unsynced names are lost
    for count in range(1, num_names):
        for data in ("all", "no", "guarded", "rewritten"):
            yield Survivors(count, 0, data)
    for number in range(1, num_names):
        yield Survivors(-1, number, "all")
    if len(files) > 1:
        for path in files:
            for data in ("no", "zeroed"):
                yield Survivors(-1, 0, data, None, path)


def survivors_found(model: Model, root: Path, data: Path) -> Survivors | None:
    """What a real power cut has left, in the words of the model: the first of its choices that is this directory, byte for byte.

    Args:
        model: the directory at the moment of the cut.
        root: the directory that was found after it.
        data: the data file of the trace.

    Returns:
        None where no choice is.
    """
    if not difference(model.everything(), root, data):
        return Survivors()
    return next((s for s in power_choices(model) if not difference(model.after_power_loss(s), root, data)), None)


def lost_changes(model: Model, survivors: Survivors) -> tuple[Change, ...]:
    """The unsynced changes that a choice takes, in whole or in part."""
    names = model.pending_names
    kept = names if survivors.first_names < 0 else names[: survivors.first_names]
    gone = {change.number for change in names} - {c.number for n, c in enumerate(kept) if n != survivors.lost_name - 1}
    spoiled = [c for c in model.pending if c.sort == "data" and model.suffers(c, survivors)]
    return tuple(sorted([c for c in names if c.number in gone] + spoiled, key=lambda change: change.number))
