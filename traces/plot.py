# SPDX-License-Identifier: Apache-2.0
"""`trace plot`: the pictures of series (see `series`), by matplotlib."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import FilterError, PlotError
from .series import JobSeries, Series
from .timeline import Ints

FORMATS = ("png", "svg")
MOST_LINES = 10
"""In one panel; more are drawn as a map of colours, a row each."""
SLOWEST = 5
"""Round trips that have a name, where there are more than MOST_LINES."""
MOST_LABELS = 40
"""Of rows on an axis."""
SIZE = (10.0, 4.2)
"""Inches of one picture."""
_MANY = "viridis"
Panel = Callable[[Any, Series, JobSeries], None]


def check(out: Path) -> None:
    """Raise PlotError unless pictures can be drawn, and `out` is a folder or a picture's name."""
    if find_spec("matplotlib") is None:
        raise PlotError(str(out), "pictures need matplotlib: .venv/bin/pip install -e '.[plots]'")
    if _is_file(out) and out.suffix.lower().removeprefix(".") not in FORMATS:
        raise PlotError(str(out), f"a picture's name ends in {' or '.join('.' + each for each in FORMATS)}")


def draw(series: Series, out: Path, format: str) -> list[Path]:
    """Write pictures as `check` allows; return the files.

    A name with an ending is one picture of all panels of one job; FilterError where there are more jobs. A
    folder gets links.FORMAT, and NAME-PANEL.FORMAT of each job.
    """
    if _is_file(out):
        _all(series, out)
        return [out]
    out.mkdir(parents=True, exist_ok=True)
    files = [out / f"links.{format}"]
    _one(files[0], "all packets of the captures", lambda axes: links(axes, series))
    for job in series.jobs:
        same = sum(other.name == job.name for other in series.jobs) > 1
        named = f"{job.name}-{job.job}" if job.name and same else job.name or f"job{job.job}"
        for name, panel in PANELS.items():
            # Names come from a file: no part of them leads elsewhere.
            files.append(out / f"{re.sub('[^A-Za-z0-9_-]', '_', named)}-{name}.{format}")
            _one(files[-1], job.title, _bound(panel, series, job))
    return files


def _is_file(out: Path) -> bool:
    return bool(out.suffix) and not out.is_dir()


def _all(series: Series, out: Path) -> None:
    if len(series.jobs) > 1:
        names = ", ".join(job.name or str(job.job) for job in series.jobs)
        raise FilterError(
            f"--out {out}", f"one file shows one job: choose with --job ({names}), or name a folder"
        )
    from matplotlib.figure import Figure

    panels: list[Callable[[Any], None]] = [lambda axes: links(axes, series)]
    for job in series.jobs:
        of_job = [_bound(panel, series, job) for panel in PANELS.values()]
        panels = [*of_job[:-1], *panels, of_job[-1]]
    figure = Figure(figsize=(17, 14) if series.jobs else SIZE, dpi=100, layout="constrained")
    figure.suptitle(series.jobs[0].title if series.jobs else "", fontsize=14)
    if series.jobs:
        places = list(figure.subplots(3, 2, gridspec_kw={"height_ratios": (1, 1, 1.6)}).flat)
    else:
        places = [figure.add_subplot()]
    for place, panel in zip(places, panels, strict=True):
        panel(place)
    figure.savefig(out)


def _one(path: Path, title: str, panel: Callable[[Any], None]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=120, layout="constrained")
    axes = figure.add_subplot()
    panel(axes)
    if axes.get_gid() == "tall":
        figure.set_size_inches(SIZE[0], 8.0)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path)


