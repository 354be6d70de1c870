"""Every setting changes some template; the exceptions say why they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from eks_ray_train.settings import setting_names

MIRROR = "123456789012.dkr.ecr.us-east-2.amazonaws.com/public"
ROLE = "arn:aws:iam::123456789012:role/Admin"
ZONES = ("us-east-2a", "us-east-2b")

# A value other than the default, with the other settings that it needs.
CHANGES: dict[str, dict[str, Any]] = {
    "cluster_name": {"cluster_name": "other"},
    "region": {"region": "us-east-2"},
    "kubernetes_version": {"kubernetes_version": "1.35", "kubectl_layer": "v36"},
    "system_instance_type": {"system_instance_type": "m7i.2xlarge"},
    "system_node_count": {"system_node_count": 3},
    "gpu_instance_type": {"gpu_instance_type": "p5.48xlarge"},
    "gpu_node_count": {"gpu_node_count": 3},
    "availability_zones": {"region": "us-east-2", "availability_zones": ZONES},
    "gpu_zone": {"region": "us-east-2", "availability_zones": ZONES, "gpu_zone": "us-east-2b"},
    "dlc_image": {"dlc_image": "public.ecr.aws/deep-learning-containers/ray:train-ml-cuda-v1.1.0"},
    "ray_version": {"ray_version": "2.57.0"},
    "kuberay_version": {"kuberay_version": "1.7.1"},
    "nvidia_device_plugin_version": {"nvidia_device_plugin_version": "0.20.1"},
    "efa_device_plugin_version": {"efa_device_plugin_version": "v0.5.32"},
    "chart_repositories": {"chart_repositories": {"kuberay": "https://charts.example.com/"}},
    "namespace": {"namespace": "other"},
    "ray_cluster_name": {"ray_cluster_name": "other"},
    "capacity": {"capacity": "hold"},
    "capacity_reservation_id": {"capacity": "reservation", "capacity_reservation_id": "cr-0123456789abcdef0"},
    "admin_principals": {"admin_principals": (ROLE,)},
    "public_access_cidrs": {"public_access_cidrs": ("203.0.113.7/32",)},
    "max_hours": {"max_hours": 3},
    "storage": {"storage": "fsx"},
    "keep_storage": {"keep_storage": False},
    "data_buckets": {"data_buckets": ("s3://other-teams-data/text",)},
    "ami_family": {"ami_family": "bottlerocket"},
    "placement_group": {"placement_group": True},
    "node_repair": {"node_repair": False},
    "upgrade_policy": {"upgrade_policy": "extended"},
    "deletion_protection": {"deletion_protection": True},
    "kubectl_layer": {"kubectl_layer": "v30"},
    "existing_vpc_id": {"region": "us-east-2", "existing_vpc_id": "vpc-0123456789abcdef0"},
    "existing_cluster": {
        "existing_cluster": {
            "name": "theirs",
            "kubectl_role_arn": "arn:aws:iam::123456789012:role/kubectl",
            "security_group_id": "sg-0123456789abcdef0",
            "vpc_id": "vpc-0123456789abcdef0",
            "availability_zones": list(ZONES),
            "private_subnet_ids": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
        }
    },
    "observability": {"observability": "cloudwatch"},
    "container_mirror": {"container_mirror": MIRROR},
    "hf_token_secret_arn": {"hf_token_secret_arn": "arn:aws:secretsmanager:us-east-2:123456789012:secret:hf-AbCdEf"},
    "queue_name": {"queue_name": "team-a"},
}

# name -> why a value of it alone is in no template.
EXCEPTIONS = {
    "accept_unverified_layout": "permits gpu_instance_type p6-b300 and the like; it is the type that changes the template",
}


def test_every_setting_has_a_change_or_a_reason() -> None:
    assert set(setting_names()) == set(CHANGES) | set(EXCEPTIONS)


@pytest.mark.parametrize("name", [n for n in CHANGES if n not in EXCEPTIONS])
def test_a_setting_changes_a_template(
    name: str, synth: Callable[..., dict[str, Any]], default_app: dict[str, Any]
) -> None:
    from aws_cdk import Environment

    change = CHANGES[name]
    # Against an app that already has the settings this one needs, so that they do not count as its effect.
    needed = {key: value for key, value in change.items() if key != name}
    if name == "existing_vpc_id":
        env = Environment(account="123456789012", region="us-east-2")
        assert json.dumps(synth(env=env, **change)) != json.dumps(synth(env=env, **needed))
        return
    if name == "capacity_reservation_id":
        other = {**change, "capacity_reservation_id": "cr-0123456789abcdef1"}
        assert json.dumps(synth(**change)) != json.dumps(synth(**other))
        return
    before = synth(**needed) if needed else default_app
    assert json.dumps(synth(**change)) != json.dumps(before)


def test_an_unverified_layout_is_used_only_where_accepted(synth: Callable[..., dict[str, Any]]) -> None:
    from eks_ray_train import SettingsError

    with pytest.raises(SettingsError, match="accept_unverified_layout"):
        synth(gpu_instance_type="p6-b300.48xlarge")
    templates = synth(gpu_instance_type="p6-b300.48xlarge", accept_unverified_layout=True)
    assert "p6-b300.48xlarge" in json.dumps(templates["training"])
