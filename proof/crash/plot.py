"""A line over time as an SVG, drawn with a few lines: a picture for docs needs no library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 58, 40
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def svg(values: Sequence[float], marks: Sequence[tuple[float, str]], title: str) -> str:
    """values: one for each second, from 0 on. marks: (second, what began then)."""
    seconds = max(1, len(values))
    step = next((s for s in STEPS if s * 6 >= max(values, default=1.0)), STEPS[-1])
    top = step * max(1, math.ceil(max(values, default=1.0) / step))

    def x(second: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * second / seconds, 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" font-size="13">{escape(title)}</text>',
    ]
    for i in range(round(top / step) + 1):
        at = y(i * step)
        parts.append(f'<path d="M{LEFT} {at}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4}" text-anchor="end">{i * step}</text>')
    every = next((s for s in STEPS if seconds / s <= 12), STEPS[-1])
    for second in range(0, seconds + 1, every):
        at = HEIGHT - BOTTOM + 16
        parts.append(f'<text x="{x(second)}" y="{at}" text-anchor="middle">{second}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">seconds</text>')
    for place, (second, what) in enumerate(marks):
        if second:
            line = f"M{x(second)} {TOP - 6}V{HEIGHT - BOTTOM}"
            parts.append(f'<path d="{line}" stroke="#b33" stroke-dasharray="4 3"/>')
        row = TOP - 10 - 14 * (place % 2)
        parts.append(f'<text x="{x(second) + 3}" y="{row}" fill="#b33">{escape(what)}</text>')
    points = " ".join(f"{x(i + 0.5)},{y(value)}" for i, value in enumerate(values))
    parts.append(f'<polyline points="{points}" fill="none" stroke="#15608a" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"
