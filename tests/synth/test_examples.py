"""Each example synthesizes and shows what it is there to show."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.synth.template_reading import (
    CHART,
    MANIFEST,
    depends_on,
    launch_template_of,
    manifest_resource,
    manifests,
    of_type,
    only,
)

REPO = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((REPO / "examples").glob("*.py"))
Templates = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def synthesized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Templates]:
    """``synthesized("minimal")`` -> templates of that example's stacks by name; each is built once."""
    from eks_ray_train.node_runtime import use_bundled_node

    use_bundled_node()
    from aws_cdk import App

    folder = tmp_path_factory.mktemp("examples")
    made: dict[str, Templates] = {}

    def make(name: str) -> Templates:
        if name not in made:
            sys.path.insert(0, str(REPO / "examples"))  # as for `python examples/NAME.py`
            try:
                spec = importlib.util.spec_from_file_location(f"example_{name}", REPO / "examples" / f"{name}.py")
                assert spec is not None and spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
            finally:
                sys.path.remove(str(REPO / "examples"))
            app = App(outdir=str(folder / name))
            module.build(app)
            app.synth()
            made[name] = {
                path.name.removesuffix(".template.json"): json.loads(path.read_text())
                for path in sorted((folder / name).glob("*.template.json"))
            }
        return made[name]

    return make


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_is_short_says_what_it_shows_and_how_to_run_it(path: Path) -> None:
    text = path.read_text()
    docstring = ast.get_docstring(ast.parse(text)) or ""
    assert f'cdk synth --app "python examples/{path.name}"' in docstring
    assert len(text.splitlines()) < 60


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_applies_ray_last_and_leaves_no_public_load_balancer(
    path: Path, synthesized: Callable[[str], Templates]
) -> None:
    templates = synthesized(path.stem)
    with_ray = [t for t in templates.values() if manifests(t, "RayCluster") or manifests(t, "RayJob")]
    assert with_ray
    for template in with_ray:
        name, _ = manifest_resource(template, "RayJob" if manifests(template, "RayJob") else "RayCluster")
        assert set(of_type(template, MANIFEST)) - {name} <= depends_on(template, name)
        assert "LoadBalancer" not in json.dumps(template["Resources"][name])


