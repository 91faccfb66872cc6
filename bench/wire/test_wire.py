"""What `make bench-wire` moves, computes and prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import wire
import wire_perftest
import wire_report
from process import ProcessError
from wire_report import Load, Sample
from worker import APPS

SMOKE_LIMIT_S = 300.0
MEMORY_BYTES = 256 << 20
LOAD = Load(65536, 16 << 20)


def test_each_load_divides_the_memory():
    for load in wire.LOADS:
        assert load.total_bytes % load.length_bytes == 0
        assert MEMORY_BYTES % load.total_bytes == 0


def samples(**seconds: float) -> dict:
    """Three rotations with one sample each."""
    names = {name.replace("_", "-"): value for name, value in seconds.items()}
    return {(LOAD, name): [[Sample(value, value / 4)]] * 3 for name, value in names.items()}


def rows(**seconds: float) -> dict[str, dict]:
    return {row["way"]: row for row in wire_report.Figures(samples(**seconds)).rows()}


def test_throughput_is_bytes_over_the_median_time():
    row = rows(writev=0.016)["writev"]
    assert row["bytes_per_s"] == pytest.approx((16 << 20) / 0.016)
    assert row["posting_s"] == pytest.approx(0.004)
    assert row["descriptors"] == 256


def test_a_share_is_that_of_the_throughput():
    own = rows(kvpush_cma=0.020, writev=0.018, memcpy=0.010)["kvpush-cma"]
    assert own["of"]["writev"] == pytest.approx((0.9, 0.9, 0.9))
    assert own["of"]["memcpy"] == pytest.approx((0.5, 0.5, 0.5))


def test_the_faster_of_puts_and_messages_is_bare_ucx():
    own = rows(kvpush_ucx=0.10, ucx_put=0.12, ucx_message=0.08)["kvpush-ucx"]
    assert own["of"] == {"bare UCX": pytest.approx((0.8, 0.8, 0.8))}


def test_what_posts_nothing_has_no_time_for_it():
    assert wire.sample("0.5 0.25") == Sample(0.5, 0.25)
    assert wire.sample("0.5 0.000000000") == Sample(0.5, None)


def test_what_was_not_measured_is_a_dash_and_no_verdict():
    made = rows(kvpush_ucx=0.02)
    assert made["kvpush-ucx"]["of"] == {}
    assert " - |" in wire_report.table(made.values())
    assert wire_report.verdicts(made.values()) == []


def test_the_aims_are_judged_from_the_figures():
    made = rows(kvpush_cma=0.020, writev=0.018, kvpush_ucx=0.10, ucx_put=0.11).values()
    assert [line.rpartition(": ")[2] for line in wire_report.verdicts(made)] == ["missed", "met"]


def test_puts_smaller_than_64_kib_have_no_aim():
    small = {(Load(4096, 1 << 20), name): [[Sample(1.0)]] for name in ("kvpush-ucx", "ucx-put")}
    assert wire_report.verdicts(wire_report.Figures(small).rows()) == []


def test_the_picture_shows_the_largest_transfers_only():
    made = samples(kvpush_cma=0.02, writev=0.02) | {(Load(4096, 4096), "writev"): [[Sample(1e-6)]]}
    assert wire_report.picture(wire_report.Figures(made).rows()).count("<rect") == 2


def test_what_perftest_prints_is_read_from_its_last_line():
    output = "1000 1.0 2.0 3.0 40.0 50.0 600 700\n4096 0.1 55.4 54.7 1128.17 1142.25 18051 18276\n"
    assert wire_perftest.bytes_a_second(output) == pytest.approx(1142.25 * (1 << 20))


def test_perftest_that_prints_something_else_is_an_error():
    with pytest.raises(ProcessError, match="something else"):
        wire_perftest.bytes_a_second("+--------+\n")


def test_only_a_listening_socket_of_this_port_counts():
    line = "   0: 0100007F:3039 00000000:0000 {} 00000000:00000000 00:00000000 00000000 0 0 1 1 0 100 0 0 10 0"
    assert wire_perftest.listens(line.format("0A"), 12345)
    assert not wire_perftest.listens(line.format("01"), 12345)
    assert not wire_perftest.listens(line.format("0A"), 12346)
    assert not wire_perftest.listens("  sl  local_address rem_address   st", 12345)


def test_a_short_run_measures_what_is_installed(tmp_path):
    if not (APPS / "bench_wires").exists():
        pytest.skip("bench_wires is not built")
    out = tmp_path / "wire.json"
    command = [sys.executable, Path(__file__).with_name("wire.py"), "--no-build", "--out", out]
    command += ["--rotations", "2", "--repeats", "1", "--bytes-max", str(1 << 20)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SMOKE_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())
    ways = {row["way"] for row in written["rows"]}
    for name in sorted(wire.WAYS.keys() - ways):
        print(f"not measured: {name}; {done.stderr}")
    assert {"kvpush-cma", "writev", "memcpy", "kvpush-ucx"} <= ways
    for row in written["rows"]:
        assert row["rotations"] == 2
        assert 0 < row["seconds"] < SMOKE_LIMIT_S
    assert out.with_suffix(".svg").read_text().startswith("<svg")
