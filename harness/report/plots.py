"""Curves, timelines and nights as SVG, drawn by matplotlib. The only module that imports it.

Responsible for: pictures that belong into a page: no address of anything outside, no identifier that two of them share, colours
that the page chooses (light or dark), text that stays text. Each picture is drawn twice, for a wide and for a narrow screen.
Not responsible for: what is shown (`harness.report.curves`, `harness.report.timeline`).
"""

from __future__ import annotations

import hashlib
import html
import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from harness.report.curves import Curves, Series
from harness.report.history import Night
from harness.report.timeline import NARROW, WIDE, Timeline, save_spans

# Colours that nobody else uses, each the name of a colour of the page.
_INK, _FAINT, _BASE, _BAD, _GOOD, _SPAN, _OPEN = "#010203", "#010204", "#010205", "#010206", "#010207", "#010208", "#010209"
_ATTEMPTS = ("#01020a", "#01020b", "#01020c", "#01020d")
_NAMES = {_INK: "ink", _FAINT: "faint", _BASE: "base", _BAD: "bad", _GOOD: "good", _SPAN: "span", _OPEN: "open"}
_NAMES |= {colour: f"attempt{number}" for number, colour in enumerate(_ATTEMPTS)}
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
# Name → (marker, filled, colour, size): told apart by their shape, not by colour alone.
MARKERS: dict[str, tuple[str, str, float]] = {
    "write": ("s", _ATTEMPTS[0], 4.5),
    "fsync": ("D", _GOOD, 4.5),
    "rename": (">", _ATTEMPTS[1], 5.5),
    "open": ("o", _FAINT, 3.5),
    "read": (".", _FAINT, 3.0),
    "truncate": ("_", _ATTEMPTS[2], 5.0),
    "link": ("h", _ATTEMPTS[1], 4.5),
    "symlink": ("H", _ATTEMPTS[1], 4.5),
    "unlink": ("v", _ATTEMPTS[2], 5.0),
    "mkdir": ("^", _FAINT, 4.5),
    "rmdir": ("v", _FAINT, 4.5),
    "chmod": ("+", _FAINT, 4.5),
    "batch": ("|", _INK, 7.0),
    "resume": ("P", _INK, 5.0),
    "commit": ("*", _GOOD, 9.0),
    "fault": ("X", _BAD, 8.0),
    "end": ("4", _INK, 6.0),
}
_STYLE = {
    "svg.fonttype": "none",  # text stays text, in the font of the page
    "font.family": "DejaVu Sans",  # comes with matplotlib; only measures
    "font.size": 9.5,
    "text.parse_math": False,  # a path may hold a $
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "svg.hashsalt": "resume-harness",  # the same picture is the same text
    "axes.edgecolor": _FAINT,
}
_WIDE_IN, _NARROW_IN = 9.4, 3.75
_FLOOR_BELOW = 10.0


def _svgs(draw: Callable[[Figure, bool], None], height_in: tuple[float, float], label: str) -> tuple[str, str]:
    """A picture for wide and for narrow screens."""
    found = []
    for narrow, width, height in ((False, _WIDE_IN, height_in[0]), (True, _NARROW_IN, height_in[1])):
        with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # its stubs know the names one by one
            figure = Figure(figsize=(width, height), layout="constrained")
            FigureCanvasSVG(figure)
            draw(figure, narrow)
            stream = io.StringIO()
            figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
        found.append(_inline(stream.getvalue(), label))
    return found[0], found[1]


def _inline(svg: str, label: str) -> str:
    """As a part of a page: no prologue, no metadata, no addresses, identifiers of its own, the page's colours."""
    number = hashlib.sha256(svg.encode()).hexdigest()[:10]
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    rest = re.sub(r'\bid="', f'id="p{number}-', rest)
    rest = rest.replace('xlink:href="#', f'href="#p{number}-').replace("url(#", f"url(#p{number}-")
    for colour, name in _NAMES.items():
        rest = rest.replace(colour, f"var(--{name})")
    rest = re.sub(r"(font: [0-9.]+px )'[^']*'(?:, [^;\"]*)?", r"\1var(--font)", rest)
    safe = html.escape(label)
    return f'<svg {box.group()} role="img" aria-label="{safe}">{rest}'.strip()


