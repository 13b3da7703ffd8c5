"""Crash states: what a checkpoint directory looks like after a crash at any point of a trace, under a persistence model.

Fault model: everything that was issued survives the death of a process. Of what no sync has covered, a power cut takes: the
content of files (back to the last sync; or only the lengths are kept; or zeros stand in its place; or a first part of it is
there), and changes of names, from the last one backwards, or any single one. A sync of a file makes its content durable, not
its name; a sync of a directory makes the names in it durable, not those above it; a rename counts for the directory that the
name is in afterwards. What was there when the trace began is durable.
What ext4 and XFS do beyond that is modelled as it was seen on them (`harness.inject.power` cuts their power): both write a file
that was emptied and written anew, ext4 also one that was renamed over another; a file that grew keeps on ext4 its new length up
to the end of its last durable block, with zeros there.
Not covered: disks that lie about a sync; blocks of one file that reach the disk in another order than they were written (but
for zeros); loss of a change of names together with the survival of some later ones (but for any single one).

Responsible for: the model. Pure. Not responsible for: making a directory of a state (`harness.tree`).
Source: fsync(2); T. S. Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014, for what file systems reorder.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.fault import Survivors, matches_path
from harness.pieces import flatten
from harness.trace import RACED, Operation, Stretch, Trace
from harness.tree import Entry, Tree

BLOCK_BYTES = 4096
_MOST_LINKS = 40
ROOT = 0


@dataclass(frozen=True)
class Change:
    """One change that a crash can take back.

    Attributes:
        number: its place among all changes.
        operation: what made it.
        sort: "name" (a directory's entry) or "data" (a file's content or length).
        node: the file or directory that it is about.
        steps: of a change of names: (directory node, name, node or None for no entry).
        offset: of a change of data: where the bytes go; the new length where `data` is None.
        data: the bytes, None for a change of length.
        holders: of a change of names: the directories whose sync makes it durable.
    """

    number: int
    operation: Operation | None
    sort: str
    node: int
    steps: tuple[tuple[int, str, int | None], ...] = ()
    offset: int = 0
    data: Stretch | None = None
    holders: tuple[int, ...] = ()


@dataclass
class _Node:
    kind: str
    mode: int
    target: str = ""
    entries: dict[str, int] = field(default_factory=dict)


class Model:
    """The checkpoint directory as a trace changes it: names, contents, and what of both is durable.

    Attributes:
        changes: every change so far, in order.
        durable: numbers of those that a sync has covered.
    """

    def __init__(self, initial: Trace) -> None:
        self.changes: list[Change] = []
        self.durable: set[int] = set()
        self._nodes: dict[int, _Node] = {ROOT: _Node("dir", 0o755)}
        self._by_inode: dict[int, int] = {}
        self._rewritten: set[int] = set()  # files that were emptied
        self._replacing: set[int] = set()  # files that were renamed over others
        for item in initial.initial:
            self._begin_with(item.path, item.kind, item.inode, item.mode, item.data, item.target)
        self.durable = {change.number for change in self.changes}

    @classmethod
    def of(cls, trace: Trace) -> Model:
        """The directory as it was when the trace began."""
        return cls(trace)

    def copy(self) -> Model:
        """An independent copy."""
        other = copy.copy(self)
        other.changes, other.durable = list(self.changes), set(self.durable)
        other._nodes = {number: copy.copy(node) for number, node in self._nodes.items()}
        for node in other._nodes.values():
            node.entries = dict(node.entries)
        other._by_inode = dict(self._by_inode)
        other._rewritten, other._replacing = set(self._rewritten), set(self._replacing)
        return other

    # -- what operations do -------------------------------------------------------------------------------------------

    def run(self, operations: Iterable[Operation]) -> None:
        """Takes operations into account, in this order.

        It may be another order than that of the trace. A change of names that failed there (another rank was first) is done if
        it is possible now, and the other way round.
        """
        for operation in operations:
            if not operation.error or operation.error == RACED.get(operation.operation):
                _ACTIONS.get(operation.operation, Model._ignore)(self, operation)

    def write_part(self, operation: Operation, size_bytes: int) -> None:
        """The first bytes of a write that was cut."""
        assert operation.data is not None
        self._write(operation, Stretch(operation.data.start, size_bytes, ""))

    def _ignore(self, operation: Operation) -> None:
        """Reads and the like change nothing."""

    def _open(self, operation: Operation) -> None:
        path = self._followed(operation.path)
        node = self._find(path)
        if operation.created or node is None:  # one that is made through a dangling link was there by its name
            node = self._new("file", operation.mode)
            self._name(operation, path, node)
        elif operation.emptied:
            self._resize(operation, node, 0)
        self._by_inode[operation.inode] = node

    def _written(self, operation: Operation) -> None:
        if operation.data is not None:
            self._write(operation, operation.data)

    def _write(self, operation: Operation, data: Stretch) -> None:
        node = self._node_of(operation)
        if node is None:
            return
        change = self._add(operation, "data", node, offset=operation.offset, data=data)
        if operation.synced:
            self.durable.add(change.number)

    def _truncated(self, operation: Operation) -> None:
        node = self._node_of(operation) if operation.call != "truncate" else self._find(self._followed(operation.path))
        if node is not None:
            self._resize(operation, node, operation.offset)

    def _synced(self, operation: Operation) -> None:
        if operation.call in ("sync", "syncfs"):
            self.durable |= {change.number for change in self.changes}
        elif operation.call != "sync_file_range":
            node = self._node_of(operation)
            self.durable |= {c.number for c in self.changes if (c.node == node if c.sort == "data" else node in c.holders)}

    def _made(self, operation: Operation) -> None:
        holder, _ = self._holder(operation.path)
        if holder is None or self._find(operation.path) is not None:
            return
        kind = "dir" if operation.operation == "mkdir" else "link"
        node = self._new(kind, operation.mode or 0o755, operation.target)
        self._by_inode[operation.inode] = node
        self._name(operation, operation.path, node)

    def _linked(self, operation: Operation) -> None:
        node = self._find(operation.path)
        if node is not None and operation.to is not None and self._find(operation.to) is None:
            self._name(operation, operation.to, node)

    def _removed(self, operation: Operation) -> None:
        holder, name = self._holder(operation.path)
        if holder is None or name not in self._nodes[holder].entries:
            return
        self._change_names(operation, self._nodes[holder].entries[name], ((holder, name, None),), (holder,))

    def _renamed(self, operation: Operation) -> None:
        assert operation.to is not None
        source, old_name = self._holder(operation.path)
        target, new_name = self._holder(operation.to)
        node = None if source is None else self._nodes[source].entries.get(old_name)
        if operation.to.startswith("/") and node is not None and source is not None:  # moved out of the directory
            self._change_names(operation, node, ((source, old_name, None),), (source,))
        elif operation.path.startswith("/") and target is not None:  # moved in; `Recorder` has said so
            node = self._new("file", operation.mode)
            self._by_inode[operation.inode] = node
            if operation.data is not None:
                self.durable.add(self._add(operation, "data", node, offset=0, data=operation.data).number)
            self._change_names(operation, node, ((target, new_name, node),), (target,))
        elif source is None or target is None or node is None:
            return
        elif operation.exchanged:
            other = self._nodes[target].entries.get(new_name)
            self._change_names(operation, node, ((source, old_name, other), (target, new_name, node)), (target,))
        elif self._nodes[target].entries.get(new_name) != node:  # two names of one file: rename(2) does nothing
            if new_name in self._nodes[target].entries:
                self._replacing.add(node)
            self._change_names(operation, node, ((source, old_name, None), (target, new_name, node)), (target,))

    def _mode_changed(self, operation: Operation) -> None:
        node = self._node_of(operation) if operation.call == "fchmod" else self._find(self._followed(operation.path))
        if node is not None:
            self._nodes[node].mode = operation.mode

    # -- states -------------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> list[Change]:
        """The changes that a power cut can take, in order."""
        return [change for change in self.changes if change.number not in self.durable]

    @property
    def pending_names(self) -> list[Change]:
        """The changes of names among them."""
        return [change for change in self.pending if change.sort == "name"]

    def paths_with_pending_data(self) -> list[str]:
        """The files whose content a power cut can take, by the name that they have now; removed ones are left out."""
        nodes = {change.node for change in self.pending if change.sort == "data"}
        return sorted(path for path, node in self._walk() if node in nodes)

    def path_of(self, node: int) -> str:
        """The name that a file has now, "" for none."""
        return next((path for path, other in self._walk() if other == node), "")

    def everything(self) -> Tree:
        """The state in which all has survived, as after the death of a process."""
        return self._state(set(range(len(self.changes))), self.changes)

    def after_power_loss(self, survivors: Survivors) -> Tree:
        """The state after a power cut."""
        pending = self.pending
        names = [change for change in pending if change.sort == "name"]
        kept = names if survivors.first_names < 0 else names[: survivors.first_names]
        lost = survivors.lost_name - 1
        names_kept = {change.number for number, change in enumerate(kept) if number != lost}
        present = {c.number for c in self.changes if c.number in self.durable or c.number in names_kept}
        of_data = [change for change in pending if change.sort == "data"]
        whole = [left for change in of_data if (left := self._surviving(change, survivors)) is not None]
        parts = [*self._torn(of_data, survivors), *self._padded(of_data, survivors)]
        replaced = {change.number: change for change in (*parts, *whole)}
        changes = [replaced.get(change.number, change) for change in self.changes]
        return self._state(present | replaced.keys(), changes)

    def _surviving(self, change: Change, survivors: Survivors) -> Change | None:
        """What is left of an unsynced change of data, but for torn and padded files."""
        if not self.suffers(change, survivors):
            return change
        if survivors.data == "zeroed":
            if change.data is None:
                return change
            return Change(**{**vars(change), "data": Stretch(-1, change.data.size_bytes, "")})
        return change if survivors.data == "empty" and change.data is None else None  # torn, padded: see below

    def _padded(self, pending: Sequence[Change], survivors: Survivors) -> list[Change]:
        """Of each file that grew, its growth up to the end of its last durable block, as zeros."""
        if survivors.data != "guarded":
            return []
        kept = []
        for node in dict.fromkeys(change.node for change in pending if self.suffers(change, survivors)):
            own = [change for change in self.changes if change.node == node and change.sort == "data"]
            durable = sum(piece.size_bytes for piece in flatten(c for c in own if c.number in self.durable))
            size = min(sum(piece.size_bytes for piece in flatten(own)), durable + -durable % BLOCK_BYTES)
            first = next(change for change in own if change.number not in self.durable)
            if size > durable:
                kept.append(Change(**{**vars(first), "data": None, "offset": size}))
        return kept

    def _torn(self, pending: Sequence[Change], survivors: Survivors) -> list[Change]:
        """Of each torn file the first changes, up to the chosen part of its unsynced bytes; the last of them is cut."""
        if survivors.data != "torn" or survivors.torn_at is None:
            return []
        kept = []
        for node in dict.fromkeys(change.node for change in pending):
            if not any(self.suffers(change, survivors) for change in pending if change.node == node):
                continue
            own = [change for change in pending if change.node == node]
            left = survivors.torn_at.of(sum(change.data.size_bytes for change in own if change.data))
            begin = next((change.offset for change in own if change.data), 0)
            left = max(0, left - (begin + left) % BLOCK_BYTES)  # blocks of the file, wherever in it the first write began
            for change in own:
                if change.data is None:
                    kept.append(change)
                elif left > 0:
                    size = min(left, change.data.size_bytes)
                    kept.append(Change(**{**vars(change), "data": Stretch(change.data.start, size, "")}))
                    left -= size
                else:
                    break
        return kept

    def suffers(self, change: Change, survivors: Survivors) -> bool:
        """Whether a change of data is one that a choice takes, in whole or in part."""
        spared: set[int] = set()
        if survivors.data in ("rewritten", "guarded"):
            spared = self._rewritten | (self._replacing if survivors.data == "guarded" else set())
        if survivors.data == "all" or change.node in spared:
            return False
        return not survivors.pattern or matches_path(survivors.pattern, self._name_for(change.node))

    def _name_for(self, node: int) -> str:
        return self.path_of(node) or next(
            (change.operation.path for change in self.changes if change.node == node and change.operation), ""
        )

    def _state(self, present: set[int], changes: Sequence[Change]) -> Tree:
        entries: dict[int, dict[str, int]] = {number: {} for number, node in self._nodes.items() if node.kind == "dir"}
        data: dict[int, list[Change]] = {}
        for change in changes:
            if change.number not in present:
                continue
            if change.sort == "data":
                data.setdefault(change.node, []).append(change)
                continue
            for holder, name, node in change.steps:
                if node is None:
                    entries[holder].pop(name, None)
                else:
                    entries[holder][name] = node
        tree: Tree = {}
        self._collect(ROOT, "", entries, data, tree, frozenset())
        return dict(sorted(tree.items()))

    def _collect(
        self,
        directory: int,
        prefix: str,
        entries: dict[int, dict[str, int]],
        data: dict[int, list[Change]],
        tree: Tree,
        above: frozenset[int],
    ) -> None:
        for name, number in entries[directory].items():
            node, path = self._nodes[number], prefix + name
            if node.kind == "dir":
                tree[path] = Entry("dir", node.mode)
                if number not in above:
                    self._collect(number, path + "/", entries, data, tree, above | {number})
            elif node.kind == "link":
                tree[path] = Entry("link", 0, target=node.target)
            else:
                tree[path] = Entry("file", node.mode, flatten(data.get(number, ())))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _begin_with(self, path: str, kind: str, inode: int, mode: int, data: Stretch | None, target: str) -> None:
        if path == ".":
            self._nodes[ROOT].mode = mode
            self._by_inode[inode] = ROOT
            return
        node = self._by_inode.get(inode) if kind == "file" else None  # a second name of one file
        if node is None:
            node = self._new(kind, mode, target)
            if data is not None:
                self._add(None, "data", node, data=data)
        self._by_inode[inode] = node
        holder, name = self._holder(path)
        if holder is not None:
            self._change_names(None, node, ((holder, name, node),), (holder,))

    def _new(self, kind: str, mode: int, target: str = "") -> int:
        number = len(self._nodes)
        self._nodes[number] = _Node(kind, mode, target)
        return number

    def _add(self, operation: Operation | None, sort: str, node: int, **fields: object) -> Change:
        change = Change(len(self.changes), operation, sort, node, **fields)  # type: ignore[arg-type]
        self.changes.append(change)
        return change

    def _name(self, operation: Operation, path: str, node: int) -> None:
        holder, name = self._holder(path)
        if holder is not None:
            self._change_names(operation, node, ((holder, name, node),), (holder,))

    def _change_names(
        self, operation: Operation | None, node: int, steps: tuple[tuple[int, str, int | None], ...], holders: tuple[int, ...]
    ) -> None:
        self._add(operation, "name", node, steps=steps, holders=holders)
        for holder, name, target in steps:
            if target is None:
                self._nodes[holder].entries.pop(name, None)
            else:
                self._nodes[holder].entries[name] = target

    def _resize(self, operation: Operation, node: int, size_bytes: int) -> None:
        self._add(operation, "data", node, offset=size_bytes)
        if size_bytes == 0:
            self._rewritten.add(node)

    def _node_of(self, operation: Operation) -> int | None:
        node = self._by_inode.get(operation.inode)
        if node is None:
            node = self._find(operation.path)
        return node

    def _holder(self, path: str) -> tuple[int | None, str]:
        """The directory that a name is in, None where it does not exist or lies outside; and the last name."""
        if path.startswith("/"):
            return None, path
        directory, _, name = path.removeprefix("./").rpartition("/")
        node = self._find(self._followed(directory or "."))
        return (node if node is not None and self._nodes[node].kind == "dir" else None), name

    def _followed(self, path: str) -> str:
        """A path with the symbolic link that it may name followed, and those behind it; links that lead outside stay."""
        for _ in range(_MOST_LINKS):
            node = self._find(path)
            if node is None or self._nodes[node].kind != "link":
                break
            path = os.path.normpath(f"{path.rpartition('/')[0] or '.'}/{self._nodes[node].target}")
        return path

    def _find(self, path: str) -> int | None:
        """What a path names, its last name not followed; None where there is nothing, or where it leads outside."""
        if path.startswith(("/", "..")):
            return None
        node = ROOT
        names = [name for name in path.split("/") if name not in ("", ".")]
        for place, name in enumerate(names):
            if self._nodes[node].kind == "link":
                behind = self._followed("/".join(names[:place]))
                found = self._find(behind)
                if found is None:
                    return None
                node = found
            if self._nodes[node].kind != "dir" or name not in self._nodes[node].entries:
                return None
            node = self._nodes[node].entries[name]
        return node

    def _walk(self, directory: int = ROOT, prefix: str = "") -> Iterable[tuple[str, int]]:
        for name, number in self._nodes[directory].entries.items():
            yield prefix + name, number
            if self._nodes[number].kind == "dir":
                yield from self._walk(number, f"{prefix}{name}/")


_ACTIONS = {
    "open": Model._open,
    "write": Model._written,
    "truncate": Model._truncated,
    "fsync": Model._synced,
    "mkdir": Model._made,
    "symlink": Model._made,
    "link": Model._linked,
    "unlink": Model._removed,
    "rmdir": Model._removed,
    "rename": Model._renamed,
    "chmod": Model._mode_changed,
}
