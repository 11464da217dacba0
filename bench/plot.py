"""A chart of rates over something that grows, as SVG: a line a series, min to max as bars."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 620, 40, 290
COLOURS = ("#1b6ca8", "#b3541e", "#3c7d3c", "#7a4fa0", "#8a6d00", "#5a5a5a")


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one x: the rates of the rounds, messages per second."""

    x: float
    rates: Sequence[float]


def svg(series: Mapping[str, Sequence[Point]], title: str, xlabel: str) -> str:
    """The chart; both axes are logarithmic, and every x that occurs is labelled."""
    points = [point for some in series.values() for point in some if point.rates]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="13">{html.escape(title)}</text>',
    ]
    if points:
        parts += _drawn(series, points)
    else:
        parts.append(f'<text x="{LEFT}" y="{HEIGHT // 2}">not measured</text>')
    parts.append(
        f'<text x="{RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{html.escape(xlabel)}</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _drawn(series: Mapping[str, Sequence[Point]], points: Sequence[Point]) -> list[str]:
    xs = sorted({point.x for point in points})
    lowest = 10 ** math.floor(math.log10(max(1.0, min(min(p.rates) for p in points))))
    highest = 10 ** math.ceil(math.log10(max(10.0, max(max(p.rates) for p in points))))

    def across(x: float) -> float:
        span = math.log10(xs[-1] / xs[0]) or 1.0
        return LEFT + (RIGHT - LEFT) * math.log10(x / xs[0]) / span

    def up(rate: float) -> float:
        share = math.log10(max(rate, lowest) / lowest) / math.log10(highest / lowest)
        return BOTTOM - (BOTTOM - TOP) * share

    parts = []
    for power in range(round(math.log10(lowest)), round(math.log10(highest)) + 1):
        y = up(10.0**power)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    parts += [
        f'<text x="{across(x):.1f}" y="{BOTTOM + 16}" text-anchor="middle">{x:,.0f}</text>'
        for x in xs
    ]
    for (name, some), colour in zip(series.items(), COLOURS * len(series), strict=False):
        shown = [point for point in some if point.rates]
        if not shown:
            continue
        at = [(across(p.x), up(median(p.rates))) for p in shown]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for point, (x, y) in zip(shown, at, strict=True):
            bar = f"M{x:.1f} {up(min(point.rates)):.1f}V{up(max(point.rates)):.1f}"
            parts.append(f'<path d="{bar}" stroke="{colour}"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        x, y = at[-1]
        parts.append(
            f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" fill="{colour}">{html.escape(name)}</text>'
        )
    return parts
