"""What benchmarks compute and draw, from samples made by hand."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import figures
import plot


def test_percentiles_are_the_nearest_rank():
    assert figures.percentile([3, 1, 2, 4], 0.5) == 2
    assert figures.percentile([3, 1, 2, 4], 0.9) == 4
    assert figures.percentile([7], 0.5) == 7


def test_the_interval_of_a_mean_lies_around_it_and_within_the_samples():
    estimate = figures.mean([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert estimate.mean == 4.0
    assert 1.0 < estimate.low < 4.0 < estimate.high < 7.0


def test_a_ratio_is_paired_so_that_a_slow_rotation_cancels_out():
    assert figures.ratio([1.0, 100.0, 3.0], [2.0, 200.0, 6.0]) == pytest.approx((0.5, 0.5, 0.5))


def test_twice_and_half_as_much_cancel_out():
    estimate = figures.ratio([2.0, 1.0], [1.0, 2.0])
    assert estimate.mean == pytest.approx(1.0)
    assert estimate.low == pytest.approx(0.5)
    assert estimate.high == pytest.approx(2.0)


def test_a_ratio_needs_every_rotation_of_both():
    with pytest.raises(ValueError):
        figures.ratio([1.0, 2.0], [1.0])


def test_a_table_has_a_dash_where_nothing_was_measured():
    columns = {"way": lambda row: row["way"], "time": lambda row: figures.seconds(row["time_s"])}
    assert figures.table(columns, [{"way": "a", "time_s": 0.0125}, {"way": "b"}]) == [
        "| way | time |",
        "| --- | --- |",
        "| a | 12.5 ms |",
        "| b | - |",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(2e-6, "2.00 µs"), (123.4e-6, "123 µs"), (0.0456, "45.6 ms"), (1.5, "1.50 s")]
)
def test_seconds_have_three_digits_and_a_unit(value, text):
    assert figures.seconds(value) == text


def test_ratios_are_printed_with_their_interval():
    assert figures.times(figures.Estimate(12.34, 9.87, 123.4)) == "12.3 (9.87 to 123)"
    assert figures.percent(figures.Estimate(0.97, 0.954, 0.991)) == "97 % (95 to 99)"


def test_an_aim_is_met_or_missed_only_beyond_its_interval():
    estimate = figures.Estimate(20.0, 18.0, 22.0)
    assert [figures.at_least(estimate, aim) for aim in (18.0, 20.0, 22.5)] == ["met", "not shown", "missed"]
    assert [figures.at_most(estimate, aim) for aim in (17.5, 20.0, 22.0)] == ["missed", "not shown", "met"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(100, "100 B"), (4096, "4 KiB"), (3 << 19, "1536 KiB"), (256 << 20, "256 MiB"), (1 << 30, "1 GiB")],
)
def test_sizes_have_the_largest_unit_that_divides_them(value, text):
    assert figures.size(value) == text


def widths(svg: str) -> list[float]:
    return [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', svg)]


def test_the_longest_bar_or_interval_fills_the_picture():
    svg = plot.bars("title", [plot.Bar("a", 10.0, "ten", interval=(5.0, 20.0)), plot.Bar("b", 5.0, "five")])
    assert widths(svg) == [300.0, 150.0]
    assert '<line x1="450.0" x2="900.0"' in svg


def test_a_bar_below_zero_is_empty():
    assert widths(plot.bars("title", [plot.Bar("a", -1.0, ""), plot.Bar("b", 1.0, "")])) == [0.0, 600.0]


def test_each_decade_is_as_long_on_a_logarithmic_axis():
    rows = [plot.Bar(text, value, text) for value, text in ((0.01, "a"), (0.1, "b"), (1.0, "c"))]
    assert widths(plot.bars("title", rows, logarithmic=True)) == [200.0, 400.0, 600.0]


def test_labels_are_escaped():
    assert "a &lt; b" in plot.bars("title", [plot.Bar("a < b", 1.0, "")])
    assert "<rect" not in plot.bars("nothing", [], logarithmic=True)
