"""EfaGpuNodeGroup: what its launch template and node group say, for one type in depth and for the whole catalogue."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from aws_cdk import App, Stack, Token
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks

from eks_ray_train import DevicePlugins, EfaGpuNodeGroup, SettingsError, Taint
from eks_ray_train.instances import CATALOGUE
from tests.synth.template_reading import chart_values, depends_on, launch_template_of, of_type, only

MODES: tuple[Any, ...] = ("probe", "hold", "reservation", "block", "none")
GIVEN = "cr-0123456789abcdef0"
Isolated = Callable[[Callable[[Any, Any], Any]], dict[str, Any]]


def _group(stack: Any, cluster: Any, id: str = "Gpu", **changes: Any) -> EfaGpuNodeGroup:
    told = {"instance_type": "p5.48xlarge", "node_count": 2, "subnets": cluster.vpc.private_subnets[:1], **changes}
    return EfaGpuNodeGroup(stack, id, cluster=cluster, **told)


@pytest.fixture(scope="module")
def p5(isolated: Isolated) -> dict[str, Any]:
    return isolated(_group)


@pytest.fixture(scope="module")
def p5_data(p5: dict[str, Any]) -> dict[str, Any]:
    return launch_template_of(p5, only(p5, "AWS::EKS::Nodegroup"))


def test_every_interface_lists_the_efa_group_and_the_cluster_group(p5: dict[str, Any], p5_data: dict[str, Any]) -> None:
    groups = [interface["Groups"] for interface in p5_data["NetworkInterfaces"]]
    own = next(iter(n for n in of_type(p5, "AWS::EC2::SecurityGroup") if n.startswith("GpuEfa")))
    assert len(groups) == 33
    assert all(g[0] == {"Fn::GetAtt": [own, "GroupId"]} for g in groups)
    assert all(g[1]["Fn::GetAtt"][1] == "ClusterSecurityGroupId" for g in groups)


def test_the_template_names_no_groups_no_subnet_and_no_profile(p5_data: dict[str, Any]) -> None:
    assert not {"SecurityGroupIds", "IamInstanceProfile", "ImageId", "KeyName"} & set(p5_data)
    assert all("SubnetId" not in interface for interface in p5_data["NetworkInterfaces"])


def test_interfaces_go_with_their_instance(p5_data: dict[str, Any]) -> None:
    assert {i["DeleteOnTermination"] for i in p5_data["NetworkInterfaces"]} == {True}


def test_the_self_rules_in_both_directions_reach_the_template(p5: dict[str, Any]) -> None:
    ingress, egress = only(p5, "AWS::EC2::SecurityGroupIngress"), only(p5, "AWS::EC2::SecurityGroupEgress")
    assert ingress["Properties"]["IpProtocol"] == egress["Properties"]["IpProtocol"] == "-1"
    assert ingress["Properties"]["GroupId"] == ingress["Properties"]["SourceSecurityGroupId"]
    assert egress["Properties"]["GroupId"] == egress["Properties"]["DestinationSecurityGroupId"]


def test_the_nodes_wait_for_both_rules_so_that_the_rules_are_deleted_after_them(p5: dict[str, Any]) -> None:
    (node_group,) = of_type(p5, "AWS::EKS::Nodegroup")
    rules = {*of_type(p5, "AWS::EC2::SecurityGroupIngress"), *of_type(p5, "AWS::EC2::SecurityGroupEgress")}
    assert rules <= depends_on(p5, node_group)


def test_the_root_volume_is_large_and_encrypted_and_imds_is_version_two_with_one_hop(p5_data: dict[str, Any]) -> None:
    (root,) = p5_data["BlockDeviceMappings"]
    assert root["DeviceName"] == "/dev/xvda"
    assert root["Ebs"] == {
        "DeleteOnTermination": True, "Encrypted": True, "Throughput": 500, "VolumeSize": 200, "VolumeType": "gp3",
    }  # fmt: skip
    assert p5_data["MetadataOptions"] == {"HttpPutResponseHopLimit": 1, "HttpTokens": "required"}


def test_the_instance_type_is_in_the_template_and_nowhere_else(p5: dict[str, Any], p5_data: dict[str, Any]) -> None:
    properties = only(p5, "AWS::EKS::Nodegroup")["Properties"]
    assert p5_data["InstanceType"] == "p5.48xlarge"
    assert not {"InstanceTypes", "DiskSize", "RemoteAccess", "NodegroupName"} & set(properties)


def test_updates_never_surge_never_force_and_follow_the_template_by_number(p5: dict[str, Any]) -> None:
    properties = only(p5, "AWS::EKS::Nodegroup")["Properties"]
    assert properties["UpdateConfig"] == {"MaxUnavailable": 1, "UpdateStrategy": "MINIMAL"}
    assert properties["ForceUpdateEnabled"] is False
    assert properties["LaunchTemplate"]["Version"]["Fn::GetAtt"][1] == "LatestVersionNumber"
    assert properties["AmiType"] == "AL2023_x86_64_NVIDIA"


def test_repair_is_on_but_takes_no_action_for_faults_of_the_application(p5: dict[str, Any]) -> None:
    repair = only(p5, "AWS::EKS::Nodegroup")["Properties"]["NodeRepairConfig"]
    assert repair["Enabled"] is True and repair["MaxParallelNodesRepairedCount"] == 1
    assert {o["RepairAction"] for o in repair["NodeRepairConfigOverrides"]} == {"NoAction"}


def test_nodes_are_labelled_for_both_device_plugins_and_tainted(p5: dict[str, Any]) -> None:
    properties = only(p5, "AWS::EKS::Nodegroup")["Properties"]
    assert properties["Labels"] == {"eks-ray-train/role": "gpu", "nvidia.com/gpu.present": "true"}
    assert properties["Taints"] == [{"Key": "nvidia.com/gpu", "Value": "true", "Effect": "NO_SCHEDULE"}]


def test_user_data_is_one_nodeadm_part_with_raid0_where_the_type_has_nvme(p5_data: dict[str, Any]) -> None:
    text = base64.b64decode(p5_data["UserData"]).decode()
    head, _, body = text.partition("Content-Type: application/node.eks.aws")
    assert head.startswith("MIME-Version: 1.0")
    config = json.loads(body.rpartition("\n--")[0])
    assert config["kind"] == "NodeConfig"
    assert config["spec"]["instance"]["localStorage"]["strategy"] == "RAID0"
    assert config["spec"]["featureGates"] == {"FastImagePull": True}


def test_instances_volumes_and_interfaces_carry_a_name(p5_data: dict[str, Any]) -> None:
    kinds = {spec["ResourceType"]: spec["Tags"][0]["Key"] for spec in p5_data["TagSpecifications"]}
    assert kinds == {"instance": "Name", "volume": "Name", "network-interface": "Name"}


@pytest.mark.parametrize("rules", [True, False])
def test_an_imported_group_gets_explicit_self_rules_unless_told_otherwise(isolated: Isolated, rules: bool) -> None:
    def build(stack: Any, cluster: Any) -> None:
        imported = ec2.SecurityGroup.from_security_group_id(stack, "Theirs", "sg-0123456789abcdef0")
        _group(stack, cluster, security_group=imported, manage_security_group_rules=rules)

    template = isolated(build)
    egress = of_type(template, "AWS::EC2::SecurityGroupEgress").values()
    ingress = of_type(template, "AWS::EC2::SecurityGroupIngress").values()
    expected = [("sg-0123456789abcdef0", "sg-0123456789abcdef0")] if rules else []
    assert [(e["Properties"]["GroupId"], e["Properties"]["DestinationSecurityGroupId"]) for e in egress] == expected
    assert [(i["Properties"]["GroupId"], i["Properties"]["SourceSecurityGroupId"]) for i in ingress] == expected
    data = launch_template_of(template, only(template, "AWS::EKS::Nodegroup"))
    assert all(i["Groups"][0] == "sg-0123456789abcdef0" and len(i["Groups"]) == 2 for i in data["NetworkInterfaces"])


def test_a_group_of_the_user_that_allows_all_outbound_traffic_still_gets_the_self_egress(isolated: Isolated) -> None:
    template = isolated(
        lambda stack, cluster: _group(
            stack, cluster, security_group=ec2.SecurityGroup(stack, "Mine", vpc=cluster.vpc, allow_all_outbound=True)
        )
    )
    egress = only(template, "AWS::EC2::SecurityGroupEgress")["Properties"]
    assert egress["GroupId"] == egress["DestinationSecurityGroupId"]


def test_a_subnet_known_only_at_deploy_is_used_as_it_is(isolated: Isolated) -> None:
    chosen = Token.as_string({"Fn::GetAtt": ["Claim", "SubnetId"]})
    template = isolated(lambda stack, cluster: _group(stack, cluster, subnets=(), subnet_id=chosen))
    assert only(template, "AWS::EKS::Nodegroup")["Properties"]["Subnets"] == [{"Fn::GetAtt": ["Claim", "SubnetId"]}]


def test_bottlerocket_puts_the_images_on_its_data_disk_and_local_nvme(isolated: Isolated) -> None:
    template = isolated(lambda stack, cluster: _group(stack, cluster, ami_family="bottlerocket"))
    node_group = only(template, "AWS::EKS::Nodegroup")
    data = launch_template_of(template, node_group)
    assert node_group["Properties"]["AmiType"] == "BOTTLEROCKET_x86_64_NVIDIA"
    sizes = {m["DeviceName"]: m["Ebs"]["VolumeSize"] for m in data["BlockDeviceMappings"]}
    assert sizes == {"/dev/xvda": 8, "/dev/xvdb": 200}
    assert "ephemeral-storage" in base64.b64decode(data["UserData"]).decode()


def test_a_placement_group_exists_only_where_asked(p5: dict[str, Any], isolated: Isolated) -> None:
    template = isolated(lambda stack, cluster: _group(stack, cluster, placement_group=True))
    (name,) = of_type(template, "AWS::EC2::PlacementGroup")
    data = launch_template_of(template, only(template, "AWS::EKS::Nodegroup"))
    assert data["Placement"] == {"GroupName": {"Ref": name}}
    assert not of_type(p5, "AWS::EC2::PlacementGroup")


def test_further_taints_reach_the_nodes_and_both_charts(isolated: Isolated) -> None:
    def build(stack: Any, cluster: Any) -> None:
        DevicePlugins(stack, "Plugins", cluster=cluster)  # before the node group, and not handed to it
        _group(stack, cluster, taints=[Taint(key="team", value="a")])

    template = isolated(build)
    taints = only(template, "AWS::EKS::Nodegroup")["Properties"]["Taints"]
    assert {"Key": "team", "Value": "a", "Effect": "NO_SCHEDULE"} in taints
    for chart in ("nvidia-device-plugin", "aws-efa-k8s-device-plugin"):
        keys = {t["key"] for t in chart_values(template, chart)["tolerations"]}
        assert {"team", "nvidia.com/gpu"} <= keys


def test_a_mirror_in_ecr_lets_the_nodes_fill_its_cache(isolated: Isolated) -> None:
    mirror = "123456789012.dkr.ecr.us-east-2.amazonaws.com/public"
    template = isolated(lambda stack, cluster: _group(stack, cluster, container_mirror=mirror))
    text = json.dumps(of_type(template, "AWS::IAM::Policy"))
    assert "ecr:BatchImportUpstreamImage" in text and "repository/public/*" in text


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"instance_type": "g6.2xlarge"}, "g6.8xlarge"),
    ({"node_count": 0}, "node_count must be at least 1, got 0"),
    ({"disk_size_gib": 50}, "disk_size_gib must be at least 100"),
    ({"gpus": 4}, "gpus 4 does not match p5.48xlarge, which has 8"),
    ({"subnets": ()}, "subnets"),
    ({"subnet_id": "subnet-0123456789abcdef0"}, "not both"),
    ({"capacity": "reservation"}, "needs capacity_reservation_id"),
    ({"capacity_reservation_id": GIVEN}, "capacity is none"),
    (
        {"capacity": "reservation", "capacity_reservation_id": "arn:aws:resource-groups:us-east-2:1:group/g"},
        "groups are not",
    ),
    (
        {"capacity": "block", "capacity_reservation_id": GIVEN, "instance_type": "g6.12xlarge"},
        "no Capacity Blocks exist",
    ),
    ({"placement_group": True, "capacity": "reservation", "capacity_reservation_id": GIVEN}, "placement_group"),
    ({"instance_type": "p6-b300.48xlarge"}, "accept_unverified_layout"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[m for _, m in WRONG])
def test_a_wrong_property_is_an_error_before_any_resource_exists(changes: dict[str, Any], message: str) -> None:
    stack = Stack(App(), "S")
    vpc = ec2.Vpc.from_vpc_attributes(
        stack,
        "Vpc",
        vpc_id="vpc-0123456789abcdef0",
        availability_zones=["us-east-2a"],
        private_subnet_ids=["subnet-0123456789abcdef0"],
    )
    cluster = eks.Cluster.from_cluster_attributes(
        stack, "Cluster", cluster_name="c", vpc=vpc, cluster_security_group_id="sg-0123456789abcdef0"
    )
    with pytest.raises(SettingsError, match=message.replace("(", r"\(")):
        _group(stack, cluster, **changes)
    assert stack.node.try_find_child("Gpu") is None


def test_subnets_of_two_zones_are_an_error_that_names_them(isolated: Isolated) -> None:
    with pytest.raises(SettingsError, match="exactly one subnet, got 2 in us-east-2a, us-east-2b"):
        isolated(lambda stack, cluster: _group(stack, cluster, subnets=cluster.vpc.private_subnets))


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every type of the catalogue in every capacity mode: one stack a mode."""
    out = tmp_path_factory.mktemp("matrix")
    app = App(outdir=str(out))
    for mode in MODES:
        stack = Stack(app, mode)
        vpc = ec2.Vpc.from_vpc_attributes(
            stack,
            "Vpc",
            vpc_id="vpc-0123456789abcdef0",
            availability_zones=["us-east-2a"],
            private_subnet_ids=["subnet-0123456789abcdef0"],
        )
        cluster = eks.Cluster.from_cluster_attributes(
            stack, "Cluster", cluster_name="c", vpc=vpc, cluster_security_group_id="sg-0123456789abcdef0"
        )
        for name, row in CATALOGUE.items():
            if mode == "block" and not row.capacity_block:
                continue
            given = GIVEN if mode in ("hold", "reservation", "block") else None
            _group(
                stack, cluster, name, instance_type=name, capacity=mode, capacity_reservation_id=given, accept_unverified_layout=True
            )  # fmt: skip
    app.synth()
    return {mode: json.loads((out / f"{mode}.template.json").read_text()) for mode in MODES}


