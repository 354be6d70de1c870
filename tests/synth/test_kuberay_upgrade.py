"""Helm installs CRDs once and never upgrades them: whoever changes KubeRay's version is told what to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aws_cdk import App, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk.assertions import Annotations, Match

from eks_ray_train import KubeRayOperator, existing_cluster
from eks_ray_train.versions import KUBERAY_VERSION
from tests.synth.variants import EXISTING_CLUSTER

Synth = Callable[..., dict[str, dict[str, Any]]]
COMMAND = 'kubectl apply --server-side --force-conflicts -k "github.com/ray-project/kuberay/ray-operator/config/crd?ref=v{}"'


def _warnings(version: str) -> list[str]:
    stack = Stack(App(), "S")
    vpc = ec2.Vpc.from_vpc_attributes(
        stack, "Vpc", vpc_id="vpc-0123456789abcdef0", availability_zones=["us-east-2a"], private_subnet_ids=["subnet-0123456789abcdef0"]
    )  # fmt: skip
    cluster = existing_cluster(stack, "Eks", vpc=vpc, attributes=EXISTING_CLUSTER, kubectl_minor=36)
    KubeRayOperator(stack, "Operator", cluster=cluster, version=version)
    found = Annotations.from_stack(stack).find_warning("*", Match.string_like_regexp("KubeRay"))
    return [str(message.entry.data) for message in found]


@pytest.mark.parametrize("version", ["1.7.1", "1.6.2", "v1.8.0"])
def test_another_version_is_a_warning_with_the_server_side_apply_of_its_crds(version: str) -> None:
    (warning,) = _warnings(version)
    assert COMMAND.format(version.lstrip("v")) in warning


@pytest.mark.parametrize("version", [KUBERAY_VERSION, f"v{KUBERAY_VERSION}"])
def test_the_pinned_version_warns_of_nothing(version: str) -> None:
    assert _warnings(version) == []


def test_the_command_is_an_output_of_every_deploy(synth: Synth) -> None:
    for settings, version in (({}, KUBERAY_VERSION), ({"kuberay_version": "1.7.1"}, "1.7.1")):
        assert synth(**settings)["eks"]["Outputs"]["KubeRayCrdUpgradeCommand"]["Value"] == COMMAND.format(version)
