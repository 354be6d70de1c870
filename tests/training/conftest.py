"""The one local Ray cluster that several files of tests share: starting a cluster takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from eks_ray_train.cli.local_ray import LocalCluster


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[LocalCluster]:
    """A head and two worker nodes. Tests leave no job running on it, and those that take a node away start their own."""
    pytest.importorskip("ray")
    from eks_ray_train.cli.local_ray import LocalCluster
    from tests.training.job_driver import NODE_ENVIRONMENT

    with LocalCluster(workers=2, env=NODE_ENVIRONMENT) as running:
        yield running