# ---- panels
def occupancy(axes: Any, series: Series, job: JobSeries) -> None:
    """Chunks under way at each switch: mean and most in each bin."""
    _title(axes, "Slots in use")
    shown = {name: levels for name, levels in job.occupancy.items() if levels[1].any()}
    if not shown:
        _nothing(axes, job.notes)
        return
    edges, _ = _time(axes, series.edges)
    for number, (name, (mean, most)) in enumerate(shown.items()):
        colour = _colour(number, len(shown))
        label = f"{name}, mean" if number < MOST_LINES else None
        axes.stairs(mean, edges, color=colour, linewidth=1.4, label=label, baseline=None)
        if len(shown) <= 3:
            axes.stairs(most, edges, color=colour, alpha=0.18, fill=True, label=f"{name}, most")
    window = max(job.windows)
    if window:
        axes.axhline(
            window,
            color="black",
            linewidth=0.9,
            linestyle="--",
            label=f"{'W' if len(set(job.windows)) == 1 else 'largest W'} = {window}",
        )
    axes.set_ylim(0, 1.08 * max(window, *(int(most.max()) for _, most in shown.values())))
    axes.set_ylabel("chunks under way (a slot each)")
    _legend(axes)


def goodput(axes: Any, series: Series, job: JobSeries) -> None:
    """Values that came back to each worker, a second."""
    _title(axes, "Goodput of each worker (values in results, each chunk once)")
    _over_time(
        axes, series.edges, {name: rate / 1e6 for name, rate in job.goodput.items()}, "Mbit/s", job.notes
    )


def links(axes: Any, series: Series) -> None:
    """What was on each link, each way."""
    _title(axes, "Link utilisation (Ethernet frames, all traffic)")
    rates = {name: rate / 1e6 for name, rate in series.links.items()}
    pairs: dict[frozenset[str], int] = {}
    styles = {}
    for name in rates:
        pair = frozenset(name.split(" → "))
        style = "--" if pair in pairs else "-"
        styles[name] = pairs.setdefault(pair, len(pairs)), style
    _over_time(axes, series.edges, rates, "Mbit/s", series.notes, styles)


def retransmissions(axes: Any, series: Series, job: JobSeries) -> None:
    """Contributions that were sent again."""
    total = sum(int(counts.sum()) for counts in job.again.values())
    sent = sum(job.sent.values())
    share = f" of {sent} ({total / sent:.1%})" if sent else ""
    _title(axes, f"Retransmitted contributions: {total}{share}")
    if not total:
        _nothing(axes, [] if job.again else job.notes, "none")
        return
    shown = {name: counts for name, counts in job.again.items() if counts.any()}
    if len(shown) > MOST_LINES:
        _over_time(axes, series.edges, shown, "packets", job.notes)
        return
    edges, unit = _time(axes, series.edges)
    bottom = np.zeros(len(edges) - 1)
    for number, (name, counts) in enumerate(shown.items()):
        label = f"{name}: {counts.sum()}"
        axes.bar(
            edges[:-1],
            counts,
            np.diff(edges),
            bottom,
            align="edge",
            color=_colour(number, len(shown)),
            label=label,
        )
        bottom = bottom + counts
    axes.set_ylabel(f"packets in {_length(edges[1] - edges[0], unit)}")
    axes.yaxis.get_major_locator().set_params(integer=True)
    _legend(axes)


def rtt(axes: Any, series: Series, job: JobSeries) -> None:
    """How long results took, as the share of chunks that had theirs."""
    _title(axes, "Round trips: a contribution's last sending to its result")
    shown = {name: histogram for name, histogram in job.rtt.items() if histogram.total}
    if not shown:
        _nothing(axes, job.notes)
        return
    low, high = np.inf, 0.0
    slowest = sorted(shown, key=lambda name: -shown[name].percentile(0.99))
    named = list(shown) if len(shown) <= MOST_LINES else slowest[:SLOWEST]
    for name, histogram in shown.items():
        used = np.flatnonzero(histogram.counts)
        edges = histogram.edges[used[0] : used[-1] + 2] / 1e6
        low, high = min(low, edges[0]), max(high, edges[-1])
        counts = histogram.counts[used[0] : used[-1] + 1]
        shares = np.concatenate([[0.0], np.cumsum(counts)]) / histogram.total
        if name not in named:
            axes.plot(edges, 100 * shares, color="#bbbbbb", linewidth=0.8, zorder=1)
            continue
        median, most = (histogram.percentile(share) / 1e6 for share in (0.5, 0.99))
        label = f"{name}: median {_short(median)} ms,\n99 % within {_short(most)} ms"
        axes.plot(edges, 100 * shares, color=_colour(named.index(name), len(named)), label=label)
    if len(named) < len(shown):
        axes.plot([], [], color="#bbbbbb", label=f"the other {len(shown) - len(named)}, no more at 99 %")
    axes.set_xscale("log")
    axes.set_xlim(low / 1.05, high * 1.05)
    axes.xaxis.set_major_formatter("{x:g}")
    # Between powers of ten there are names only where few powers are in sight.
    axes.xaxis.set_minor_formatter("{x:g}" if high < 30 * low else "")
    axes.tick_params(which="minor", labelsize=7)
    axes.set_xlabel("round trip, ms (logarithmic)")
    axes.set_ylabel("chunks within, %")
    axes.set_ylim(0, 103)
    axes.grid(alpha=0.3, which="both")
    _legend(axes)


