"""Pictures as SVG, from numbers. Each says in words what it shows, for screen readers, and has
classes instead of styles. page.js shows the values of the column under the pointer, which it reads
from the table beside the picture. Pure.

Texts get into the markup by `Markup.format` only, which escapes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from markupsafe import Markup

from msgworker.web import shown

WIDTH, HEIGHT, FOOT = 720, 148, 18
"""The width is stretched to that of the page; heights are pixels, with space for the times
below. The numbers at the left are in the padding of `svg.chart`. Texts and dots are outside of what
is stretched."""
TALL = HEIGHT - FOOT
HEAD = 6
"""What the highest value leaves free."""
STATES = ("done", "processing", "new", "failed", "dead")
"""The order in a bar of states, from the left."""
Series = Mapping[str, Sequence[float | None]]


def bars(series: Series, *, title: str, about: str, ticks: Sequence[datetime] = ()) -> Markup:
    """Columns of numbers, one column for each place; later series are stacked upon earlier ones,
    and the name of a series is its class. ticks: instants below, evenly spread."""
    columns = [[value or 0.0 for value in column] for column in zip(*series.values(), strict=True)]
    most = _rounded(max((sum(column) for column in columns), default=0.0) or 1.0)
    step = WIDTH / max(1, len(columns))
    parts = []
    for place, column in enumerate(columns):
        top = float(TALL)
        for name, value in zip(series, column, strict=True):
            height = value / most * (TALL - HEAD)
            if height <= 0:
                continue
            top -= height
            parts.append(
                Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
                    name, _n(place * step), _n(top), _n(max(0.5, step - 0.6)), _n(height)
                )
            )
    grid = [(share, _whole(most * share)) for share in (0.5, 1.0)]
    return _drawn("bars", parts, [], grid, f"{title}: {about}", ticks)


def lines(series: Series, *, title: str, about: str, ticks: Sequence[datetime] = ()) -> Markup:
    """A line for each series, whose name is its class; None leaves a gap. In seconds; each step of
    the grid is ten times the one below it, so that 20 ms are seen beside 20 s."""
    values = [value for one in series.values() for value in one if value is not None]
    first, last = decades(values)
    parts, dots = [], []

    def share(value: float) -> float:
        return (math.log10(max(value, 10.0**first)) - first) / (last - first)

    for name, one in series.items():
        step = WIDTH / max(1, len(one) - 1)
        for run in _runs(one):
            points = [(place * step, _height(share(value))) for place, value in run]
            if len(points) == 1:
                ((x, y),) = points
                dots.append(
                    Markup('<circle class="{}" cx="{}" cy="{}" r="2"/>').format(
                        name, _share(x / WIDTH), _n(y)
                    )
                )
                continue
            text = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
            parts.append(Markup('<polyline class="{}" points="{}"/>').format(name, text))
    grid = [((n - first) / (last - first), _power(n)) for n in range(first, last + 1)]
    return _drawn("lines", parts, dots, grid, f"{title}: {about}", ticks)


def decades(seconds: Sequence[float]) -> tuple[int, int]:
    """The powers of ten around some values, from a millisecond on: at least one step, at most
    six."""
    least, most = min(seconds, default=0.01), max(seconds, default=0.1)
    first = max(-3, math.floor(math.log10(max(least, 1e-3))))
    last = max(first + 1, math.ceil(math.log10(max(most, 1e-3)) - 1e-9))
    return max(first, last - 6), last


def _power(n: int) -> str:
    return f"{10 ** (n + 3)}ms" if n < 0 else f"{10**n:,}s"


def _whole(value: float) -> str:
    return shown.number(int(value) if value == int(value) else value)


def _height(share: float) -> float:
    return TALL - share * (TALL - HEAD)


def _runs(values: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """Runs of values without a gap, with their places."""
    run: list[tuple[int, float]] = []
    for place, value in enumerate(values):
        if value is not None:
            run.append((place, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _drawn(
    kind: str,
    parts: Sequence[Markup],
    dots: Sequence[Markup],
    grid: Sequence[tuple[float, str]],
    label: str,
    ticks: Sequence[datetime],
) -> Markup:
    """The picture with its frame; parts are stretched, dots are not. grid: lines, as a share of the
    height, and what each says."""
    frame, texts = [], []
    for share, said in grid:
        y = _n(_height(share))
        frame.append(Markup('<line class="grid" x1="0" x2="100%" y1="{}" y2="{}"/>').format(y, y))
        where = _n(_height(share) + 5)
        texts.append(Markup('<text class="end" x="-5" y="{}">{}</text>').format(where, said))
    for place, tick in enumerate(ticks):
        where = "end" if place == len(ticks) - 1 else "mid" if place else "begin"
        x = _share(place / max(1, len(ticks) - 1))
        texts.append(_tick(where, x, tick.astimezone(UTC)))
    stretched = Markup(
        '<svg width="100%" height="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>'
    ).format(TALL, WIDTH, TALL, Markup("").join(parts))
    return Markup('<svg class="chart {}" role="img" tabindex="0" aria-label="{}">{}</svg>').format(
        kind, label, Markup("").join([*frame, stretched, *dots, *texts])
    )


def _tick(where: str, x: str, at: datetime) -> Markup:
    """A time below a picture, in UTC; the script shows it in the browser's time zone."""
    return Markup('<text class="{}" x="{}" y="{}" data-at="{}">{} UTC</text>').format(
        where, x, HEIGHT - 4, f"{at:%Y-%m-%dT%H:%M:%SZ}", f"{at:%H:%M}"
    )


def states(counts: Mapping[str, int], *, title: str) -> Markup:
    """One bar of how many are in each state, in the order of STATES."""
    total = sum(counts.get(name, 0) for name in STATES)
    about = ", ".join(f"{counts[name]:,} {name}" for name in STATES if counts.get(name)) or "none"
    parts, x = [], 0.0
    for name in STATES:
        width = 100 * counts.get(name, 0) / total if total else 0
        if width:
            width = max(width, 1.5)  # a single failure is seen beside a million that are done
            parts.append(
                Markup('<rect class="{}" x="{}" y="0" width="{}" height="8"/>').format(
                    name, _n(min(x, 98.5)), _n(width)
                )
            )
            x += width
    return Markup(
        '<svg class="states" role="img" viewBox="0 0 100 8" preserveAspectRatio="none">'
        "<title>{}</title><desc>{}</desc>{}</svg>"
    ).format(title, about, Markup("").join(parts))


def _rounded(most: float) -> float:
    """The next 1, 2 or 5 times a power of ten, which is the top of a picture."""
    size = 1e-3
    while size < 1e15:
        for factor in (1, 2, 5):
            if factor * size >= most:
                return factor * size
        size *= 10
    return most


def _share(value: float) -> str:
    return f"{_n(100 * value)}%"


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