# --- losses


def loss_svgs(curves: Curves) -> tuple[str, str]:
    """Losses above, differences on a log scale below, faults and resumes across both."""

    def draw(figure: Figure, narrow: bool) -> None:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        for series in sorted(curves.losses, key=lambda one: one.attempt):
            _loss_line(top, series)
        _difference_lines(bottom, curves)
        for place in curves.places:
            for axes in (top, bottom):
                style, colour = (":", _INK) if place.resume else ("--", _BAD)
                axes.axvline(place.batch, linestyle=style, color=colour, linewidth=1.1)
        for batch, text in _numbers_at(curves, narrow):
            where = top.get_xaxis_transform()
            top.text(batch, 1.0, text, transform=where, color=_BAD, ha="center", va="bottom", weight="bold")
        top.set_ylabel("loss")
        bottom.set_ylabel("|difference|")
        bottom.set_xlabel("batch")
        bottom.xaxis.set_major_locator(MaxNLocator(6 if narrow else 12, integer=True))
        for axes in (top, bottom):
            axes.grid(visible=True, color=_FAINT, alpha=0.25, linewidth=0.6)

    return _svgs(draw, (4.6, 4.4), "losses of the uninterrupted and the resumed run, and their difference on a log scale")


def _numbers_at(curves: Curves, narrow: bool) -> list[tuple[float, str]]:
    """The numbers of the faults above their lines; those that would stand on each other share a place."""
    batches = [batch for one in curves.losses for batch, _ in one.points]
    near = (max(batches) - min(batches)) / (16 if narrow else 40)
    found: list[tuple[float, list[int]]] = []
    for number, place in sorted(enumerate(curves.places, 1), key=lambda pair: pair[1].batch):
        if place.resume:
            continue
        if found and place.batch - found[-1][0] <= near:
            found[-1][1].append(number)
        else:
            found.append((place.batch, [number]))
    return [(batch, ",".join(map(str, sorted(numbers)))) for batch, numbers in found]


def _loss_line(axes: Axes, series: Series) -> None:
    batches, losses = [batch for batch, _ in series.points], [value for _, value in series.points]
    if series.attempt < 0:
        axes.plot(batches, losses, color=_BASE, linewidth=5, alpha=0.45, solid_capstyle="round")
        return
    marker = "o" if len(batches) <= 60 else None
    axes.plot(
        batches,
        losses,
        color=attempt_colour(series.attempt),
        linestyle=_DASHES[series.rank % len(_DASHES)],
        linewidth=1.3,
        marker=marker,
        markersize=2.6,
    )


def attempt_colour(attempt: int) -> str:
    """The colour of an attempt; after four they begin again."""
    return _ATTEMPTS[attempt % len(_ATTEMPTS)]


