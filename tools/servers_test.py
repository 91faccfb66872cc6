"""A cluster leaves no process behind, whatever fails in it."""

import os
from pathlib import Path

import pytest

from process import Process, stat_fields
from servers import Cluster


class Stubborn(Process):
    """One whose end goes wrong."""

    def stop(self) -> None:
        super().stop()
        raise TimeoutError(self.name)


def children() -> list[str]:
    """The /proc/*/stat of each child of this process: a cluster's processes and its guard."""
    stats = Path("/proc").glob("[0-9]*/stat")
    return [str(stat) for stat in stats if stat_fields(stat)[1:2] == [str(os.getpid())]]


def sleeper(kind: type[Process], folder: Path, name: str) -> Process:
    return kind(name, ["sleep", "60"], folder / f"{name}.log")


def test_a_process_that_does_not_start_takes_the_others_and_the_guard_along(tmp_path):
    before = children()
    missing = Process("missing", [tmp_path / "missing"], tmp_path / "missing.log")

    with pytest.raises(FileNotFoundError), Cluster() as cluster:
        cluster.start(sleeper(Process, tmp_path, "first"), missing)

    assert children() == before


def test_a_process_that_does_not_stop_keeps_neither_the_others_nor_the_guard(tmp_path):
    before = children()

    with pytest.raises(TimeoutError, match="second"), Cluster() as cluster:
        cluster.start(*(sleeper(kind, tmp_path, name) for kind, name in ((Process, "first"), (Stubborn, "second"))))
        assert len(children()) == len(before) + 3

    assert children() == before
