"""Fixtures: the pair of servers that a test talks to, first without and then with prefix caching."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import servers
from deployment import Deployment, Pair, Reference


@pytest.fixture(scope="session")
def deployment() -> Iterator[Deployment]:
    with servers.Cluster(lambda line: print(f"  {line}", flush=True)) as cluster:
        yield Deployment(cluster)


@pytest.fixture(scope="session", params=[False, True], ids=["plain", "cached"])
def running_pair(deployment: Deployment, request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = deployment.start(request.param)
    yield pair
    deployment.stop(pair)


@pytest.fixture
def pair(running_pair: Pair) -> Iterator[Pair]:
    """Every test leaves nothing behind."""
    yield running_pair
    running_pair.wait_for_rest()


@pytest.fixture
def reference(deployment: Deployment, running_pair: Pair) -> Reference:
    return deployment.reference
