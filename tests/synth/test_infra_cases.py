"""The reported cases whose observable is in a template or a synth error: each id of the shared list has its test here.

Sources: the `report` of each case in ../shared/cases/infra.jsonl (public issues and pull requests).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train import SettingsError, Taint
from eks_ray_train.manifests.transport_env import transport_env
from tests.synth.template_reading import (
    CHART,
    chart_values,
    depends_on,
    launch_template_of,
    manifest_resource,
    manifests,
    of_type,
    only,
)

Synth = Callable[..., dict[str, dict[str, Any]]]
GIVEN = "cr-0123456789abcdef0"
AREAS = {"efa", "eks", "cdk", "cfn", "teardown", "kuberay", "ec2-capacity"}


@pytest.fixture(scope="module")
def p4d(synth: Synth) -> dict[str, Any]:
    return synth(gpu_instance_type="p4d.24xlarge")["training"]


@pytest.fixture(scope="module")
def training(default_app: dict[str, Any]) -> dict[str, Any]:
    return dict(default_app["training"])


def _data(template: dict[str, Any]) -> dict[str, Any]:
    return launch_template_of(template, only(template, "AWS::EKS::Nodegroup"))


def _node_group(template: dict[str, Any]) -> dict[str, Any]:
    return dict(only(template, "AWS::EKS::Nodegroup")["Properties"])


def _worker(template: dict[str, Any]) -> dict[str, Any]:
    (ray,) = manifests(template, "RayCluster")
    return dict(ray["spec"]["workerGroupSpecs"][0]["template"]["spec"])


def test_case_efa_sg_on_every_interface(p4d: dict[str, Any]) -> None:
    own = {"Fn::GetAtt": [next(iter(of_type(p4d, "AWS::EC2::SecurityGroup"))), "GroupId"]}
    interfaces = _data(p4d)["NetworkInterfaces"]
    assert len(interfaces) == 5 and all(own in i["Groups"] for i in interfaces)
    assert any("Fn::GetStackOutput" in g for g in interfaces[0]["Groups"])


@pytest.mark.parametrize(("name", "count"), [("p4d.24xlarge", 4), ("p5.48xlarge", 32)])
def test_case_efa_p4d_network_cards(synth: Synth, name: str, count: int) -> None:
    interfaces = _data(synth(gpu_instance_type=name)["training"])["NetworkInterfaces"]
    efa = [i for i in interfaces if i["InterfaceType"] == "efa-only"]
    assert sorted(i["NetworkCardIndex"] for i in efa) == list(range(count))
    assert all(i["DeviceIndex"] == (1 if i["NetworkCardIndex"] == 0 else 0) for i in efa)


def test_case_efa_missing_network_card_index(p4d: dict[str, Any]) -> None:
    cards = [i.get("NetworkCardIndex") for i in _data(p4d)["NetworkInterfaces"]]
    assert cards == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("name", ["g6.2xlarge", "g6.4xlarge"])
def test_case_efa_type_without_efa(synth: Synth, name: str) -> None:
    with pytest.raises(SettingsError, match=r"no EFA.*g6\.8xlarge"):
        synth(gpu_instance_type=name)


def test_case_lt_interfaces_and_securitygroupids(training: dict[str, Any]) -> None:
    assert "SecurityGroupIds" not in _data(training) and "SecurityGroups" not in _data(training)


def test_case_lt_subnet_in_interface_eks(training: dict[str, Any]) -> None:
    assert all("SubnetId" not in i for i in _data(training)["NetworkInterfaces"])
    assert len(_node_group(training)["Subnets"]) == 1


def test_case_lt_delete_on_termination(p4d: dict[str, Any]) -> None:
    assert all(i["DeleteOnTermination"] is True for i in _data(p4d)["NetworkInterfaces"])


def test_case_ng_disksize_with_launch_template(training: dict[str, Any]) -> None:
    assert "DiskSize" not in _node_group(training)
    (root,) = _data(training)["BlockDeviceMappings"]
    assert (root["DeviceName"], root["Ebs"]["VolumeType"]) == ("/dev/xvda", "gp3")


def test_case_ng_instance_type_in_both(training: dict[str, Any]) -> None:
    assert _data(training)["InstanceType"] == "g6.12xlarge" and "InstanceTypes" not in _node_group(training)


def test_case_ng_20gb_root_volume(training: dict[str, Any], isolated: Any) -> None:
    from eks_ray_train import EfaGpuNodeGroup

    (root,) = _data(training)["BlockDeviceMappings"]
    assert root["Ebs"]["VolumeSize"] >= 100 and root["Ebs"]["Encrypted"] is True
    with pytest.raises(SettingsError, match="at least 100"):
        isolated(
            lambda stack, cluster: EfaGpuNodeGroup(
                stack, "G", cluster=cluster, instance_type="g6.12xlarge", node_count=1, subnet_id="subnet-1", disk_size_gib=20
            )
        )  # fmt: skip


def test_case_ng_two_azs(training: dict[str, Any], isolated: Any) -> None:
    from eks_ray_train import EfaGpuNodeGroup

    assert len(_node_group(training)["Subnets"]) == 1
    with pytest.raises(SettingsError, match="exactly one subnet"):
        isolated(
            lambda stack, cluster: EfaGpuNodeGroup(
                stack, "G", cluster=cluster, instance_type="g6.12xlarge", node_count=2, subnets=cluster.vpc.private_subnets
            )
        )  # fmt: skip


def test_case_lt_empty_reservation_target(synth: Synth) -> None:
    template = synth(capacity="reservation", capacity_reservation_id=GIVEN)["training"]
    (claim,) = of_type(template, "Custom::CapacityClaim")
    target = _data(template)["CapacityReservationSpecification"]["CapacityReservationTarget"]
    # The claim hands back the id that it was given, after checking the reservation.
    assert target == {"CapacityReservationId": {"Fn::GetAtt": [claim, "ReservationId"]}}
    assert template["Resources"][claim]["Properties"]["ReservationId"] == GIVEN


def test_case_lt_resource_group_arn(synth: Synth) -> None:
    with pytest.raises(SettingsError, match="resource groups are not supported"):
        synth(capacity="reservation", capacity_reservation_id="arn:aws:resource-groups:us-east-2:123456789012:group/g")


@pytest.mark.parametrize("capacity", ["probe", "none"])
def test_case_lt_open_odcr_not_consumed(synth: Synth, capacity: str) -> None:
    assert "CapacityReservationSpecification" not in _data(synth(capacity=capacity)["training"])


@pytest.mark.parametrize("length", [101, 64])
def test_case_cdk_cluster_name_101(synth: Synth, length: int) -> None:
    with pytest.raises(SettingsError, match=rf"100 characters.*63.*got {length} characters"):
        synth(cluster_name="c" * length)


def test_case_cdk_cluster_name_as_label(synth: Synth) -> None:
    def labels(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [str(v) for v in value.get("labels", {}).values()] if isinstance(value.get("labels"), dict) else []
            return own + [label for inner in value.values() for label in labels(inner)]
        return [label for inner in value for label in labels(inner)] if isinstance(value, list) else []

    objects = manifests(synth(cluster_name="c" * 63, ray_cluster_name="r" * 53)["training"])
    assert max(len(label) for label in labels(objects)) <= 63


def test_case_cdk_kubectl_layer_missing_or_skewed(default_app: dict[str, Any]) -> None:
    from eks_ray_train import Settings

    handlers = [
        f for f in of_type(default_app["eks"], "AWS::Lambda::Function").values() if f["Properties"].get("Layers")
    ]
    assert len(handlers) == 1
    assert "1.36" in json.dumps(of_type(default_app["eks"], "AWS::Lambda::LayerVersion"))
    (warning,) = Settings(kubectl_layer="v30").warnings()
    assert "v30" in warning and "1.36" in warning


def test_case_cdk_helm_release_name_53(default_app: dict[str, Any]) -> None:
    assert all(len(r["Properties"]["Release"]) <= 53 for r in of_type(default_app["eks"], CHART).values())


def test_case_cdk_two_operators_one_cluster(isolated: Any, repo: Path) -> None:
    from eks_ray_train import EfaGpuNodeGroup, KubeRayOperator, RayTrainCluster

    def build(stack: Any, cluster: Any) -> None:
        operator = KubeRayOperator(stack, "Operator", cluster=cluster)
        for n in (1, 2):
            nodes = EfaGpuNodeGroup(
                stack, f"N{n}", cluster=cluster, instance_type="g6.12xlarge", node_count=1, subnet_id="subnet-0123456789abcdef0"
            )  # fmt: skip
            RayTrainCluster(
                stack, f"R{n}", cluster=cluster, nodes=nodes, operator=operator, job_dir=repo / "job", name=f"ray-{n}", namespace=f"ray-{n}"
            )  # fmt: skip

    template = isolated(build)
    assert [r["Properties"]["Chart"] for r in of_type(template, CHART).values()] == ["kuberay-operator"]
    assert len(manifests(template, "RayCluster")) == 2


def test_case_kuberay_crd_annotation_too_long(default_app: dict[str, Any]) -> None:
    assert not [o for t in default_app.values() for o in manifests(t) if o["kind"] == "CustomResourceDefinition"]


def test_case_kuberay_cr_before_crd(isolated: Any, repo: Path) -> None:
    from eks_ray_train import EfaGpuNodeGroup, KubeRayOperator, RayTrainCluster

    def build(stack: Any, cluster: Any) -> None:
        nodes = EfaGpuNodeGroup(
            stack, "N", cluster=cluster, instance_type="g6.12xlarge", node_count=1, subnet_id="subnet-0123456789abcdef0"
        )  # fmt: skip
        operator = KubeRayOperator(stack, "Operator", cluster=cluster)
        RayTrainCluster(stack, "R", cluster=cluster, nodes=nodes, operator=operator, job_dir=repo / "job")

    template = isolated(build)
    name, _ = manifest_resource(template, "RayCluster")
    assert set(of_type(template, CHART)) <= depends_on(template, name)


def test_case_teardown_operator_before_raycluster(default_app: dict[str, Any], tmp_path: Path) -> None:
    # Within one stack as above; over stacks the assembly's dependency says that the operator's stack comes first.
    (name, _) = manifest_resource(default_app["training"], "RayCluster")
    assert "Fn::GetStackOutput" in json.dumps(default_app["training"]["Resources"][name]["Properties"]["ServiceToken"])


def test_case_kuberay_name_54(synth: Synth) -> None:
    with pytest.raises(SettingsError, match=r"1 to 53.*got 54 characters"):
        synth(ray_cluster_name="r" * 54)


def test_case_kuberay_gpu_taint(isolated: Any, repo: Path) -> None:
    from eks_ray_train import DevicePlugins, EfaGpuNodeGroup, RayTrainCluster

    def build(stack: Any, cluster: Any) -> None:
        DevicePlugins(stack, "P", cluster=cluster)
        nodes = EfaGpuNodeGroup(
            stack, "N", cluster=cluster, instance_type="g6.12xlarge", node_count=2, subnet_id="subnet-0123456789abcdef0",
            taints=[Taint(key="team", value="a")],
        )  # fmt: skip
        RayTrainCluster(stack, "R", cluster=cluster, nodes=nodes, job_dir=repo / "job")

    template = isolated(build)
    taints = {(t["Key"], t["Value"]) for t in _node_group(template)["Taints"]}
    assert taints == {("nvidia.com/gpu", "true"), ("team", "a")}
    tolerated = [
        _worker(template)["tolerations"],
        chart_values(template, "nvidia-device-plugin")["tolerations"],
        chart_values(template, "aws-efa-k8s-device-plugin")["tolerations"],
    ]
    assert all(taints <= {(t["key"], t.get("value")) for t in tolerations} for tolerations in tolerated)


def test_case_kuberay_shm(training: dict[str, Any]) -> None:
    worker = _worker(training)
    (mount,) = [m for m in worker["containers"][0]["volumeMounts"] if m["mountPath"] == "/dev/shm"]
    (volume,) = [v for v in worker["volumes"] if v["name"] == mount["name"]]
    size = int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi"))
    limit = int(worker["containers"][0]["resources"]["limits"]["memory"].removesuffix("Gi"))
    assert volume["emptyDir"]["medium"] == "Memory" and 8 <= size < limit


def test_case_kuberay_requests_not_limits(training: dict[str, Any]) -> None:
    resources = _worker(training)["containers"][0]["resources"]
    (ray,) = manifests(training, "RayCluster")
    groups = [ray["spec"]["headGroupSpec"], *ray["spec"]["workerGroupSpecs"]]
    assert resources["requests"] == resources["limits"]
    assert all(isinstance(v, str) for group in groups for v in group["rayStartParams"].values())


def test_case_kuberay_num_gpus_mismatch(synth: Synth, isolated: Any) -> None:
    from eks_ray_train import EfaGpuNodeGroup

    limits = _worker(synth(gpu_instance_type="g6.48xlarge")["training"])["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "8"
    with pytest.raises(SettingsError, match=r"gpus 4 does not match g6\.48xlarge, which has 8"):
        isolated(
            lambda stack, cluster: EfaGpuNodeGroup(
                stack, "G", cluster=cluster, instance_type="g6.48xlarge", node_count=1, subnet_id="subnet-1", gpus=4
            )
        )  # fmt: skip


def test_case_efa_hostpath_infiniband(training: dict[str, Any]) -> None:
    worker = _worker(training)
    assert not [v for v in worker["volumes"] if "hostPath" in v]
    assert worker["containers"][0]["securityContext"]["privileged"] is False


def test_case_efa_plugin_on_non_efa_nodes(default_app: dict[str, Any]) -> None:
    selector = chart_values(default_app["eks"], "aws-efa-k8s-device-plugin")["nodeSelector"]
    assert selector.items() <= _node_group(default_app["training"])["Labels"].items()
    assert not selector.items() <= _node_group(default_app["eks"])["Labels"].items()


def test_case_efa_auto_mode(default_app: dict[str, Any]) -> None:
    assert only(default_app["eks"], "AWS::EKS::Cluster")["Properties"]["ComputeConfig"] == {"Enabled": False}
    assert _node_group(default_app["training"])["AmiType"] == "AL2023_x86_64_NVIDIA"  # a managed node group


def test_case_env_socket_ifname_hostnetwork() -> None:
    assert transport_env()["NCCL_SOCKET_IFNAME"] == "eth0"
    assert transport_env(host_network=True)["NCCL_SOCKET_IFNAME"].startswith("^lo,docker")


def test_case_env_pod_identity_link() -> None:
    assert "pod-id-link0" in transport_env(host_network=True)["NCCL_SOCKET_IFNAME"]


def test_case_env_nccl_net_not_pinned(training: dict[str, Any]) -> None:
    # NCCL_NET stays free for a TCP comparison: the gate refuses a run over sockets (its own tests).
    names = {e["name"] for e in _worker(training)["containers"][0]["env"]}
    assert "NCCL_NET_PLUGIN" in names and "NCCL_NET" not in names


def test_case_teardown_sg_dependent_object(default_app: dict[str, Any]) -> None:
    training = default_app["training"]
    (name,) = of_type(training, "AWS::EKS::Nodegroup")
    kinds = ("AWS::EC2::SecurityGroup", "AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress")
    needed = {n for kind in kinds for n in of_type(training, kind)}
    assert len(needed) == 3 and needed <= depends_on(training, name)


def test_case_teardown_nodegroup_rollback_name(default_app: dict[str, Any]) -> None:
    for template in (default_app["eks"], default_app["training"]):
        assert all("NodegroupName" not in r["Properties"] for r in of_type(template, "AWS::EKS::Nodegroup").values())
        templates = of_type(template, "AWS::EC2::LaunchTemplate").values()
        assert all("LaunchTemplateName" not in r["Properties"] for r in templates)


def test_every_case_of_these_areas_is_a_test_here(shared_dir: Path) -> None:
    here = {name.removeprefix("test_case_") for name, _ in inspect.getmembers(_module(), inspect.isfunction)}
    cases = [json.loads(line) for line in (shared_dir / "cases" / "infra.jsonl").read_text().splitlines()]
    mine = {
        c["id"].replace("-", "_")
        for c in cases
        if c["area"] in AREAS and {"template", "synth"} & set(c["test"].split("+"))
    }
    assert mine - here == set()


def _module() -> Any:
    import sys

    return sys.modules[__name__]