def waterfall(axes: Any, series: Series, job: JobSeries) -> None:
    """Each chunk's life: a bar a worker, from its first contribution to its result."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    chunks = list(job.waterfall)
    _title(axes, "Waterfall of chunks" + (f" {chunks[0]} to {chunks[-1]}" if chunks else ""))
    workers = list(dict.fromkeys(name for row in job.waterfall.values() for name in row))
    if not workers:
        _nothing(axes, job.notes)
        return
    axes.set_gid("tall")
    scale, unit = _unit(_span(job))
    begin = min(sent.sends[0] for row in job.waterfall.values() for sent in row.values() if sent.sends)
    end = max(max([*sent.sends, sent.result or 0]) for row in job.waterfall.values() for sent in row.values())
    height = 0.86 / len(workers)
    seen: list[tuple[float, float]] = []
    for line, chunk in enumerate(chunks):
        row = job.waterfall[chunk]
        complete = max((sent.sends[0] for sent in row.values() if sent.sends), default=begin)
        for name, sent in row.items():
            if not sent.sends:
                continue
            number = workers.index(name)
            y = line - 0.43 + height * number
            colour, first = _colour(number, len(workers)), sent.sends[0]
            last = end if sent.result is None else sent.result
            waited = min(max(complete, first), last)
            box = {"align": "edge", "height": 0.9 * height, "color": colour, "linewidth": 0.7}
            if sent.result is None:
                axes.barh(
                    y, (last - first) / scale, left=(first - begin) / scale, **box | {"color": "#dddddd"}
                )
            else:
                axes.barh(y, (waited - first) / scale, left=(first - begin) / scale, alpha=0.35, **box)
                axes.barh(y, (last - waited) / scale, left=(waited - begin) / scale, **box)
            seen += [((again - begin) / scale, y + 0.45 * height) for again in sent.sends[1:]]
    if seen:
        axes.plot(
            *zip(*seen, strict=True),
            "|",
            color="black",
            markersize=max(3, min(8, 240 * height / len(chunks))),
        )
    axes.set_ylim(len(chunks) - 0.4, -0.6)
    axes.set_xlim(-0.01 * (end - begin) / scale, 1.01 * (end - begin) / scale)
    every = -(-len(chunks) // MOST_LABELS)
    axes.set_yticks(range(0, len(chunks), every), [str(chunk) for chunk in chunks[::every]], fontsize=7)
    axes.set_ylabel("chunk")
    axes.set_xlabel(f"time from chunk {chunks[0]}'s first contribution on, {unit}")
    axes.grid(alpha=0.3, axis="x")
    marks: list[Any] = [
        Patch(color=_colour(number, len(workers)), label=name) for number, name in enumerate(workers)
    ]
    if len(workers) > MOST_LINES:
        marks = [marks[0], marks[-1]]
        marks[0].set_label(f"{workers[0]}, at the top, to")
    marks += [
        Patch(color="grey", alpha=0.35, label="waits for other workers"),
        Patch(color="grey", label="all have contributed"),
    ]
    if any(sent.result is None for row in job.waterfall.values() for sent in row.values()):
        marks.append(Patch(color="#dddddd", label="no result captured"))
    if seen:
        marks.append(Line2D([], [], marker="|", color="black", linestyle="", label="sent again"))
    _legend(axes, marks)


PANELS: dict[str, Panel] = {
    "occupancy": occupancy,
    "goodput": goodput,
    "rtt": rtt,
    "retransmissions": retransmissions,
    "waterfall": waterfall,
}


# ---- parts
def _bound(panel: Panel, series: Series, job: JobSeries) -> Callable[[Any], None]:
    return lambda axes: panel(axes, series, job)


def _span(job: JobSeries) -> int:
    times = [
        time
        for row in job.waterfall.values()
        for sent in row.values()
        for time in [*sent.sends, *([] if sent.result is None else [sent.result])]
    ]
    return max(times) - min(times)


def _unit(span: float) -> tuple[float, str]:
    """Return ns of the unit that a span of time is told in, and its name."""
    for scale, unit in ((1e9, "s"), (1e6, "ms")):
        if span >= 2 * scale:
            return scale, unit
    return 1e3, "µs"


def _length(time: float, unit: str) -> str:
    return f"{_short(time)} {unit}"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def _time(axes: Any, edges: Ints) -> tuple[NDArray[np.float64], str]:
    """Label the axis of time; return the bins' edges in its unit."""
    scale, unit = _unit(float(edges[-1]))
    axes.set_xlabel(f"time from the first packet on, {unit}")
    axes.set_xlim(0, edges[-1] / scale)
    axes.grid(alpha=0.3)
    return edges / scale, unit


