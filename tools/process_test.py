"""What a program has started ends with it, whatever ends it."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from process import stat_fields
from servers import wait_until

LIMIT_S = 20.0
# Runs a shell that starts a program of its own, whose id it writes to a file.
PARENT = """
import signal, sys, process
from pathlib import Path
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may have started the tests
process.end_on_signals()
shell = ["sh", "-c", "sleep 120 & echo $! >$0.new; mv $0.new $0; wait", sys.argv[1]]
process.run(process.Process("shell", shell, Path(sys.argv[1] + ".log")), 120, lambda line: None)
"""


def has_ended(pid: int) -> bool:
    return stat_fields(Path(f"/proc/{pid}/stat"))[:1] in ([], ["Z"])


def python(program: str, *arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.Popen([sys.executable, "-c", program, *arguments], env=environment, stdout=subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_what_a_child_of_run_has_started_ends_with_the_one_that_called_run(number, tmp_path):
    told = tmp_path / "grandchild"
    with python(PARENT, str(told)) as parent:
        assert wait_until(told.exists, LIMIT_S), "the grandchild runs"
        grandchild = int(told.read_text())
        assert not has_ended(grandchild)

        parent.send_signal(number)

        try:
            assert wait_until(lambda: has_ended(grandchild), LIMIT_S), "the grandchild ends"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(grandchild, signal.SIGKILL)


def test_a_program_that_nohup_started_goes_on_when_its_terminal_is_gone():
    program = "import os, process, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); process.end_on_signals();"
    with python(program + "os.kill(os.getpid(), signal.SIGHUP); print('goes on')") as child:
        assert child.communicate(timeout=LIMIT_S)[0] == b"goes on\n"
