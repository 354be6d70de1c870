"""Prices and limits that the pages state are those of the catalogue, the cost model and the settings."""

from __future__ import annotations

import re

import pytest

from eks_ray_train.instances import get_instance_type
from eks_ray_train.plan import cost
from eks_ray_train.settings import Settings
from tests.docs_reading import REPO

DEFAULT = Settings()
GPU = get_instance_type(DEFAULT.gpu_instance_type)
NODES = DEFAULT.gpu_node_count
AT_REST = cost.EKS_USD_PER_HOUR + cost.NAT_USD_PER_HOUR + cost.SYSTEM_NODE_USD_PER_HOUR
GPUS = NODES * (GPU.usd_per_hour or 0)
TOTAL = AT_REST + GPUS + NODES * cost.VOLUME_USD_PER_HOUR


def rows() -> dict[str, float]:
    """The table of the cost page: part -> USD an hour."""
    table = (REPO / "docs" / "cost.md").read_text(encoding="utf-8").partition("| part |")[2].partition("\n\n")[0]
    return {name.strip(" *"): float(value) for name, value in re.findall(r"^\| (.+?) \| \**([\d.]+)\** \|$", table, re.MULTILINE)}


def test_the_parts_of_the_cost_page_are_the_models_and_add_up() -> None:
    found = rows()
    assert len(found) == 7
    by_start = {name.split(",")[0].split(" (")[0]: value for name, value in found.items()}
    assert by_start["EKS control plane"] == cost.EKS_USD_PER_HOUR
    assert by_start["NAT gateway"] == cost.NAT_USD_PER_HOUR
    assert by_start[f"one {DEFAULT.system_instance_type} system node"] == cost.SYSTEM_NODE_USD_PER_HOUR
    assert by_start[f"two {GPU.name}"] == pytest.approx(GPUS)
    assert by_start["without GPU nodes"] == round(AT_REST, 2)
    assert by_start["with the default GPU nodes"] == round(TOTAL, 2)


@pytest.mark.parametrize("page", ["README.md", "docs/cost.md", "docs/deploy.md"])
def test_every_sum_that_a_page_states_is_the_models(page: str) -> None:
    text = (REPO / page).read_text(encoding="utf-8")
    stated = {float(value) for value in re.findall(r"(\d+\.\d\d) (?:USD an hour|once the GPU nodes|from the GPU nodes)", text)}
    assert stated and stated <= {round(AT_REST, 2), round(TOTAL, 2), round(GPUS, 2), 0.60}


def test_the_start_page_names_the_default_limit_and_quota() -> None:
    text = (REPO / "README.md").read_text(encoding="utf-8")
    assert f"After {DEFAULT.max_hours} hours the GPU nodes go to zero" in text
    assert f"a quota of {NODES * GPU.vcpus} vCPUs" in text
    assert f"two {GPU.name} ({NODES * GPU.gpus} {GPU.gpu_model} GPUs)" in text
