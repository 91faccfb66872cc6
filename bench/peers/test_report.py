"""The figures of a comparison, from records made by hand."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import report
from load import Load, Record

LOAD = Load(prompt_tokens=256, at_once=1, requests=2, output_tokens=8)


def series(way: str, rotations: list[list[float]], text: str = "same") -> report.Series:
    records = [[Record(ttft_s=ttft, tpot_s=0.01, text=text) for ttft in rotation] for rotation in rotations]
    return report.Series(way, LOAD, records, {"d": 1.0})


def test_exposed_time_is_paired_so_that_a_slow_rotation_cancels_out():
    base = series("alone", [[0.1, 0.1], [1.1, 1.1]])
    own = series("kvpush-cma", [[0.3, 0.3], [1.3, 1.3]])

    beyond = report.exposed(own, base, 0.5)

    assert beyond is not None
    assert abs(beyond.mean - 0.2) < 1e-9
    assert abs(beyond.low - 0.2) < 1e-9
    assert abs(beyond.high - 0.2) < 1e-9


def test_failed_requests_are_counted_and_not_timed():
    own = series("nixl-pull", [[0.2, 0.2]])
    own.rotations[0][1] = Record(error="gone")

    row = report.summary(own, {"nixl-pull": own}, {"d": 0.5})

    assert (row["requests"], row["failures"], row["errors"]) == (2, 1, ["gone"])
    assert row["ttft_ms"]["p99"] == 200.0


def test_a_row_says_how_many_answers_equal_those_of_the_single_server_and_of_pull():
    everything = {
        "alone": series("alone", [[0.1, 0.1]]),
        "nixl-pull": series("nixl-pull", [[0.2, 0.2]]),
        "kvpush-cma": series("kvpush-cma", [[0.15, 0.15]]),
    }
    everything["kvpush-cma"].rotations[0][1].text = "other"

    row = report.summary(everything["kvpush-cma"], everything, {})

    assert row["equal_to_alone"] == 1
    assert row["equal_to_nixl-pull"] == 1
    assert row["exposed_p50_ms"] == [50.0, 50.0, 50.0]


def test_exposed_time_is_put_beside_the_better_peer_of_each_kind():
    everything = {
        "alone": series("alone", [[0.1, 0.1], [0.2, 0.2]]),
        "nixl-pull": series("nixl-pull", [[0.5, 0.5], [0.6, 0.6]]),
        "nixl-push": series("nixl-push", [[0.3, 0.3], [0.4, 0.4]]),
        "nixl-pull, spinners at nice 10": series("nixl-pull", [[0.2, 0.2], [0.3, 0.3]]),
        "kvpush-cma": series("kvpush-cma", [[0.15, 0.15], [0.25, 0.25]]),
    }

    row = report.summary(everything["kvpush-cma"], everything, {})

    assert row["of_best_peer_p50"] == [0.25, 0.25, 0.25]
    assert row["of_best_peer_p90, spinners at nice 10"] == [0.5, 0.5, 0.5]
    assert "of best peer p50" in report.table([row])


def test_the_table_has_a_dash_where_nothing_was_measured():
    only = series("alone", [[0.1, 0.1]])

    text = report.table([report.summary(only, {"alone": only}, {"d": 0.004})])

    assert "Prompts of 256 tokens, 1 at once" in text
    assert "| alone | 2 | 0 | 100.0 | 100.0 | 100.0 | 100.0 | - | - | 10.0 | 10.0 | d 1.0 | d 0.4 | - | - |" in text


def test_the_picture_has_a_bar_for_each_way_but_the_single_server():
    everything = {"alone": series("alone", [[0.1, 0.1]]), "kvpush-cma": series("kvpush-cma", [[0.15, 0.15]])}

    svg = report.picture([report.summary(one, everything, {}) for one in everything.values()])

    assert svg.count("<rect") == 1
    assert "kvpush-cma, 256 tokens, 1 at once" in svg
