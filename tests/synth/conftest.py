"""Synthesizes apps in one process and shares the templates: starting jsii is what costs, not a stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Template = dict[str, Any]
Templates = dict[str, Template]


@pytest.fixture(scope="session", autouse=True)
def _no_aws_environment() -> None:
    """Nothing of the developer's AWS set-up reaches a synth: no account, region, profile or credentials."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "CDK_")):
            del os.environ[name]


@pytest.fixture(scope="session")
def synth(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Templates]:
    """``synth(gpu_node_count=3)`` -> templates of the whole app by short name: network, eks, training. Cached by settings."""
    from eks_ray_train.node_runtime import use_bundled_node

    use_bundled_node()
    from aws_cdk import App, Environment

    import app as application
    from eks_ray_train import Settings
    from eks_ray_train.settings import read_cdk_json

    context = read_cdk_json(repo / "cdk.json")
    outdir = tmp_path_factory.mktemp("cdk.out")  # one for all: assets are copied once
    cache: dict[str, Templates] = {}

    def synthesize(*, env: Environment | None = None, **settings: Any) -> Templates:
        key = json.dumps([settings, env is not None], sort_keys=True, default=str)
        if key not in cache:
            cdk = App(context=context, analytics_reporting=False, outdir=str(outdir))
            application.build(cdk, Settings(**settings), env or Environment(region=settings.get("region")))
            cdk.synth()
            cache[key] = {
                name: json.loads((outdir / f"EksRayTrain{stack}.template.json").read_text())
                for name, stack in (("network", "Network"), ("eks", "Cluster"), ("training", "Training"))
            }
        return cache[key]

    return synthesize


@pytest.fixture(scope="session")
def default_app(synth: Callable[..., Templates]) -> Templates:
    """The three templates of the default settings."""
    return synth()


@pytest.fixture(scope="session")
def isolated() -> Callable[[Callable[[Any, Any], Any]], Template]:
    """``isolated(build)`` -> the template of one stack in which ``build(stack, cluster)`` made its constructs.

    ``cluster`` is a small ``aws_eks_v2`` cluster of that stack, without our add-ons or charts.
    """
    from eks_ray_train.node_runtime import use_bundled_node

    use_bundled_node()
    from aws_cdk import App, Stack
    from aws_cdk import aws_ec2 as ec2
    from aws_cdk import aws_eks_v2 as eks
    from aws_cdk.assertions import Template as CdkTemplate

    from eks_ray_train import kubectl_layer

    def make(build: Callable[[Any, Any], Any]) -> Template:
        stack = Stack(App(context={"aws:cdk:disable-asset-staging": True}), "Isolated")
        cluster = eks.Cluster(
            stack,
            "Cluster",
            version=eks.KubernetesVersion.V1_36,
            vpc=ec2.Vpc(stack, "Vpc", nat_gateways=1, availability_zones=["us-east-2a", "us-east-2b"]),
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
            kubectl_provider_options=eks.KubectlProviderOptions(kubectl_layer=kubectl_layer(stack, "Layer", minor=36)),
        )
        build(stack, cluster)
        template: Template = CdkTemplate.from_stack(stack).to_json()
        return template

    return make


@pytest.fixture(scope="session")
def wheel(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel. Needs no network: hatchling is installed."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=repo, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built
