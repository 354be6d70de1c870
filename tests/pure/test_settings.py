"""Settings: one reader, typed, all errors at once; a message says what, got, allowed and remedy."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from eks_ray_train.errors import ExitCode, SettingsError
from eks_ray_train.instances import get_system_instance_type
from eks_ray_train.regions import nearest_region
from eks_ray_train.settings import BLOCK, Settings, from_context, from_mapping, load_settings, setting_names
from eks_ray_train.system_sizing import required_system_nodes

_CLUSTER = {
    "name": "shared",
    "kubectl_role_arn": "arn:aws:iam::123456789012:role/deploy",
    "security_group_id": "sg-0123456789abcdef0",
    "vpc_id": "vpc-0123456789abcdef0",
    "availability_zones": ["us-east-2a", "us-east-2b"],
    "private_subnet_ids": ["subnet-1", "subnet-2"],
}


# What a message must end with: what to do. (What is wrong, got and allowed is each case's own.)
REMEDY = re.compile(
    r"\b(set|use|leave|choose|add|name|raise|lower|shorten|write|store|correct|remove|make|see|check|lists?|for example|run|init)\b"
)


def problems_of(**values: object) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        from_mapping(values)
    return caught.value.problems


def test_cdk_json_states_every_setting_with_its_default(repo) -> None:
    block = json.loads((repo / "cdk.json").read_text())["context"][BLOCK]
    assert list(block) == setting_names()
    assert load_settings(repo / "cdk.json") == Settings()


def test_defaults_have_no_warning_while_their_kubernetes_is_in_standard_support() -> None:
    assert Settings().warnings(dt.date(2026, 11, 29)) == []


def test_text_from_the_command_line_is_coerced_to_each_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "kuberay.tgz").touch()
    monkeypatch.chdir(tmp_path)
    settings = from_mapping(
        {
            "gpu_node_count": "4",
            "keep_storage": "false",
            "availability_zones": "us-east-2a,us-east-2b",
            "admin_principals": '["arn:aws:iam::123456789012:role/x/admin"]',
            "chart_repositories": '{"kuberay": "charts/kuberay.tgz"}',
            "data_buckets": "s3://data/text,arn:aws:s3:::more",
            "region": "",
        }
    )
    assert settings.gpu_node_count == 4
    assert settings.keep_storage is False
    assert settings.availability_zones == ("us-east-2a", "us-east-2b")
    assert settings.admin_principals == ("arn:aws:iam::123456789012:role/x/admin",)
    assert settings.chart_repositories == {"kuberay": "charts/kuberay.tgz"}
    assert settings.data_buckets == ("s3://data/text", "arn:aws:s3:::more")
    assert settings.region is None


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"gpu_node_count": 0}, ["gpu_node_count must be at least 1", "got 0", "cdk.json"]),
        ({"system_node_count": 10**9}, ["system_node_count must be at most 449", "got 1000000000", "leave it out"]),
        ({"kubectl_layer": "v99"}, ["kubectl_layer must be v30 to v37", "'v99'", "leave it out"]),
        ({"chart_repositories": {"efa": "nowhere/efa.tgz"}}, ["chart_repositories.efa", "'nowhere/efa.tgz'", "no file here"]),
        ({"data_buckets": ["my-data"]}, ["data_buckets must hold s3://", "'my-data'", "for example s3://my-data/text"]),
        ({"data_buckets": ["s3://B/x"]}, ["'B' in 's3://B/x' is no name of a bucket"]),
        ({"data_buckets": ["s3://data/a*/b"]}, ["has a wildcard", "name the folder"]),
        ({"data_buckets": ["s3://data/a", "s3://data/a"]}, ["data_buckets names a place twice"]),
        ({"gpu_node_count": "two"}, ["gpu_node_count must be a whole number", "'two'"]),
        ({"gpu_node_count": True}, ["gpu_node_count must be a whole number", "True"]),
        ({"gpu_node_count": 2.5}, ["gpu_node_count must be a whole number", "2.5"]),
        ({"keep_storage": "maybe"}, ["keep_storage must be true or false", "'maybe'"]),
        ({"kubernetes_version": 1.36}, ["kubernetes_version must be text", "1.36"]),
        ({"kubernetes_version": None}, ["kubernetes_version must not be null"]),
        ({"kubernetes_version": "latest"}, ["must look like 1.36", "'latest'"]),
        ({"kubernetes_version": "1.20"}, ["1.20 can no longer be created", "1.36"]),
        ({"chart_repositories": "{"}, ["chart_repositories must be valid JSON"]),
        ({"chart_repositories": {"kubray": "https://x"}}, ["kuberay, nvidia, efa", "'kubray'"]),
        ({"cluster_name": "x" * 101}, ["cluster_name", "101 characters", "100 characters", "63"]),
        ({"cluster_name": "x" * 80}, ["cluster_name", "80 characters", "63"]),
        ({"cluster_name": "a_b c"}, ["letters, digits, - or _", "'a_b c'", "remove ' ' from cluster_name"]),
        ({"cluster_name": "_a"}, ["begin with a letter or digit", "'_a'"]),
        ({"cluster_name": ""}, ["1 to 63 letters", "got 0 characters"]),
        ({"ray_cluster_name": "r" * 54}, ["ray_cluster_name", "53", "54 characters"]),
        ({"ray_cluster_name": "1abc"}, ["ray_cluster_name", "starting with a letter"]),
        ({"namespace": "Ray"}, ["namespace", "lower-case"]),
        ({"gpu_instance_type": "g6.2xlarge"}, ["g6.2xlarge has no EFA", "g6.8xlarge"]),
        ({"gpu_instance_type": "p5.48xlarg"}, ["'p5.48xlarg'", "p5.48xlarge"]),
        ({"gpu_instance_type": "p3dn.24xlarge"}, ["V100", "sm_75", "p4d.24xlarge"]),
        ({"gpu_instance_type": "p6e-gb200.36xlarge"}, ["arm64", "p6-b200.48xlarge"]),
        ({"gpu_instance_type": "p6-b300.48xlarge"}, ["no source confirms", "accept_unverified_layout"]),
        ({"system_instance_type": "m7g.xlarge"}, ["arm64"]),
        ({"system_instance_type": "m7i.large"}, ["too small", "m7i.xlarge"]),
        ({"system_instance_type": "t3.medium"}, ["c, m or r families"]),
        ({"system_node_count": 0}, ["system_node_count must be at least 1", "got 0"]),
        ({"capacity": "spot"}, ["capacity must be one of probe, hold, reservation, block, none", "'spot'"]),
        ({"capacity": "reservation"}, ["needs capacity_reservation_id"]),
        ({"capacity": "block", "capacity_reservation_id": "cr-0123456789abcdef0"}, ["no Capacity Blocks exist for g6.12xlarge"]),
        ({"capacity_reservation_id": "cr-0123456789abcdef0"}, ["capacity is probe"]),
        ({"capacity": "reservation", "capacity_reservation_id": "cr-1"}, ["must look like cr-"]),
        (
            {"capacity": "reservation", "capacity_reservation_id": "arn:aws:resource-groups:us-east-2:123456789012:group/g"},
            ["resource groups are not supported"],
        ),
        ({"availability_zones": ["us-east-2a"]}, ["at least two zones"]),
        ({"availability_zones": ["us-east-2a", "us-east-2a"]}, ["twice"]),
        ({"availability_zones": ["use2-az1", "use2-az2"]}, ["availability zone must look like us-east-2a"]),
        ({"region": "us-west-2", "availability_zones": ["us-east-2a", "us-east-2b"]}, ["not in region us-west-2"]),
        ({"gpu_zone": "us-east-2c", "availability_zones": ["us-east-2a", "us-east-2b"]}, ["not among availability_zones"]),
        ({"admin_principals": ["arn:aws:sts::123456789012:assumed-role/admin/me"]}, ["assumed-role", "init"]),
        ({"public_access_cidrs": ["my-house"]}, ["203.0.113.7/32", "'my-house'"]),
        ({"public_access_cidrs": ["1.2.3.4"]}, ["203.0.113.7/32", "'1.2.3.4'"]),
        ({"max_hours": -1}, ["max_hours must be 0", "-1"]),
        ({"ray_version": "2.51.0"}, ["at least 2.52.0"]),
        ({"ray_version": "2.58"}, ["must look like 2.58.0"]),
        ({"dlc_image": "ray"}, ["registry/repository:tag"]),
        ({"hf_token_secret_arn": "hf_abcdef"}, ["Secrets Manager ARN"]),
        ({"existing_vpc_id": "vpc-x"}, ["vpc-0123456789abcdef0"]),
        ({"existing_cluster": {"name": "c"}}, ["existing_cluster needs"]),
        ({"existing_cluster": {**_CLUSTER, "availability_zones": 3}}, ["existing_cluster.availability_zones must be a list", "3"]),
        ({"existing_cluster": {**_CLUSTER, "availability_zones": "us-east-2a"}}, ["must be a list of text", "'us-east-2a'"]),
        ({"existing_cluster": {**_CLUSTER, "name": 5}}, ["existing_cluster.name must be text", "5"]),
        ({"max_hours": 8761}, ["max_hours must be at most 8760", "8761"]),
        ({"gpu_node_count": 451}, ["at most 450", "451", "lower gpu_node_count"]),
        ({"namespace": "kube-system"}, ["one of its own", "'kube-system'"]),
        ({"queue_name": "Team A"}, ["LocalQueue"]),
        ({"kubectl_layer": "36"}, ["must look like v36"]),
        ({"placement_group": True, "capacity": "hold"}, ["placement_group"]),
        ({"gpu_instancetype": "g6.12xlarge"}, ["unknown setting 'gpu_instancetype'", "'gpu_instance_type'"]),
    ],
)  # fmt: skip
def test_wrong_setting_is_one_message_that_says_what_got_and_remedy(values: dict, says: list[str]) -> None:
    problems = problems_of(**values)
    text = " | ".join(problems)
    for part in says:
        assert part in text
    for problem in problems:
        assert REMEDY.search(problem), problem
        assert "\n" not in problem


def test_all_problems_are_reported_at_once() -> None:
    found = problems_of(gpu_node_count=0, capacity="spot", nonsense=1, max_hours="x")
    assert len(found) == 4


def test_settings_error_ends_the_command_line_with_usage() -> None:
    with pytest.raises(ValueError) as caught:
        Settings(gpu_node_count=0)
    assert isinstance(caught.value, SettingsError) and caught.value.exit_code is ExitCode.USAGE


def test_context_override_wins_over_the_block() -> None:
    settings = from_context({BLOCK: {"gpu_node_count": 2}, f"{BLOCK}:gpu_node_count": "3"})
    assert settings.gpu_node_count == 3


@pytest.mark.parametrize("key", ["gpu_node_count", "gpu_node_counts", "gpu-node-count", "region"])
def test_bare_context_key_like_one_of_ours_shows_the_prefix(key: str) -> None:
    with pytest.raises(SettingsError, match=f"-c {BLOCK}:"):
        from_context({key: "3"})


def test_unrelated_and_cdk_context_keys_are_left_alone() -> None:
    context = {
        "@aws-cdk/core:target-partitions": ["aws"],
        "availability-zones:account=1:region=us-east-2": ["us-east-2a"],
        "aws:cdk:enable-path-metadata": True,
        "acme-team": "ml",
    }
    assert from_context(context) == Settings()


def test_unknown_prefixed_key_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="nearest known one is 'max_hours'"):
        from_context({f"{BLOCK}:max_hour": "3"})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("gpu_nodes", "gpu_node_count"), ("node_count", "gpu_node_count"), ("instance-type", "gpu_instance_type"), ("gpu_zones", "gpu_zone"),
     ("kubernetes_versio", "kubernetes_version"), ("reservation_id", "capacity_reservation_id")],
)  # fmt: skip
def test_the_nearest_known_setting_shares_the_words_of_the_unknown_one(typed: str, meant: str) -> None:
    with pytest.raises(SettingsError, match=f"nearest known one is '{meant}'"):
        from_context({BLOCK: {typed: "3"}})


def test_block_given_as_json_text_is_read() -> None:
    assert from_context({BLOCK: '{"gpu_node_count": 5}'}).gpu_node_count == 5
    with pytest.raises(SettingsError, match="must be a JSON object"):
        from_context({BLOCK: "[1]"})


def test_broken_cdk_json_is_one_message(tmp_path) -> None:
    path = tmp_path / "cdk.json"
    path.write_text("{")
    with pytest.raises(SettingsError, match=r"cdk\.json is not JSON"):
        load_settings(path)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"\xff\xfe{}", "not JSON"),
        (b'{"context": {"eks-ray-train": {"max_hours": 1, "max_hours": 2}}}', "'max_hours' stands twice"),
        (b'{"context": {"eks-ray-train": {"max_hours": ' + b"9" * 5000 + b"}}}", "not JSON"),
        (b'{"context": []}', '"context" must be an object'),
    ],
)
def test_unreadable_cdk_json_is_one_message(tmp_path, content: bytes, part: str) -> None:
    path = tmp_path / "cdk.json"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=part):
        load_settings(path)


def test_a_folder_named_cdk_json_is_one_message(tmp_path) -> None:
    (tmp_path / "cdk.json").mkdir()
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(tmp_path / "cdk.json")


def test_a_byte_order_mark_is_read_over(tmp_path) -> None:
    path = tmp_path / "cdk.json"
    path.write_bytes(b'\xef\xbb\xbf{"context": {"eks-ray-train": {"max_hours": 3}}}')
    assert load_settings(path).max_hours == 3


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"kubernetes_version": "1.33", "kubectl_layer": "v33"}, "paid extended support"),
        ({"kubectl_layer": "v30"}, "6 minor versions away"),
        ({"public_access_cidrs": ["0.0.0.0/0"]}, "whole internet"),
        ({"kubernetes_version": "1.37"}, "newer than this release knows"),
        ({"region": "us-eas-1"}, "region us-eas-1 is none that this release knows, the nearest is us-east-1; correct it"),
        ({"region": "eu-wset-1", "availability_zones": ["eu-wset-1a", "eu-wset-1b"]}, "the nearest is eu-west-1"),
        ({"availability_zones": ["us-eat-2a", "us-eat-2b"]}, "availability_zones: region us-eat-2"),
    ],
)
def test_legal_but_doubtful_setting_is_a_warning(values: dict, part: str) -> None:
    (warning,) = from_mapping(values).warnings(dt.date(2026, 11, 29))
    assert part in warning


def test_no_region_that_botocore_knows_is_a_warning() -> None:
    session = pytest.importorskip("boto3").Session()
    known = {r for p in session.get_available_partitions() for service in ("ec2", "eks") for r in session.get_available_regions(service, p)}
    assert {region: nearest_region(region) for region in known} == dict.fromkeys(known)


def test_a_region_nobody_knows_yet_is_no_error() -> None:
    assert from_mapping({"region": "us-central-7"}).region == "us-central-7"


def test_every_setting_is_documented_in_the_settings_page(repo) -> None:
    page = (repo / "docs" / "settings.md").read_text()
    missing = [f.name for f in fields(Settings) if f"`{f.name}`" not in page]
    assert missing == []


def test_one_m7i_xlarge_carries_one_head_and_all_that_runs_beside_it() -> None:
    assert required_system_nodes(get_system_instance_type("m7i.xlarge")) == 1
    assert required_system_nodes(get_system_instance_type("m7i.xlarge"), heads=3) == 3
    assert required_system_nodes(get_system_instance_type("m7i.4xlarge"), heads=3) == 1
