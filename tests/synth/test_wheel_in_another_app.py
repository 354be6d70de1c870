"""Another team's CDK app: it installs the built wheel, has folders named like ours, and uses two constructs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.synth.template_reading import launch_template_of, manifests, of_type, only

APP = """
from pathlib import Path

from eks_ray_train.node_runtime import use_bundled_node

use_bundled_node()

from aws_cdk import App, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from stacks import NAME  # their own folder of that name

import eks_ray_train
from eks_ray_train import EfaGpuNodeGroup, RayTrainCluster, kubectl_layer

assert "site" in eks_ray_train.__file__, eks_ray_train.__file__
app = App(outdir="out")
stack = Stack(app, NAME)
cluster = eks.Cluster(
    stack,
    "Cluster",
    version=eks.KubernetesVersion.V1_36,
    vpc=ec2.Vpc(stack, "Vpc", nat_gateways=1),
    default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
    default_capacity=0,
    kubectl_provider_options=eks.KubectlProviderOptions(kubectl_layer=kubectl_layer(stack, "Kubectl", minor=36)),
)
nodes = EfaGpuNodeGroup(
    stack, "Nodes", cluster=cluster, instance_type="g6e.24xlarge", node_count=2, subnets=cluster.vpc.private_subnets[:1]
)
RayTrainCluster(stack, "Ray", cluster=cluster, nodes=nodes, job_dir=Path("job"))
app.synth()
"""


def test_the_wheel_alone_serves_another_app(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)  # what pip does with a pure wheel, without touching this environment
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "__init__.py").write_text('NAME = "Theirs"\n')
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text("print('theirs')\n")
    (tmp_path / "app.py").write_text(APP)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "CDK_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    template = json.loads((tmp_path / "out" / "Theirs.template.json").read_text())
    data = launch_template_of(template, only(template, "AWS::EKS::Nodegroup"))
    assert [i["InterfaceType"] for i in data["NetworkInterfaces"]] == ["interface", "efa-only", "efa-only"]
    (ray,) = manifests(template, "RayCluster")
    assert ray["spec"]["workerGroupSpecs"][0]["replicas"] == 2
    assert of_type(template, "AWS::EC2::SecurityGroupEgress")
