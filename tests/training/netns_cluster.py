"""Two network namespaces as two machines (bench/two_machines.py), skipped with the reason where they cannot be made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from bench.two_machines import RayOnTwoMachines, namespaces_problem, ray_on_two_machines

__all__ = ["RayOnTwoMachines", "need_namespaces", "netns_cluster"]


def need_namespaces() -> None:
    """Skip, with the reason, where namespaces cannot be made."""
    problem = namespaces_problem()
    if problem:
        pytest.skip(problem)


@contextlib.contextmanager
def netns_cluster() -> Iterator[RayOnTwoMachines]:
    """A running cluster with one CPU a node; namespaces, cable and processes are gone afterwards."""
    need_namespaces()
    with ray_on_two_machines() as cluster:
        yield cluster