@pytest.mark.parametrize("mode", MODES)
def test_every_type_has_ena_on_the_first_card_and_its_maximum_of_efa_interfaces(
    matrix: dict[str, dict[str, Any]], mode: str
) -> None:
    for node_group in of_type(matrix[mode], "AWS::EKS::Nodegroup").values():
        data = launch_template_of(matrix[mode], node_group)
        row = CATALOGUE[data["InstanceType"]]
        interfaces = data["NetworkInterfaces"]
        places = [(i["NetworkCardIndex"], i["DeviceIndex"]) for i in interfaces]
        assert len(set(places)) == len(places)
        assert interfaces[0]["InterfaceType"] == "interface" and places[0] == (0, 0)
        efa = [i for i in interfaces if i["InterfaceType"] == "efa-only"]
        assert len(efa) == len(interfaces) - 1 == row.efa_interfaces == row.worker_pod.efa_interfaces
        assert {i["NetworkCardIndex"] for i in interfaces} == set(range(row.network_cards))


@pytest.mark.parametrize("mode", MODES)
def test_reservations_are_targets_and_blocks_say_so_twice(matrix: dict[str, dict[str, Any]], mode: str) -> None:
    node_groups = of_type(matrix[mode], "AWS::EKS::Nodegroup").values()
    assert node_groups
    for node_group in node_groups:
        data = launch_template_of(matrix[mode], node_group)
        expected = {"CapacityReservationTarget": {"CapacityReservationId": GIVEN}}
        assert data.get("CapacityReservationSpecification") == (
            expected if mode in ("hold", "reservation", "block") else None
        )
        assert data.get("InstanceMarketOptions") == ({"MarketType": "capacity-block"} if mode == "block" else None)
        assert node_group["Properties"]["CapacityType"] == ("CAPACITY_BLOCK" if mode == "block" else "ON_DEMAND")


def test_a_wrong_type_is_told_with_everything_else(isolated: Isolated) -> None:
    def build(stack: Any, cluster: Any) -> None:
        with pytest.raises(SettingsError) as caught:
            _group(stack, cluster, instance_type="g6.2xlarge", node_count=0, disk_size_gib=5, subnets=cluster.vpc.private_subnets[:2])
        problems = caught.value.problems
        assert [next(word for word in ("g6.2xlarge", "node_count", "disk_size_gib", "exactly one subnet") if word in p) for p in problems] == [
            "g6.2xlarge", "node_count", "disk_size_gib", "exactly one subnet",
        ]  # fmt: skip

    isolated(build)