def test_an_example_runs_as_a_program_of_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, "CDK_OUTDIR": str(tmp_path / "out")}
    command = [sys.executable, str(REPO / "examples" / "gitops_job.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "GitOpsJob.template.json").is_file()


def test_the_minimal_app_puts_efa_nodes_and_a_ray_cluster_on_a_cluster_of_its_own(
    synthesized: Callable[[str], Templates],
) -> None:
    template = synthesized("minimal")["Minimal"]
    only(template, "AWS::EKS::Cluster")
    groups = [g for g in of_type(template, "AWS::EKS::Nodegroup").values() if g["Properties"].get("Taints")]
    data = launch_template_of(template, groups[0])
    assert [i["InterfaceType"] for i in data["NetworkInterfaces"]] == ["interface", "efa-only"]
    (ray,) = manifests(template, "RayCluster")
    assert ray["spec"]["workerGroupSpecs"][0]["replicas"] == 2


def test_an_existing_vpc_is_used_and_no_network_is_made(synthesized: Callable[[str], Templates]) -> None:
    template = synthesized("existing_vpc")["ExistingVpc"]
    kinds = {r["Type"] for r in template["Resources"].values()}
    assert not kinds & {"AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::EC2::NatGateway", "AWS::EC2::InternetGateway"}
    config = only(template, "AWS::EKS::Cluster")["Properties"]["ResourcesVpcConfig"]
    assert config["SubnetIds"] == ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]
    subnets = [g["Properties"]["Subnets"] for g in of_type(template, "AWS::EKS::Nodegroup").values()]
    assert ["subnet-0123456789abcdef1"] in subnets


def test_on_an_existing_cluster_no_control_plane_is_made_and_its_group_is_on_every_interface(
    synthesized: Callable[[str], Templates],
) -> None:
    template = synthesized("existing_cluster")["ExistingCluster"]
    assert not of_type(template, "AWS::EKS::Cluster") and not of_type(template, "AWS::EKS::Addon")
    data = launch_template_of(template, only(template, "AWS::EKS::Nodegroup"))
    assert len(data["NetworkInterfaces"]) == 33
    assert all("sg-0123456789abcdef0" in i["Groups"] for i in data["NetworkInterfaces"])
    target = data["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": "cr-0123456789abcdef0"}


def test_on_an_existing_node_group_only_ray_is_applied(synthesized: Callable[[str], Templates]) -> None:
    template = synthesized("existing_node_group")["ExistingNodeGroup"]
    for kind in ("AWS::EKS::Nodegroup", "AWS::EC2::LaunchTemplate", CHART):
        assert not of_type(template, kind), kind
    worker = manifests(template, "RayCluster")[0]["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert worker["nodeSelector"] == {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
    assert {"key": "dedicated", "operator": "Equal", "value": "training", "effect": "NoSchedule"} in worker["tolerations"]
    assert worker["containers"][0]["resources"]["limits"]["vpc.amazonaws.com/efa"] == "4"


def test_a_capacity_block_is_launched_into_and_ended_by_a_schedule(synthesized: Callable[[str], Templates]) -> None:
    template = synthesized("capacity_block")["CapacityBlock"]
    (claim,) = of_type(template, "Custom::CapacityClaim")
    group = only(template, "AWS::EKS::Nodegroup")["Properties"]
    assert group["CapacityType"] == "CAPACITY_BLOCK"
    assert group["ScalingConfig"]["DesiredSize"] == {"Fn::GetAtt": [claim, "DesiredNodes"]}
    data = launch_template_of(template, only(template, "AWS::EKS::Nodegroup"))
    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert len(of_type(template, "AWS::Scheduler::Schedule")) == 2


def test_two_trainings_share_the_charts_and_nothing_that_the_other_would_take_away(
    synthesized: Callable[[str], Templates],
) -> None:
    templates = synthesized("two_trainings")
    shared, trainings = templates["SharedCluster"], [t for n, t in templates.items() if n.startswith("Training-")]
    assert len(of_type(shared, CHART)) == 3 and len(trainings) == 2
    assert not any(of_type(t, CHART) for t in trainings)
    for kind in ("Namespace", "ServiceAccount", "RayCluster", "ValidatingAdmissionPolicy"):
        names = [o["metadata"]["name"] for t in trainings for o in manifests(t, kind)]
        assert len(names) == len(set(names)) == 2, kind


def test_workers_of_one_training_never_land_on_the_nodes_of_another(synthesized: Callable[[str], Templates]) -> None:
    for name, template in synthesized("two_trainings").items():
        if not name.startswith("Training-"):
            continue
        (node_group,) = of_type(template, "AWS::EKS::Nodegroup")
        resource = manifest_resource(template, "RayCluster")[1]
        text = json.dumps(resource["Properties"]["Manifest"])
        assert f'eks.amazonaws.com/nodegroup\\":\\"", {{"Fn::GetAtt": ["{node_group}", "NodegroupName"]}}' in text


def test_each_worker_group_selects_its_own_node_group_and_tolerates_its_taints(
    synthesized: Callable[[str], Templates],
) -> None:
    template = synthesized("worker_groups")["WorkerGroups"]
    first, second = manifests(template, "RayCluster")[0]["spec"]["workerGroupSpecs"]
    assert (first["groupName"], first["replicas"]) == ("gpu", 2)
    assert (second["groupName"], second["replicas"]) == ("gpu-2", 1)
    limits = [g["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for g in (first, second)]
    assert limits == ["8", "4"]
    tolerated = [{t["key"] for t in g["template"]["spec"]["tolerations"]} for g in (first, second)]
    assert "team" in tolerated[1] and "team" not in tolerated[0]
    manifest = json.dumps(manifest_resource(template, "RayCluster")[1])
    assert all(manifest.count(f'"{name}", "NodegroupName"') == 1 for name in of_type(template, "AWS::EKS::Nodegroup"))


def test_the_gitops_app_declares_one_queued_run_that_ends(synthesized: Callable[[str], Templates]) -> None:
    template = synthesized("gitops_job")["GitOpsJob"]
    (job,) = manifests(template, "RayJob")
    assert not manifests(template, "RayCluster")
    assert job["spec"]["suspend"] is True and job["spec"]["activeDeadlineSeconds"] == 8 * 3600
    assert template["Outputs"]["RayJobName"]["Value"] == job["metadata"]["name"]