def _difference_lines(axes: Axes, curves: Curves) -> None:
    """Equal is no number on a log scale, and no number has no place: each has a line of its own, named at its side."""
    values = [v for one in curves.differences for _, v in one.points if v > 0 and math.isfinite(v)]
    tolerance = curves.tolerance or 1e-12
    low, high = min([*values, tolerance]), max([*values, tolerance])
    floor, ceiling = low / _FLOOR_BELOW, high * _FLOOR_BELOW
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))  # no mathtext: it would need fonts of its own
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(floor / 3, ceiling * 3)
    axes.axhline(tolerance, color=_BAD, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate("tolerance", (1.0, tolerance), xycoords=axes.get_yaxis_transform(), color=_BAD, ha="right", va="bottom", size=8)
    for one in curves.differences:
        colour = attempt_colour(one.attempt)
        batches = [batch for batch, _ in one.points]
        shown = [value if value > 0 and math.isfinite(value) else math.nan for _, value in one.points]
        axes.plot(batches, shown, color=colour, linestyle=_DASHES[max(0, one.rank) % len(_DASHES)], marker="o", markersize=3)
        equal = [batch for batch, value in one.points if value == 0]
        nothing = [batch for batch, value in one.points if not math.isfinite(value)]
        axes.plot(equal, [floor] * len(equal), color=colour, marker="o", markersize=3.2, markerfacecolor="none", linestyle="")
        axes.plot(nothing, [ceiling] * len(nothing), color=_BAD, marker="x", markersize=6, linestyle="")
    whole = axes.get_yaxis_transform()
    if any(value == 0 for one in curves.differences for _, value in one.points):
        axes.annotate("equal", (0.0, floor), xycoords=whole, textcoords="offset points", xytext=(3, 3), size=8, color=_INK)
    if any(not math.isfinite(value) for one in curves.differences for _, value in one.points):
        axes.annotate(
            "no number", (0.0, ceiling), xycoords=whole, textcoords="offset points", xytext=(3, -10), size=8, color=_BAD
        )


# --- what the ranks did


def timeline_svgs(line: Timeline) -> tuple[str, str]:
    """A row per rank, one place per event, in the order in which they happened."""

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        window = line.window(NARROW if narrow else WIDE)
        rows = {rank: -number for number, rank in enumerate((*line.ranks, -1))}
        for rank, start, stop, _ in save_spans(window.events):
            if rank in rows:
                axes.barh(rows[rank], stop - start + 0.9, left=start - 0.45, height=0.62, color=_SPAN, alpha=0.28, linewidth=0)
        present: dict[str, tuple[list[int], list[float]]] = {}
        for place, event in enumerate(window.events):
            name = event.what if event.what in MARKERS else ""
            if name:
                spot = present.setdefault(name, ([], []))
                spot[0].append(place)
                spot[1].append(rows.get(event.rank, rows[-1]) + (0.36 if name == "commit" else -0.36 if name == "batch" else 0.0))
            if event.bad and name == "fault":
                axes.axvline(place, color=_BAD, linewidth=1, linestyle="--", alpha=0.8)
        for name, (xs, ys) in present.items():
            marker, colour, size = MARKERS[name]
            label = "rank ends" if name == "end" else name
            axes.plot(xs, ys, marker=marker, color=colour, markersize=size, linestyle="", label=label, clip_on=False)
        shown = [rank for rank in rows if rank >= 0 or any(e.rank not in line.ranks for e in window.events if e.what in MARKERS)]
        axes.set_yticks([rows[rank] for rank in shown], [f"rank {rank}" if rank >= 0 else "job" for rank in shown])
        axes.set_ylim(min(rows[rank] for rank in shown) - 0.6, 0.6)
        axes.set_xlim(-1, max(1, len(window.events)))
        _second_ticks(axes, [event.time_s for event in window.events], 4 if narrow else 9)
        axes.set_xlabel("seconds since the launch, one place per event")
        figure.legend(
            loc="outside upper left", ncols=4 if narrow else 9, frameon=False, fontsize=8, handletextpad=0.2, columnspacing=1
        )
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)

    rows_in = 0.48 * max(1, len(line.ranks))
    return _svgs(draw, (1.2 + rows_in, 1.6 + rows_in), f"file operations of all ranks in attempt {line.attempt}")


def _second_ticks(axes: Axes, times_s: Sequence[float], most: int) -> None:
    places = sorted({round(n * (len(times_s) - 1) / max(1, most - 1)) for n in range(most)}) if times_s else []
    axes.set_xticks(places, [f"{times_s[place]:.2f}" for place in places])


# --- nights


def nights_svgs(nights: Sequence[Night]) -> tuple[str, str]:
    """Cases of each night by their outcome."""

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        shown = nights[-(14 if narrow else 40) :]
        below = [0] * len(shown)
        for name, colour in (("passed", _GOOD), ("undecided", _OPEN), ("failed", _BAD)):
            heights = [getattr(night, name) for night in shown]
            axes.bar(range(len(shown)), heights, bottom=below, color=colour, label=name, width=0.7)
            below = [one + more for one, more in zip(below, heights, strict=True)]
        step = math.ceil(len(shown) / (5 if narrow else 10))
        places = range(0, len(shown), step)
        axes.set_xticks(list(places), [shown[place].began[5:10] for place in places])
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_ylabel("cases")
        figure.legend(loc="outside upper left", ncols=3, frameon=False)

    return _svgs(draw, (2.6, 2.6), "cases of each night by their outcome")
