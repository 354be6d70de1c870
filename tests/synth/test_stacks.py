"""The three stacks with default settings, and the variants that settings choose."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from aws_cdk import Stack

from eks_ray_train.errors import SettingsError
from tests.synth.template_reading import (
    CHART,
    MANIFEST,
    depends_on,
    launch_template_of,
    manifest_resource,
    manifests,
    of_type,
    only,
    text_of,
)

Synth = Callable[..., dict[str, dict[str, Any]]]
ROLE = "arn:aws:iam::123456789012:role/aws-reserved/sso.amazonaws.com/AWSReservedSSO_Admin_0123456789abcdef"


@pytest.fixture(scope="module")
def network(default_app: dict[str, Any]) -> dict[str, Any]:
    return dict(default_app["network"])


@pytest.fixture(scope="module")
def eks(default_app: dict[str, Any]) -> dict[str, Any]:
    return dict(default_app["eks"])


@pytest.fixture(scope="module")
def training(default_app: dict[str, Any]) -> dict[str, Any]:
    return dict(default_app["training"])


# --- network


def test_the_network_has_one_nat_gateway_and_s3s_gateway_endpoint(network: dict[str, Any]) -> None:
    only(network, "AWS::EC2::NatGateway")
    assert only(network, "AWS::EC2::VPCEndpoint")["Properties"].get("VpcEndpointType", "Gateway") == "Gateway"


def test_without_zones_the_regions_first_two_are_taken_without_a_look_up(network: dict[str, Any]) -> None:
    zones = [s["Properties"]["AvailabilityZone"] for s in of_type(network, "AWS::EC2::Subnet").values()]
    assert zones == [{"Fn::Select": [n, {"Fn::GetAZs": ""}]} for n in (0, 1, 0, 1)]


def test_named_zones_are_taken_literally(synth: Synth) -> None:
    template = synth(region="us-east-2", availability_zones=("us-east-2b", "us-east-2c"))["network"]
    zones = {s["Properties"]["AvailabilityZone"] for s in of_type(template, "AWS::EC2::Subnet").values()}
    assert zones == {"us-east-2b", "us-east-2c"}


def test_the_capacity_probe_waits_for_nothing_of_the_network(network: dict[str, Any]) -> None:
    (probe,) = of_type(network, "Custom::CapacityProbe")
    waits = {network["Resources"][name]["Type"] for name in depends_on(network, probe)}
    assert not {kind for kind in waits if kind.startswith("AWS::EC2::")}


# --- cluster


def test_the_cluster_has_no_auto_mode_and_grants_nothing_to_its_creator(eks: dict[str, Any]) -> None:
    properties = only(eks, "AWS::EKS::Cluster")["Properties"]
    assert properties["ComputeConfig"] == {"Enabled": False}
    assert properties["AccessConfig"] == {
        "AuthenticationMode": "API", "BootstrapClusterCreatorAdminPermissions": False,
    }  # fmt: skip
    assert properties["Version"] == "1.36"


def test_secrets_are_encrypted_and_all_control_plane_logs_are_on(eks: dict[str, Any]) -> None:
    properties = only(eks, "AWS::EKS::Cluster")["Properties"]
    assert properties["EncryptionConfig"][0]["Resources"] == ["secrets"]
    types = {t["Type"] for t in properties["Logging"]["ClusterLogging"]["EnabledTypes"]}
    assert types == {"api", "audit", "authenticator", "controllerManager", "scheduler"}


def test_the_endpoint_is_private_unless_networks_are_named(eks: dict[str, Any], synth: Synth) -> None:
    closed = only(eks, "AWS::EKS::Cluster")["Properties"]["ResourcesVpcConfig"]
    assert (closed["EndpointPublicAccess"], closed["EndpointPrivateAccess"]) == (False, True)
    opened = synth(public_access_cidrs=("203.0.113.7/32",))["eks"]
    config = only(opened, "AWS::EKS::Cluster")["Properties"]["ResourcesVpcConfig"]
    assert config["PublicAccessCidrs"] == ["203.0.113.7/32"] and config["EndpointPrivateAccess"] is True


def test_admin_principals_become_access_entries_that_a_changed_order_does_not_move(synth: Synth) -> None:
    other = "arn:aws:iam::123456789012:user/ops"

    def entries(*arns: str) -> dict[str, Any]:
        found = of_type(synth(admin_principals=arns)["eks"], "AWS::EKS::AccessEntry")
        return {name: r["Properties"]["PrincipalArn"] for name, r in found.items()}

    assert entries(ROLE, other) == entries(other, ROLE)
    assert {ROLE, other} <= {p for p in entries(ROLE, other).values() if isinstance(p, str)}


def test_deletion_protection_and_upgrade_policy_reach_the_cluster(synth: Synth) -> None:
    template = synth(deletion_protection=True, upgrade_policy="extended")["eks"]
    properties = only(template, "AWS::EKS::Cluster")["Properties"]
    assert properties["DeletionProtection"] is True
    assert properties["UpgradePolicy"] == {"SupportType": "EXTENDED"}


def test_the_clusters_log_group_is_ours_and_goes_with_the_stack(eks: dict[str, Any]) -> None:
    (cluster,) = of_type(eks, "AWS::EKS::Cluster")
    groups = of_type(eks, "AWS::Logs::LogGroup")
    (ours,) = [n for n, g in groups.items() if g["Properties"].get("LogGroupName") == "/aws/eks/eks-ray-train/cluster"]
    assert ours in depends_on(eks, cluster)
    assert {g["DeletionPolicy"] for g in groups.values()} == {"Delete"}


def test_the_kubectl_handler_runs_in_the_private_subnets_with_the_clusters_layer(eks: dict[str, Any]) -> None:
    handlers = [f for f in of_type(eks, "AWS::Lambda::Function").values() if f["Properties"].get("Layers")]
    assert len(handlers) == 1 and "VpcConfig" in handlers[0]["Properties"]
    assert "1.36" in json.dumps(of_type(eks, "AWS::Lambda::LayerVersion"))


def test_system_nodes_hold_a_head_beside_the_operator(eks: dict[str, Any]) -> None:
    node_group = only(eks, "AWS::EKS::Nodegroup")["Properties"]
    assert node_group["Labels"] == {"eks-ray-train/role": "system"}
    assert node_group["ScalingConfig"]["DesiredSize"] >= 1 and "Taints" not in node_group


def test_an_existing_cluster_gets_our_nodes_and_charts_but_no_control_plane_and_no_basic_addons(synth: Synth) -> None:
    templates = synth(existing_cluster=EXISTING)
    assert not of_type(templates["network"], "AWS::EC2::VPC")
    assert not of_type(templates["eks"], "AWS::EKS::Cluster") and not of_type(templates["eks"], "AWS::EKS::Addon")
    assert len(of_type(templates["eks"], CHART)) == 3
    data = launch_template_of(templates["training"], only(templates["training"], "AWS::EKS::Nodegroup"))
    assert "sg-0123456789abcdef0" in data["NetworkInterfaces"][0]["Groups"]


EXISTING = {
    "name": "theirs",
    "kubectl_role_arn": "arn:aws:iam::123456789012:role/kubectl",
    "security_group_id": "sg-0123456789abcdef0",
    "vpc_id": "vpc-0123456789abcdef0",
    "availability_zones": ["us-east-2a", "us-east-2b"],
    "private_subnet_ids": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
}


def test_an_existing_vpc_without_account_and_region_is_an_error_that_says_so(synth: Synth) -> None:
    with pytest.raises(SettingsError, match="needs an account and a region"):
        synth(existing_vpc_id="vpc-0123456789abcdef0")


# --- training


def test_the_claims_zone_reaches_the_node_group_inside_the_stack(training: dict[str, Any]) -> None:
    (claim,) = of_type(training, "Custom::CapacityClaim")
    node_group = only(training, "AWS::EKS::Nodegroup")["Properties"]
    assert node_group["Subnets"] == [{"Fn::GetAtt": [claim, "SubnetId"]}]
    assert node_group["ScalingConfig"]["DesiredSize"] == {"Fn::GetAtt": [claim, "DesiredNodes"]}


def test_no_stack_exports_anything(default_app: dict[str, Any]) -> None:
    text = json.dumps(default_app)
    assert "Fn::ImportValue" not in text and '"Export"' not in text
    assert "Fn::GetStackOutput" in text


def test_no_security_group_rule_refers_to_a_group_of_another_stack(default_app: dict[str, Any]) -> None:
    for template in default_app.values():
        rules = {
            **of_type(template, "AWS::EC2::SecurityGroupIngress"),
            **of_type(template, "AWS::EC2::SecurityGroupEgress"),
        }
        assert "GetStackOutput" not in json.dumps(rules)


def test_hold_launches_into_the_reservation_that_the_claim_made(synth: Synth) -> None:
    template = synth(capacity="hold")["training"]
    (claim,) = of_type(template, "Custom::CapacityClaim")
    data = launch_template_of(template, only(template, "AWS::EKS::Nodegroup"))
    target = data["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": {"Fn::GetAtt": [claim, "ReservationId"]}}


def test_the_spending_limit_calls_eks_directly_at_the_claims_times(training: dict[str, Any]) -> None:
    (claim,) = of_type(training, "Custom::CapacityClaim")
    schedules = of_type(training, "AWS::Scheduler::Schedule").values()
    times = {s["Properties"]["ScheduleExpression"]["Fn::Join"][1][1]["Fn::GetAtt"][1] for s in schedules}
    assert times == {"LimitAt", "DrainAt"} and claim in json.dumps(list(schedules))
    for schedule in schedules:
        target = schedule["Properties"]["Target"]
        assert text_of(target["Arn"]).endswith(":scheduler:::aws-sdk:eks:updateNodegroupConfig")
        assert json.loads(text_of(target["Input"]))["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 0}


def test_without_a_spending_limit_nothing_is_scheduled(synth: Synth) -> None:
    assert not of_type(synth(max_hours=0)["training"], "AWS::Scheduler::Schedule")


def test_the_raycluster_is_applied_last_and_deleted_first(training: dict[str, Any]) -> None:
    name, _ = manifest_resource(training, "RayCluster")
    waits = depends_on(training, name)
    assert set(of_type(training, "AWS::EKS::Nodegroup")) <= waits
    assert set(of_type(training, MANIFEST)) - {name} <= waits
    assert set(of_type(training, "AWS::EKS::PodIdentityAssociation")) <= waits
    assert not any(name in depends_on(training, other) for other in training["Resources"])


def test_the_training_stack_is_deployed_after_the_stack_with_the_operator(tmp_path: Any) -> None:
    from aws_cdk import App, Environment

    import app as application
    from eks_ray_train import Settings

    cdk = App(context={"aws:cdk:disable-asset-staging": True}, outdir=str(tmp_path))
    application.build(cdk, Settings(), Environment())
    cdk.synth()
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert "EksRayTrainCluster" in manifest["artifacts"]["EksRayTrainTraining"]["dependencies"]


def test_warnings_of_settings_become_annotations_and_the_default_has_none(tmp_path: Any) -> None:
    from aws_cdk import App, Environment
    from aws_cdk.assertions import Annotations, Match

    import app as application
    from eks_ray_train import Settings

    def warnings(name: str, settings: Settings) -> list[str]:
        cdk = App(context={"aws:cdk:disable-asset-staging": True}, outdir=str(tmp_path / name))
        application.build(cdk, settings, Environment())
        stacks = [stack for stack in cdk.node.children if isinstance(stack, Stack)]
        found = [w for stack in stacks for w in Annotations.from_stack(stack).find_warning("*", Match.any_value())]
        return [str(w.entry.data) for w in found]

    assert warnings("plain", Settings()) == []
    (warning,) = warnings("skewed", Settings(kubectl_layer="v30"))
    assert "v30" in warning and "skew" in warning


def test_workers_take_the_whole_node_and_tolerate_its_taints(training: dict[str, Any]) -> None:
    (ray,) = manifests(training, "RayCluster")
    worker = ray["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    limits = worker["containers"][0]["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == ("4", "1")
    keys = {t["Key"] for t in only(training, "AWS::EKS::Nodegroup")["Properties"]["Taints"]}
    assert keys <= {t["key"] for t in worker["tolerations"]}
    assert worker["nodeSelector"] == {"eks-ray-train/role": "gpu", "eks.amazonaws.com/nodegroup": "<deploy>"}


def test_the_head_runs_on_the_system_nodes(training: dict[str, Any]) -> None:
    (ray,) = manifests(training, "RayCluster")
    assert ray["spec"]["headGroupSpec"]["template"]["spec"]["nodeSelector"] == {"eks-ray-train/role": "system"}


def test_pods_run_as_a_service_account_that_pod_identity_knows(training: dict[str, Any]) -> None:
    association = only(training, "AWS::EKS::PodIdentityAssociation")["Properties"]
    (account,) = manifests(training, "ServiceAccount")
    (ray,) = manifests(training, "RayCluster")
    assert association["ServiceAccount"] == account["metadata"]["name"]
    assert association["Namespace"] == account["metadata"]["namespace"] == ray["metadata"]["namespace"]
    pods = [ray["spec"]["headGroupSpec"], *ray["spec"]["workerGroupSpecs"]]
    assert {p["template"]["spec"]["serviceAccountName"] for p in pods} == {account["metadata"]["name"]}


def test_the_jobs_role_reaches_its_own_prefix_only(training: dict[str, Any]) -> None:
    (name,) = [n for n in of_type(training, "AWS::IAM::Policy") if n.startswith("RayIdentity")]
    statements = training["Resources"][name]["Properties"]["PolicyDocument"]["Statement"]
    objects = [s for s in statements if "s3:PutObject" in s["Action"]]
    assert [text_of(s["Resource"]) for s in objects] == ["<deploy>/ray-train/*"]
    assert all(s["Resource"] != "*" for s in statements)


def test_a_kept_bucket_is_retained_and_tagged_and_any_bucket_is_encrypted_and_private(
    training: dict[str, Any], synth: Synth
) -> None:
    kept = only(training, "AWS::S3::Bucket")
    assert kept["DeletionPolicy"] == "Retain" and {"Key": "keep", "Value": "true"} in kept["Properties"]["Tags"]
    assert set(kept["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}
    assert "AbortIncompleteMultipartUpload" in json.dumps(kept["Properties"]["LifecycleConfiguration"])
    gone = only(synth(keep_storage=False)["training"], "AWS::S3::Bucket")
    assert gone["DeletionPolicy"] == "Delete"
    assert "BucketEncryption" in kept["Properties"] and "BucketEncryption" in gone["Properties"]


def test_lustre_is_mounted_exported_to_the_bucket_and_deleted_with_the_stack(synth: Synth) -> None:
    templates = synth(storage="fsx")
    training = templates["training"]
    file_system = only(training, "AWS::FSx::FileSystem")
    assert file_system.get("DeletionPolicy", "Delete") == "Delete"
    export = only(training, "AWS::FSx::DataRepositoryAssociation")["Properties"]
    assert "NEW" in export["S3"]["AutoExportPolicy"]["Events"]
    (ray,) = manifests(training, "RayCluster")
    (claim,) = [c for c in manifests(training, "PersistentVolumeClaim") if c["metadata"]["name"] == "ray-train-fsx"]
    for pods in (ray["spec"]["headGroupSpec"], ray["spec"]["workerGroupSpecs"][0]):
        volumes = json.dumps(pods["template"]["spec"]["volumes"])
        assert claim["metadata"]["name"] in volumes
    assert '"/fsx/ray-train"' in json.dumps(ray)
    addons = [r["Properties"]["AddonName"] for r in of_type(templates["eks"], "AWS::EKS::Addon").values()]
    assert "aws-fsx-csi-driver" in addons


def test_the_tokens_secret_is_readable_by_the_job_and_its_value_is_in_no_template(synth: Synth) -> None:
    secret = "arn:aws:secretsmanager:us-east-2:123456789012:secret:hf-AbCdEf"
    training = synth(hf_token_secret_arn=secret)["training"]
    policies = json.dumps(of_type(training, "AWS::IAM::Policy"))
    assert "secretsmanager:GetSecretValue" in policies and secret in policies
    (ray,) = manifests(training, "RayCluster")
    environment = ray["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "HF_TOKEN_SECRET_ARN", "value": secret} in environment
    assert "resolve:secretsmanager" not in json.dumps(training)


def test_a_mirror_replaces_the_public_registry(synth: Synth) -> None:
    mirror = "123456789012.dkr.ecr.us-east-2.amazonaws.com/public"
    (ray,) = manifests(synth(container_mirror=mirror)["training"], "RayCluster")
    image = ray["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]
    assert image == f"{mirror}/deep-learning-containers/ray:train-ml-cuda-v1.1"


def test_outputs_say_price_limit_zone_and_commands(training: dict[str, Any]) -> None:
    outputs = training["Outputs"]
    assert outputs["GpuNodesUsdPerHour"]["Value"] == "9.20"
    assert {"ClusterName", "SpendingLimitAt", "GpuZone", "SubmitCommand", "StoragePath"} <= set(outputs)


@pytest.mark.parametrize(
    ("change", "may_differ"),
    [
        ({"gpu_node_count": 3}, {"Custom::CapacityClaim", "Custom::SpendingLimit", "AWS::EKS::Nodegroup", MANIFEST}),
        ({"gpu_instance_type": "g6.24xlarge"},
         {"Custom::CapacityClaim", "AWS::IAM::Policy", "AWS::EC2::LaunchTemplate", "AWS::EKS::Nodegroup", MANIFEST}),
        ({"dlc_image": "public.ecr.aws/deep-learning-containers/ray:train-ml-cuda-v1.1.0"}, {MANIFEST}),
    ],
    ids=["node count", "instance type", "image"],
)  # fmt: skip
def test_a_small_change_changes_only_what_it_must(
    default_app: dict[str, Any], synth: Synth, change: dict[str, Any], may_differ: set[str]
) -> None:
    changed = synth(**change)
    assert changed["eks"] == default_app["eks"]
    before, after = default_app["training"]["Resources"], changed["training"]["Resources"]
    assert set(before) == set(after)
    assert {r["Type"] for name, r in after.items() if r != before[name]} <= may_differ


def test_another_node_count_restarts_no_pod(default_app: dict[str, Any], synth: Synth) -> None:
    def templates(app: dict[str, Any]) -> list[Any]:
        (ray,) = manifests(app["training"], "RayCluster")
        groups = [ray["spec"]["headGroupSpec"], *ray["spec"]["workerGroupSpecs"]]
        return [group["template"] for group in groups]

    assert templates(default_app) == templates(synth(gpu_node_count=3))