def _over_time(
    axes: Any,
    edges: Ints,
    shown: Mapping[str, NDArray[Any]],
    unit: str,
    notes: Sequence[str],
    styles: Mapping[str, tuple[int, str]] | None = None,
) -> None:
    """Draw lines, or where they are many a row of colours each; `styles` are numbers of colours, dashes."""
    styles = styles or {}
    if not any(values.any() for values in shown.values()):
        _nothing(axes, notes)
        return
    places, time_unit = _time(axes, edges)
    width = _length(places[1] - places[0], time_unit)
    of = " in" if unit == "packets" else ", mean of"
    if len(shown) > MOST_LINES:
        rows = np.stack(list(shown.values()))
        mesh = axes.pcolormesh(places, np.arange(len(shown) + 1), rows, cmap=_MANY, vmin=0)
        every = -(-len(shown) // MOST_LABELS)
        axes.set_yticks(np.arange(len(shown))[::every] + 0.5, list(shown)[::every], fontsize=7)
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.figure.colorbar(mesh, ax=axes, label=f"{unit}{of} {width}", pad=0.02)
        if len(shown) > 2 * MOST_LINES:
            axes.set_gid("tall")
        return
    for number, (name, values) in enumerate(shown.items()):
        place, style = styles.get(name, (number, "-"))
        # The first ones wider: else the last one hides what is equal.
        thick = 1.2 + 2.4 * (1 - number / max(1, len(shown) - 1)) if len(shown) > 1 else 1.5
        colour = _colour(place, len(shown))
        axes.stairs(values, places, color=colour, linewidth=thick, linestyle=style, label=name, baseline=None)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"{unit}{of} {width}")
    _legend(axes)


def _colour(number: int, many: int) -> Any:
    from matplotlib import colormaps

    return colormaps["tab10"](number) if many <= MOST_LINES else colormaps[_MANY](number / many)


def _title(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")


def _legend(axes: Any, marks: Sequence[Any] | None = None) -> None:
    """Put the legend beside the panel: inside it would hide what is drawn."""
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "frameon": False, "fontsize": 8}
    axes.legend(**place) if marks is None else axes.legend(handles=marks, **place)


def _nothing(axes: Any, notes: Sequence[str], what: str = "cannot be shown") -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(
        0.5, 0.5, "\n".join([what, *notes]), ha="center", va="center", wrap=True, transform=axes.transAxes
    )
