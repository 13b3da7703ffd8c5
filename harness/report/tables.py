"""Tables for a terminal: what this machine can do, what was measured, how often to save. Plain where it is no terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.doctor import Result
    from harness.interval import Report, Row

# name → (unit, what it is); the order is the order of the table.
_FIGURES = {
    "cases_per_min_warm": ("1/min", "crash-and-resume cases, 2 ranks, baseline cached, warm"),
    "cases_per_min_cold": ("1/min", "the same case through torchrun"),
    "warm_over_cold": ("x", "warm is so many times faster"),
    "plain_write_us": ("µs", "one 100-byte write"),
    "gate_write_us": ("µs", "the same through the gate, recorded"),
    "gate_over_plain": ("x", "gate over plain"),
    "strace_write_us": ("µs", "the same under strace -f --seccomp-bpf"),
    "strace_over_gate": ("x", "strace over gate"),
    "states": ("", "crash states of one sharded save, 2 ranks: all of them, power cuts too"),
    "states_distinct": ("", "distinct ones, each given to a real resume"),
    "states_s": ("s", "for all of them"),
    "states_per_min": ("1/min", "distinct states"),
    "rerun_s": ("s", "the same crash by kill and rerun through torchrun"),
    "states_over_rerun": ("x", "a state is so many times cheaper"),
    "plain_gb_s": ("s", "1 GB by write"),
    "trace_gb_s": ("s", "the same, traced with its data"),
    "unwatched_ms_per_step": ("ms", "a step of a small trainer (33,000 parameters), nobody watching"),
    "probe_ms_per_step": ("ms", "what the probe adds to it, in a restart"),
    "probe_golden_ms_per_step": ("ms", "the same in an uninterrupted run, with a digest of every state"),
    "probe_growth": ("x", "the second half of a restart's steps over the first"),
    "save_state_mb": ("MB", "state of the model whose saves are timed"),
    "save_sharded_s": ("s", "one save, format sharded, one process"),
    "save_plain_s": ("s", "the same bytes by write and fsync"),
    "sharded_over_plain_write": ("x", "sharded over plain"),
    "async_blocked_s": ("s", "how long dcp-async blocks training"),
    "async_block_over_sync": ("x", "that over the time of dcp"),
    "rank_extra_memory_mb": ("MB", "memory of a warm rank beyond the shared pages"),
}


def doctor_table(results: Sequence[Result]) -> None:
    """Prints the checks of `harness doctor`."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "ability", "for", "seen"):
        table.add_column(heading, overflow="fold")
    for result in results:
        mark = "ok" if result.works else ("MISSING" if result.check.required else "missing")
        seen = result.detail if result.works else f"{result.detail}; lost without it: {result.check.lost}"
        table.add_row(mark, result.check.name, result.check.purpose, seen)
    _print(table)


def kinds_table(figures: dict[str, Any]) -> None:
    """Prints, per kind of the reported defects, what was planted, found and named, and the false alarms; then all together."""
    table = Table(box=None, pad_edge=False)
    for heading in ("kind", "named", "detected", "planted", "false alarms", "healthy"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for kind, counts in [*figures["by_kind"].items(), ("all", figures["kinds"])]:
        table.add_row(kind, *(str(counts[name]) for name in ("named", "detected", "planted", "false_alarms", "healthy")))
    _print(table)


def bench_table(figures: dict[str, Any]) -> None:
    """Prints the figures of `harness bench`."""
    table = Table(box=None, pad_edge=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("")
    for name, (unit, meaning) in _FIGURES.items():
        value = figures.get(name)
        table.add_row(name, "not measured" if value is None else f"{value:.4g} {unit}", meaning)
    _print(table)
    Console().print("machine: " + ", ".join(f"{key} {value}" for key, value in figures["machine"].items()), soft_wrap=True)


def interval_table(report: Report) -> None:
    """Prints what `harness interval` found: the job that was asked about, then jobs of other sizes."""
    asked = report.job
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_row("C", duration(report.save_s), f"one save: {report.save_source}")
    facts.add_row(
        "M", duration(asked.mtbf_s), f"between failures: {report.machine_mtbf_h:g} h of one machine / {asked.machines:,}"
    )
    facts.add_row("T*", duration(asked.interval_s), "of work between two saves: sqrt(2CM)")
    facts.add_row("waste", _share(asked.predicted), "by the formula, C/T + T/(2M), at T*")
    facts.add_row("", _share(asked.simulated), f"simulated, +- {_share(asked.standard_error)}; exactly {_share(asked.exact)}")
    _print(facts)
    Console().print()
    table = Table(box=None, pad_edge=False)
    for heading in ("machines", "M", "T*", "predicted", "simulated", "exact"):
        table.add_column(heading, justify="right")
    table.add_column("the formula's waste")
    for heading in ("T by Daly", "exact there"):
        table.add_column(heading, justify="right")
    for row in report.rows:
        times = (duration(row.mtbf_s), duration(row.interval_s))
        shares = (_share(row.predicted), _share(row.simulated), _share(row.exact))
        table.add_row(f"{row.machines:,}", *times, *shares, _standing(row), duration(row.daly_interval_s), _share(row.daly_waste))
    _print(table)
    Console().print(
        f"The formula holds within 2 % of the waste where C < M/{1 / report.limit:.0f}. Every row has the same C: what a save of"
        " the whole job costs has to be measured there. Starting again after a failure, R, adds about R/M; T* stays.",
        soft_wrap=True,
        highlight=False,
    )


def duration(seconds: float) -> str:
    """A time in the unit that people would use for it."""
    for unit, size, above in (("d", 86_400, 2 * 86_400), ("h", 3_600, 2 * 3_600), ("min", 60, 120), ("s", 1, 1)):
        if seconds >= above:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e3:.3g} ms"


def _standing(row: Row) -> str:
    if row.holds:
        return "formula holds"
    if row.predicted >= 1:
        return "does not hold: no share is above 100 %"
    return f"does not hold: {100 * abs(row.error):.2g} % too {'high' if row.error > 0 else 'low'}"


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _print(table: Table) -> None:
    # A pipe has no width of its own; nothing is to be folded there.
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)
    console.print(table)
