"""What `make bench-submit` submits, computes and prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import submit_report
from submit_case import CASES, PAGE_BYTES, Case
from submit_native import LIBRARY

SMOKE_LIMIT_S = 300.0
CASE = Case(118, 160)


def test_the_cases_are_those_of_the_comparison():
    assert sorted({case.descriptors for case in CASES}) == [118, 1785, 18880, 100_000]


@pytest.mark.parametrize("case", CASES)
def test_no_two_planes_overlap_and_none_leaves_the_memory(case):
    offsets = case.offsets()
    ends = [offset + case.pool_blocks * PAGE_BYTES for offset in offsets]
    assert all(end <= begin for end, begin in zip(ends, offsets[1:], strict=False))
    assert ends[-1] == case.memory_bytes()


def test_even_planes_are_equal_steps_apart_and_uneven_ones_are_not():
    for case in CASES:
        offsets = case.offsets()
        steps = {end - begin for begin, end in pairwise(offsets)}
        assert (len(steps) == 1) == case.even


def test_tables_name_separate_blocks_within_the_pool_and_differ_between_sides_and_turns():
    producer, consumer = CASE.tables(3)
    for table in (producer, consumer):
        assert len(set(table)) == CASE.blocks
        assert all(0 <= block < CASE.pool_blocks and block % 2 == 0 for block in table)
    assert producer != consumer
    assert CASE.tables(3) == (producer, consumer)
    assert CASE.tables(4) != (producer, consumer)


def rotation(**parts: float) -> dict[str, list[float]]:
    return {name: [seconds] * 3 for name, seconds in parts.items()}


def samples(own_busy: float = 0.001) -> dict:
    """Three rotations: of vLLM's work a 25th, of what its engine's thread waits for a 100th, with transports half."""
    theirs = [rotation(ids=0.01, make=0.04, post=0.05)] * 3
    own = [rotation(engine=0.001, plan=0.001, post=0.03, poll=0.018)] * 3
    busy = [rotation(engine=own_busy, plan=0.001, post=0.03, poll=0.018)] * 3
    return {
        ("kvpush-ucx", CASE, False): own,
        ("kvpush-ucx", CASE, True): busy,
        ("vllm", CASE, False): theirs,
        ("vllm", CASE, True): theirs,
    }


def by_interpreter(rows: list[dict], way: str) -> dict[str, dict]:
    return {row["interpreter"]: row for row in rows if row["way"] == way}


def test_engine_and_planning_are_compared_with_ids_and_make_and_transports_with_transports():
    own = by_interpreter(submit_report.Figures(samples()).rows(), "kvpush-ucx")["free"]
    assert own["work_s"] == pytest.approx(0.002)
    assert own["times_less"] == pytest.approx((25, 25, 25))
    assert own["times_less_with_transport"] == pytest.approx((2, 2, 2))
    assert own["times_less_thread"] == pytest.approx((100, 100, 100))


def test_a_busy_interpreter_is_compared_with_a_free_one_of_the_same_way():
    own = by_interpreter(submit_report.Figures(samples(own_busy=0.002)).rows(), "kvpush-ucx")
    assert own["busy"]["busy_of_free"] == pytest.approx((1.5, 1.5, 1.5))
    assert "busy_of_free" not in own["free"]


def test_parts_are_added_up_before_the_median_is_taken():
    assert submit_report.median({"a": [1, 2, 9], "b": [9, 2, 1]}, ["a", "b"]) == 10


def test_without_vllm_there_is_nothing_to_compare_with():
    alone = {key: value for key, value in samples().items() if key[0] != "vllm"}
    rows = submit_report.Figures(alone).rows()
    assert "times_less" not in rows[0]
    assert " - |" in submit_report.table(rows)


def test_the_aims_are_judged_from_the_figures():
    lines = submit_report.verdicts(submit_report.Figures(samples(own_busy=0.002)).rows())
    assert [line.rpartition(": ")[2] for line in lines] == ["met", "missed", "missed"]


def test_the_picture_has_a_bar_for_each_row():
    rows = submit_report.Figures(samples()).rows()
    assert submit_report.picture(rows).count("<rect") == len(rows) == 4


@pytest.mark.skipif("KVPUSH_LONG" not in os.environ, reason="takes a minute: only with tools/check --long")
def test_a_short_run_measures_kvpush(tmp_path):
    """Without vLLM, which takes a minute to import on a busy machine."""
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY} is not built")
    out = tmp_path / "submit.json"
    command = [
        sys.executable,
        Path(__file__).with_name("submit.py"),
        "--no-build",
        "--rotations",
        "2",
        "--repeats",
        "1",
    ]
    command += ["--descriptors", "118", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SMOKE_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())
    assert {"cpu", "kernel", "commit", "versions"} <= written["machine"].keys()
    ways = {row["way"] for row in written["rows"]}
    if "kvpush-nixl" not in ways:
        print(f"kvpush-nixl was not measured: {done.stderr}")
    assert "kvpush-ucx" in ways
    for row in written["rows"]:
        assert row["descriptors"] == 118
        assert row["rotations"] == 2
        assert 0 < row["work_s"] < SMOKE_LIMIT_S
    assert out.with_suffix(".svg").read_text().startswith("<svg")
