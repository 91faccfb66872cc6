"""Pictures of figures, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

OWN = "#2a7"  # kvpush
OTHER = "#888"

_LABELS, _WIDTH, _STEP, _TOP = 300, 600, 22, 30


@dataclass
class Bar:
    """A figure, what stands beside it, and the ends of its interval if it has one."""

    label: str
    value: float
    text: str
    colour: str = OTHER
    interval: tuple[float, float] | None = None


def bars(title: str, rows: Sequence[Bar], *, logarithmic: bool = False) -> str:
    """One bar below the other. The logarithmic axis begins a decade below the smallest value, which is above zero."""
    ends = [row.interval[1] if row.interval else row.value for row in rows]
    scale = _logarithmic([row.value for row in rows], ends) if logarithmic else _linear(ends)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABELS + _WIDTH + 150}" '
        f'height="{_TOP + _STEP * len(rows) + 10}" font-family="sans-serif" font-size="12">',
        f'<text x="10" y="18" font-weight="bold">{escape(title)}</text>',
    ]
    for index, row in enumerate(rows):
        y, end = _TOP + index * _STEP, scale(ends[index])
        parts += [
            f'<text x="{_LABELS - 8}" y="{y + 13}" text-anchor="end">{escape(row.label)}</text>',
            f'<rect x="{_LABELS}" y="{y}" width="{scale(row.value):.1f}" height="16" fill="{row.colour}"/>',
            f'<text x="{_LABELS + end + 6:.1f}" y="{y + 13}">{escape(row.text)}</text>',
        ]
        if row.interval:
            low, high = (_LABELS + scale(value) for value in row.interval)
            parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y + 8}" y2="{y + 8}" stroke="black"/>')
    return "\n".join([*parts, "</svg>", ""])


def _linear(ends: Sequence[float]):
    longest = max([*ends, 0.0]) or 1.0
    return lambda value: max(0.0, value) * _WIDTH / longest


def _logarithmic(values: Sequence[float], ends: Sequence[float]):
    if not values:
        return lambda value: 0.0
    first = math.floor(math.log10(min(values))) - 1
    decades = math.log10(max(ends)) - first
    return lambda value: max(0.0, math.log10(value) - first) * _WIDTH / decades
