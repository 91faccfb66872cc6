"""What a benchmark computes from its samples, and how it prints them: no files, no clocks."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

RESAMPLES = 2000


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class Estimate(NamedTuple):
    """A mean over rotations and its 95 % interval."""

    mean: float
    low: float
    high: float


def mean(values: Sequence[float]) -> Estimate:
    """The interval holds 95 % of the means of resamples, always the same ones."""
    chance = random.Random(1)
    means = [statistics.fmean(chance.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    return Estimate(statistics.fmean(values), percentile(means, 0.025), percentile(means, 0.975))


def ratio(own: Sequence[float], other: Sequence[float]) -> Estimate:
    """Paired: each rotation's own value over the other's in the same rotation; the geometric mean of these.

    So that twice and half as much cancel out. All values are above zero.
    """
    logs = [math.log(one / two) for one, two in zip(own, other, strict=True)]
    return Estimate(*(math.exp(value) for value in mean(logs)))


def ratio_of_means(own: Sequence[float], other: Sequence[float]) -> Estimate:
    """Paired as in ratio(), for values that may be zero or less: rotations are resampled with both their values."""
    pairs = list(zip(own, other, strict=True))
    chance = random.Random(1)
    ratios = [_ratio_of_sums(chance.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES)]
    return Estimate(_ratio_of_sums(pairs), percentile(ratios, 0.025), percentile(ratios, 0.975))


def _ratio_of_sums(pairs: Iterable[tuple[float, float]]) -> float:
    own, other = map(sum, zip(*pairs, strict=True))
    return own / other if other else math.nan


def at_least(estimate: Estimate, aim: float) -> str:
    """Whether an aim is met; neither if the interval holds it."""
    return "met" if estimate.low >= aim else "missed" if estimate.high < aim else "not shown"


def at_most(estimate: Estimate, aim: float) -> str:
    return "met" if estimate.high <= aim else "missed" if estimate.low > aim else "not shown"


Column = Callable[[dict], object]


def table(columns: Mapping[str, Column], rows: Iterable[dict]) -> list[str]:
    """Lines of Markdown; a dash where a row lacks what its column reads."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return lines + ["| " + " | ".join(_cell(cell, row) for cell in columns.values()) + " |" for row in rows]


def _cell(cell: Column, row: dict) -> str:
    try:
        return str(cell(row))
    except KeyError:  # not measured for this row
        return "-"


def seconds(value: float) -> str:
    """With three digits and a unit that fits."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if value < limit:
            return f"{_three_digits(value * factor)} {unit}"
    return f"{_three_digits(value)} s"


def times(estimate: Estimate) -> str:
    """A ratio as "12.3 (11.9 to 12.8)"."""
    return "{} ({} to {})".format(*map(_three_digits, estimate))


def percent(estimate: Estimate) -> str:
    """A ratio as "97 % (95 to 99)"."""
    return "{:.0f} % ({:.0f} to {:.0f})".format(*(100 * value for value in estimate))


def size(value: int) -> str:
    """Bytes in the largest binary unit that divides them."""
    for unit in ("B", "KiB", "MiB"):
        if value % 1024:
            return f"{value} {unit}"
        value //= 1024
    return f"{value} GiB"


def _three_digits(value: float) -> str:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}"
