"""The command `kvpush`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvpush import trace


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kvpush")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser(
        "trace",
        help="show where the time of recent transfers went",
        description="Fetches the timelines of recent transfers, prints where their time went, and writes a trace for "
        "https://ui.perfetto.dev or chrome://tracing. Prefill engines that the others name are asked too.",
    )
    one.add_argument("address", nargs="+", metavar="HOST:PORT", help="a router, or the directory of an engine")
    one.add_argument("--out", type=Path, default=Path("kvpush-trace.json"), help="the trace (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    try:
        return show_trace(chosen.address, chosen.out)
    except (trace.TraceError, OSError) as error:
        print(f"kvpush: {error}", file=sys.stderr)
        return 1


def show_trace(addresses: Sequence[str], out: Path) -> int:
    documents, missing = trace.gather([one.removeprefix("http://").rstrip("/") for one in addresses])
    for text in missing:
        print(f"kvpush: {text}", file=sys.stderr)
    transfers = trace.join(record for document in documents for record in document.records())
    if not transfers:
        raise trace.TraceError("nobody remembers a transfer yet")
    for (p, d), seconds in trace.clock_differences(transfers).items():
        print(
            f"kvpush: the clock of {p} is {1000 * seconds:+.0f} ms off that of {d}: times from one to the other are "
            "wrong by as much",
            file=sys.stderr,
        )
    out.write_text(trace.ChromeTrace(transfers).to_json())
    print(trace.table(transfers))
    print(f"\n{out} can be opened at https://ui.perfetto.dev")
    return 0
