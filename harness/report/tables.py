"""Tables for a terminal: what this machine can do, what was measured. Plain lines where the output is no terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.doctor import Result

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


def _print(table: Table) -> None:
    # A pipe has no width of its own; nothing is to be folded there.
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)
    console.print(table)
