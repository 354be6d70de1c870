"""Instance catalogue: rows are facts, everything else is derived, and no pod asks more than its node has."""

from __future__ import annotations

import csv
import re

import pytest

from eks_ray_train.errors import SettingsError
from eks_ray_train.instances import CATALOGUE, allocatable_cpu_millis, get_instance_type, get_system_instance_type

# Allocatable as Karpenter computes it for AL2023 (its generated instance-type pages, 2026-08): millicores, MiB.
KNOWN_ALLOCATABLE = {
    "g6.12xlarge": (47810, 178933),
    "p4d.24xlarge": (95690, 1082712),
    "p5.48xlarge": (191450, 1938410),
    "p5en.48xlarge": (191450, 1937332),
    "p6-b300.48xlarge": (191450, 3877198),
}


@pytest.mark.parametrize("name", sorted(KNOWN_ALLOCATABLE))
def test_allocatable_is_exact_in_cpu_and_never_above_the_real_memory(name: str) -> None:
    cpu, memory = KNOWN_ALLOCATABLE[name]
    assert CATALOGUE[name].allocatable_cpu_millis == cpu
    assert 0.95 * memory <= CATALOGUE[name].allocatable_memory_mib <= memory


def test_four_vcpu_system_node_offers_3920_millicores() -> None:
    assert allocatable_cpu_millis(4) == 3920
    assert get_system_instance_type("m7i.xlarge").allocatable_cpu_millis == 3920


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_worker_pod_fits_its_node_and_takes_all_gpus_and_efa(name: str) -> None:
    row = CATALOGUE[name]
    pod = row.worker_pod
    assert pod.gpus == row.gpus and pod.efa_interfaces == row.efa_interfaces
    assert pod.cpu * 1000 <= row.allocatable_cpu_millis - 1000
    assert pod.memory_gib * 1024 <= row.allocatable_memory_mib - 2048
    assert pod.cpu >= row.vcpus * 0.85 and pod.memory_gib >= row.memory_gib * 0.8


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_interface_layout_is_legal_and_has_the_type_s_maximum_of_efa(name: str) -> None:
    row = CATALOGUE[name]
    layout = row.network_interfaces
    assert (layout[0].network_card_index, layout[0].device_index, layout[0].interface_type) == (0, 0, "interface")
    places = [(nic.network_card_index, nic.device_index) for nic in layout]
    assert len(set(places)) == len(places)
    assert all(0 <= card < row.network_cards for card, _ in places)
    assert {card for card, _ in places} == set(range(row.network_cards))
    assert sum(nic.interface_type == "efa-only" for nic in layout) == row.efa_interfaces


def test_p6_b300_asks_for_16_efa_on_17_cards_with_card_0_ena_only() -> None:
    layout = get_instance_type("p6-b300.48xlarge", accept_unverified_layout=True).network_interfaces
    assert len(layout) == 17
    assert [nic.network_card_index for nic in layout if nic.interface_type == "efa-only"] == list(range(1, 17))


def test_quota_code_follows_the_family() -> None:
    assert CATALOGUE["g6.12xlarge"].quota_code == "L-DB2E81BA"
    assert CATALOGUE["gr6.8xlarge"].quota_code == "L-DB2E81BA"
    assert CATALOGUE["p5.48xlarge"].quota_code == "L-417A185B"


def test_gpudirect_rdma_is_where_the_plugin_demands_it() -> None:
    with_gdr = {name for name, row in CATALOGUE.items() if row.gpudirect_rdma}
    assert with_gdr == {
        "g7e.12xlarge", "g7e.24xlarge", "g7e.48xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge",
        "p5en.48xlarge", "p6-b200.48xlarge", "p6-b300.48xlarge",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("g6.4xlarge", ["has no EFA", "g6.8xlarge"]),
        ("g5.xlarge", ["has no EFA", "g5.8xlarge"]),
        ("g4dn.12xlarge", ["bf16", "g5.8xlarge"]),
        ("g5g.16xlarge", ["arm64"]),
        ("p3.16xlarge", ["V100"]),
        ("p5.2xlarge", ["'p5.2xlarge'", "nearest known name is p5.4xlarge"]),
        ("p6e-gb300.36xlarge", ["arm64", "p6-b200.48xlarge"]),
        ("", ["got ''"]),
        ("m7i.xlarge", ["got 'm7i.xlarge'"]),
    ],
)
def test_type_that_cannot_work_says_why_and_names_the_nearest(name: str, parts: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        get_instance_type(name)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["foo", "x", "p6-b300", "g7.xlarge", "g7.2xlarge", "p6-b300.24xlarge", "p6e-gb300.36xlarge", "m7i.xlarge"])
@pytest.mark.parametrize("accept", [False, True])
def test_only_types_that_work_as_they_are_are_suggested(name: str, accept: bool) -> None:
    with pytest.raises(SettingsError) as caught:
        get_instance_type(name, accept_unverified_layout=accept)
    named = re.findall(r"(?:nearest known name is|use one of|use) ([a-z][\w-]*\.\w+)", str(caught.value))
    assert named and set(named) <= {row.name for row in CATALOGUE.values() if row.layout_verified}
    assert name != "foo" or "nearest" not in str(caught.value)


def test_catalogue_equals_the_checked_facts(shared_dir) -> None:
    with (shared_dir / "facts" / "instances.csv").open(newline="") as file:
        facts = {row["type"]: row for row in csv.DictReader(file)}
    for name, row in CATALOGUE.items():
        fact = facts[name]
        assert row.gpus == int(fact["gpus"]) and row.vcpus == int(fact["vcpus"]) and row.memory_gib == int(fact["memory_gib"])
        assert row.efa_interfaces == int(fact["max_efa_interfaces"])
        assert row.quota_code == fact["quota_code_on_demand"]
        assert row.gpudirect_rdma == (fact["gpudirect_rdma"] == "yes")
        assert row.capacity_block == (fact["capacity_block_offered"] == "yes")
        assert row.usd_per_hour == (float(fact["usd_per_hour_us_east_1"]) if fact["usd_per_hour_us_east_1"] else None)
        if fact["max_network_cards"].isdigit():
            assert row.network_cards == int(fact["max_network_cards"])
