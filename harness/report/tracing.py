"""What `harness trace` found, as text and as JSON. Pure."""

from __future__ import annotations

from typing import Any

from harness import __version__
from harness.report.exploration import num
from harness.trace import Operation
from harness.tracing import SaveFacts, TracedJob

SCHEMA = "harness.trace/1"


def trace_text(job: TracedJob) -> str:
    """Save by save: the operations, the crash points, what was at risk, what luck orders."""
    lines = []
    for number, save in enumerate(job.saves, 1):
        lines += [f"save {number}: {save.window.name}, {num(len(save.operations), 'operation')}", *_table(save)]
        lines.append(f"  crash points: {save.num_points}" + ("" if job.learnt else " in the one order that was seen"))
        when = "when it was reported as saved" if save.window.returned is not None else "after its last operation"
        at_risk = "; ".join(save.at_risk)
        lines.append(f"  not durable {when}: {at_risk or 'nothing'}")
        if job.learnt:
            lines.append(f"  ordered by luck: {num(save.num_by_luck, 'pair')} of operations" + _examples(save))
    kept = f"{job.written_bytes} bytes written, {job.data_bytes} kept (each content once)"
    lines.append(f"{num(len(job.saves), 'save')}; {kept}; recorded in {job.recordings.recorded.folder}")
    if not any(save.window.returned is not None for save in job.saves):
        lines.append("the job writes no event log, so its saves are told apart by the names of their files")
    if job.inconclusive:
        lines.append(f"INCONCLUSIVE: {job.inconclusive}")
    return "\n".join(lines)


def _examples(save: SaveFacts) -> str:
    return f", such as {save.by_luck[-1]}" if save.by_luck else ""


def _table(save: SaveFacts) -> list[str]:
    width = max((len(op.operation) for op in save.operations), default=0)
    return [f"  {op.n:5d}  rank {op.rank}  {op.operation:{width}s}  {_what(op)}{_fate(save, op)}" for op in save.operations]


def _what(op: Operation) -> str:
    text = op.path + (f" -> {op.to}" if op.to else "")
    if op.operation == "write":
        text += f"  {op.data.size_bytes if op.data else 0} bytes at {op.offset}"
    elif op.operation == "truncate":
        text += f"  to {op.offset} bytes"
    return text + (f"  failed: {op.error}" if op.error else "")


def _fate(save: SaveFacts, op: Operation) -> str:
    return "  not durable" if op.n in save.lost else ""


def trace_json(job: TracedJob) -> dict[str, Any]:
    """The document of `--json` (`harness.trace/1`)."""
    return {
        "schema": SCHEMA,
        "harness": __version__,
        "inconclusive": job.inconclusive or None,
        "written_bytes": job.written_bytes,
        "kept_bytes": job.data_bytes,
        "folder": str(job.recordings.recorded.folder),
        "saves": [_save_json(save) for save in job.saves],
    }


def _save_json(save: SaveFacts) -> dict[str, Any]:
    return {
        "name": save.window.name,
        "reported": save.window.returned is not None,
        "crash_points": save.num_points,
        "not_durable": list(save.at_risk),
        "by_luck": save.num_by_luck,
        "operations": [_operation_json(save, op) for op in save.operations],
    }


def _operation_json(save: SaveFacts, op: Operation) -> dict[str, Any]:
    return {
        "n": op.n,
        "rank": op.rank,
        "operation": op.operation,
        "call": op.call,
        "path": op.path,
        "to": op.to,
        "offset": op.offset,
        "size_bytes": op.size_bytes,
        "error": op.error or None,
        "durable": op.n not in save.lost,
        "sha256": op.data.sha256 if op.data else None,
    }
