"""What roles of the application may do, and where the nodes keep what they download."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from eks_ray_train import SettingsError
from eks_ray_train.data_locations import data_location
from tests.synth.template_reading import depends_on, launch_template_of, manifest_resource, manifests, of_type, only

Synth = Callable[..., dict[str, dict[str, Any]]]
MIRROR = "210987654321.dkr.ecr.us-west-2.amazonaws.com/public"


def statements(template: dict[str, Any], action: str) -> list[dict[str, Any]]:
    """Statements of all policies that allow ``action``."""
    found = []
    for policy in of_type(template, "AWS::IAM::Policy").values():
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
            actions = statement["Action"]
            if action in ([actions] if isinstance(actions, str) else actions):
                found.append(statement)
    return found


def resources(statement: dict[str, Any]) -> list[Any]:
    value = statement["Resource"]
    return [_plain(v) for v in (value if isinstance(value, list) else [value])]


def _plain(value: Any) -> Any:
    """``Fn::Join`` of text and the partition as text."""
    if isinstance(value, dict) and "Fn::Join" in value:
        separator, parts = value["Fn::Join"]
        return separator.join("aws" if part == {"Ref": "AWS::Partition"} else str(_plain(part)) for part in parts)
    return value


# ---- the mirror ------------------------------------------------------------------------------------------------------
def test_nodes_may_fill_the_pull_through_cache_of_the_registry_that_the_mirror_names(synth: Synth) -> None:
    templates = synth(container_mirror=MIRROR)
    (statement,) = statements(templates["eks"], "ecr:BatchImportUpstreamImage")
    # Account and region of the registry, not of the stack; below the rule's prefix only.
    assert resources(statement) == ["arn:aws:ecr:us-west-2:210987654321:repository/public/*"]
    assert sorted(statement["Action"]) == ["ecr:BatchImportUpstreamImage", "ecr:CreateRepository"]
    policy = next(p for p in of_type(templates["eks"], "AWS::IAM::Policy").values() if "ecr:CreateRepository" in json.dumps(p))
    (role,) = policy["Properties"]["Roles"]
    for template in (templates["eks"], templates["training"]):
        used = only(template, "AWS::EKS::Nodegroup")["Properties"]["NodeRole"]
        assert role["Ref"] in json.dumps(used) or "GetStackOutput" in json.dumps(used)


@pytest.mark.parametrize(
    ("mirror", "expected"),
    [
        ("210987654321.dkr.ecr.cn-north-1.amazonaws.com.cn/a/b", "ecr:cn-north-1:210987654321:repository/a/b/*"),
        ("210987654321.dkr.ecr-fips.us-east-1.amazonaws.com/p", "ecr:us-east-1:210987654321:repository/p/*"),
        ("210987654321.dkr-ecr.us-east-1.on.aws/p", "ecr:us-east-1:210987654321:repository/p/*"),
        ("210987654321.dkr.ecr.us-east-1.amazonaws.com", "ecr:us-east-1:210987654321:repository/*"),
        ("registry.example.com/mirror", None),
        (None, None),
    ],
)
def test_only_ecrs_registries_get_a_permission(isolated: Any, mirror: str | None, expected: str | None) -> None:
    from eks_ray_train.node_template import node_role

    template = isolated(lambda stack, _: node_role(stack, "Role", container_mirror=mirror))
    found = [str(r) for s in statements(template, "ecr:CreateRepository") for r in resources(s)]
    assert [r.partition(":aws:")[2] for r in found] == ([expected] if expected else [])


def test_the_image_comes_from_the_mirror_by_the_rules_prefix_and_others_stay(synth: Synth) -> None:
    def images(**settings: Any) -> set[str]:
        (ray,) = manifests(synth(container_mirror=MIRROR, **settings)["training"], "RayCluster")
        groups = [ray["spec"]["headGroupSpec"], *ray["spec"]["workerGroupSpecs"]]
        return {group["template"]["spec"]["containers"][0]["image"] for group in groups}

    assert images() == {f"{MIRROR}/deep-learning-containers/ray:train-ml-cuda-v1.1"}
    digest = "@sha256:" + "ab" * 32
    assert images(dlc_image=f"public.ecr.aws/x/ray{digest}") == {f"{MIRROR}/x/ray{digest}"}
    own = "210987654321.dkr.ecr.us-west-2.amazonaws.com/own:1"
    assert images(dlc_image=own) == {own}


def test_gpu_and_system_nodes_share_one_role_which_goes_last(default_app: dict[str, Any]) -> None:
    role = only(default_app["training"], "AWS::EKS::Nodegroup")["Properties"]["NodeRole"]
    assert list(role) == ["Fn::GetStackOutput"]
    in_training = [r for r in of_type(default_app["training"], "AWS::IAM::Role").values() if "ec2.amazonaws.com" in json.dumps(r)]
    assert in_training == []


def test_a_role_and_a_mirror_for_a_role_made_here_are_a_contradiction(isolated: Any) -> None:
    from aws_cdk import aws_iam as iam

    from eks_ray_train import EfaGpuNodeGroup

    with pytest.raises(SettingsError, match="role is given; leave container_mirror out"):
        isolated(
            lambda stack, cluster: EfaGpuNodeGroup(
                stack, "G", cluster=cluster, instance_type="g6.12xlarge", node_count=1, subnet_id="subnet-1", container_mirror=MIRROR,
                role=iam.Role.from_role_name(stack, "R", "nodes"),
            )
        )  # fmt: skip


# ---- the job's data --------------------------------------------------------------------------------------------------
def test_the_job_may_list_and_read_its_data_buckets_and_never_write_there(synth: Synth) -> None:
    template = synth(data_buckets=("s3://shared/text", "arn:aws:s3:::whole"), storage="none")["training"]
    (read,) = statements(template, "s3:GetObject")
    assert read["Action"] == "s3:GetObject"
    assert sorted(resources(read)) == ["arn:aws:s3:::shared/text", "arn:aws:s3:::shared/text/*", "arn:aws:s3:::whole/*"]
    listed = {resources(s)[0]: s["Condition"]["StringLike"]["s3:prefix"] for s in statements(template, "s3:ListBucket")}
    assert listed == {"arn:aws:s3:::shared": ["text", "text/*"], "arn:aws:s3:::whole": ["*"]}
    assert not statements(template, "s3:PutObject") and not statements(template, "s3:DeleteObject")
    (where,) = statements(template, "s3:GetBucketLocation")
    assert sorted(resources(where)) == ["arn:aws:s3:::shared", "arn:aws:s3:::whole"]


def test_without_data_buckets_the_job_reads_its_own_prefix_only(default_app: dict[str, Any]) -> None:
    read = [r for s in statements(default_app["training"], "s3:GetObject") for r in resources(s)]
    assert len(read) == 1 and str(read[0]).endswith("/ray-train/*")


@pytest.mark.parametrize(
    ("text", "bucket", "prefix"),
    [
        ("s3://data", "data", ""),
        ("s3://data/", "data", ""),
        ("s3://data/*", "data", ""),
        ("s3://data/a/b/", "data", "a/b"),
        ("s3://data/a/b/*", "data", "a/b"),
        ("arn:aws:s3:::data/a.parquet", "data", "a.parquet"),
        ("arn:aws-cn:s3:::data", "data", ""),
    ],
)
def test_places_are_read_as_people_write_them(text: str, bucket: str, prefix: str) -> None:
    place = data_location(text)
    assert (place.bucket, place.prefix) == (bucket, prefix)


@pytest.mark.parametrize("text", ["", "data", "s3://", "s3://da", "https://data/x", "s3://data/a*", "s3://data/${aws:username}", "s3://*/x"])
def test_what_is_no_place_or_would_allow_more_than_it_says_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="data_buckets"):
        data_location(text)


# ---- the capacity functions ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stack", ["network", "training"])
def test_the_capacity_functions_may_call_and_log_exactly_what_is_theirs(default_app: dict[str, Any], stack: str) -> None:
    template = default_app[stack]
    handlers = {
        name: f for name, f in of_type(template, "AWS::Lambda::Function").items() if "Capacity" in name
    }  # fmt: skip
    assert len(handlers) == 2
    handler = next(name for name, f in handlers.items() if f["Properties"]["Runtime"].startswith("python"))
    (framework,) = set(handlers) - {handler}
    (call,) = statements(template, "lambda:InvokeFunction")
    assert resources(call) == [{"Fn::GetAtt": [handler, "Arn"]}]
    (write,) = [s for s in statements(template, "logs:PutLogEvents") if "Capacity" in json.dumps(s)]  # not the flow logs
    (group,) = [n for n in of_type(template, "AWS::Logs::LogGroup") if "Capacity" in n]
    assert resources(write) == [{"Fn::GetAtt": [group, "Arn"]}]
    policy = next(n for n, p in of_type(template, "AWS::IAM::Policy").items() if "lambda:InvokeFunction" in json.dumps(p))
    assert policy in depends_on(template, framework)  # allowed before it is called
    roles = {f["Properties"]["Role"]["Fn::GetAtt"][0] for f in handlers.values()}
    assert all("ManagedPolicyArns" not in template["Resources"][role]["Properties"] for role in roles)
    for kind in ("Custom::SpendingLimit", "Custom::CapacityProbe", "Custom::CapacityClaim"):
        for name in of_type(template, kind):
            assert any("logs:PutLogEvents" in json.dumps(template["Resources"][n]) for n in depends_on(template, name))


# ---- the nodes' cache ------------------------------------------------------------------------------------------------
def workers_cache(template: dict[str, Any]) -> dict[str, Any]:
    (ray,) = manifests(template, "RayCluster")
    (group,) = ray["spec"]["workerGroupSpecs"]
    (volume,) = [v for v in group["template"]["spec"]["volumes"] if v["name"] == "hf-cache"]
    return dict(volume)


def test_the_cache_is_on_the_raid_that_the_nodes_make_of_their_disks(default_app: dict[str, Any]) -> None:
    template = default_app["training"]
    (volume,) = manifests(template, "PersistentVolume")
    assert volume["spec"]["hostPath"]["path"] == "/mnt/k8s-disks/0/eks-ray-train/ray-train/ray-train/hf"
    assert workers_cache(template)["persistentVolumeClaim"]["claimName"] == "ray-train-hf-cache"
    import base64

    data = launch_template_of(template, only(template, "AWS::EKS::Nodegroup"))
    assert '"strategy": "RAID0"' in base64.b64decode(data["UserData"]).decode()
    ray, _ = manifest_resource(template, "RayCluster")
    claim, _ = manifest_resource(template, "PersistentVolumeClaim")
    assert claim in depends_on(template, ray)  # made before the pods, deleted after them


@pytest.mark.parametrize(
    "settings",
    [{"ami_family": "bottlerocket"}, {"gpu_instance_type": "g7.8xlarge", "accept_unverified_layout": True}],
    ids=["Bottlerocket mounts the disks itself", "no NVMe known"],
)
def test_where_no_disk_of_the_node_is_known_the_cache_goes_with_the_pod(synth: Synth, settings: dict[str, Any]) -> None:
    template = synth(**settings)["training"]
    assert workers_cache(template)["emptyDir"] == {} and manifests(template, "PersistentVolume") == []
