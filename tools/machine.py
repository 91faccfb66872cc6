"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

from process import ROOT


def machine() -> dict[str, str | int]:
    """CPU, cores that may be used, kernel, and the commit of this tree."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "commit": commit.stdout.strip(),
    }
