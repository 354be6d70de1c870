"""The deploy's critical path: minutes along the longest chain of dependencies in the synthesized templates.

Minutes a resource are assumptions (``MINUTES``), the order is the templates': DependsOn, Ref and GetAtt inside a stack; a
stack starts when those it depends on are complete, as the CDK CLI deploys them. ``--out FILE`` writes the result as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 17.0
VPC_WITH_NAT, CLUSTER, SYSTEM_NODES, COREDNS, CHART, GPU_NODES, OTHER = 2.0, 9.0, 2.5, 1.0, 0.5, 3.5, 0.2
MINUTES = {"AWS::EC2::NatGateway": VPC_WITH_NAT, "AWS::EKS::Cluster": CLUSTER, "Custom::AWSCDK-EKS-HelmChart": CHART}
# Their time is part of "VPC with NAT".
VPC_PARTS = (
    "VPC",
    "Subnet",
    "RouteTable",
    "SubnetRouteTableAssociation",
    "Route",
    "EIP",
    "InternetGateway",
    "VPCGatewayAttachment",
)


def minutes(resource: Mapping[str, Any]) -> float:
    """Assumed minutes until ``resource`` is complete."""
    kind = str(resource["Type"])
    properties = resource.get("Properties", {})
    if kind == "AWS::EKS::Nodegroup":
        return GPU_NODES if "NVIDIA" in str(properties.get("AmiType")) else SYSTEM_NODES
    if kind == "AWS::EKS::Addon" and properties.get("AddonName") == "coredns":
        return COREDNS
    if kind.removeprefix("AWS::EC2::") in VPC_PARTS:
        return 0.0
    return MINUTES.get(kind, OTHER)


def references(value: Any) -> set[str]:
    """Logical ids that ``value`` names in DependsOn, Ref or GetAtt."""
    found: set[str] = set()
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "DependsOn":
                found |= {inner} if isinstance(inner, str) else set(inner)
            elif key == "Ref":
                found.add(str(inner))
            elif key == "Fn::GetAtt":
                found.add(inner[0] if isinstance(inner, list) else str(inner).partition(".")[0])
            else:
                found |= references(inner)
    elif isinstance(value, list):
        for inner in value:
            found |= references(inner)
    return found


def longest_chain(template: Mapping[str, Any]) -> tuple[float, list[str]]:
    """Minutes and logical ids of the slowest chain of one stack."""
    resources = template["Resources"]
    done: dict[str, tuple[float, list[str]]] = {}

    def finish(name: str) -> tuple[float, list[str]]:
        if name not in done:
            before = [finish(other) for other in sorted(references(resources[name]) & set(resources) - {name})]
            start, chain = max(before, default=(0.0, []))
            done[name] = (start + minutes(resources[name]), [*chain, name])
        return done[name]

    return max(finish(name) for name in resources)


def critical_path(assembly: Path) -> dict[str, Any]:
    """The slowest way through all stacks of a cloud assembly."""
    artifacts = json.loads((assembly / "manifest.json").read_text())["artifacts"]
    stacks = {name: a for name, a in artifacts.items() if a["type"] == "aws:cloudformation:stack"}
    chains = {name: longest_chain(json.loads((assembly / f"{name}.template.json").read_text())) for name in stacks}
    ends: dict[str, float] = {}

    def end(name: str) -> float:
        if name not in ends:
            waits = [end(other) for other in stacks[name].get("dependencies", ()) if other in stacks]
            ends[name] = max(waits, default=0.0) + chains[name][0]
        return ends[name]

    total = max(end(name) for name in stacks)
    return {
        "minutes": round(total, 1),
        "limit": LIMIT,
        "stacks": {name: {"minutes": round(chain[0], 1), "chain": chain[1]} for name, chain in chains.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assembly", type=Path, help="a cdk.out folder; default: the app is synthesized")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        assembly = arguments.assembly or Path(folder)
        if not arguments.assembly:
            environment = {**os.environ, "CDK_OUTDIR": folder}
            subprocess.run([sys.executable, "app.py"], cwd=ROOT, env=environment, check=True)
        result = {"command": "python bench/critical_path.py", **critical_path(assembly)}
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
