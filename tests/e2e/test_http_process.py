"""What tests start ends with them."""

import os
import subprocess
import sys
from pathlib import Path

from engine_process import engine_binary
from http_process import wait_until

from process import stat_fields

PARENT = "import engine_process; print(engine_process.EngineProcess().process.pid, flush=True); input()"


def test_a_program_ends_when_its_test_is_killed():
    here = Path(__file__).resolve().parent
    path = os.pathsep.join([str(here), str(here.parents[1] / "tools")])
    environment = {**os.environ, "PYTHONPATH": path, "KVPUSH_ENGINE": engine_binary()}
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        stat = Path(f"/proc/{int(parent.stdout.readline())}/stat")
        assert stat_fields(stat)

        parent.kill()

        wait_until(lambda: stat_fields(stat)[:1] in ([], ["Z"]), "the engine ends", seen=lambda: stat_fields(stat)[:1])
