"""Critical path of a deploy: minutes from nothing to Ray, from the templates' own dependency graph.

    python bench/critical_path.py           # writes bench/results/critical_path.json

An edge is what CloudFormation waits for: Ref, Fn::GetAtt, Fn::Sub, DependsOn, and between stacks that the whole other stack is
done (the CDK CLI deploys a stack after those it depends on). Each resource takes the minutes below; they are an estimate of
people's deploys, so that a change of the graph shows, not a measurement of AWS.

Two compositions of the same constructs: everything in one stack (examples/minimal.py), where only real dependencies count, and
the application's three stacks, where the GPU nodes also wait for the system nodes and CoreDNS, because these are in the stack
before. That is the price of a failed GPU launch that rolls back nothing else.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
RESULT = REPO / "bench" / "results" / "critical_path.json"

MINUTES = {
    "VPC with NAT": 2.0,
    "cluster": 9.0,
    "system nodes": 2.5,
    "coredns": 1.0,
    "chart": 0.5,
    "GPU nodes": 3.5,
    "anything else": 0.2,
}
_SUB = re.compile(r"\$\{([A-Za-z0-9]+)(?:\.[A-Za-z0-9.]+)?\}")


@dataclass(frozen=True)
class Step:
    """One resource on the path; ``done`` is when it is complete, in minutes after the start."""

    stack: str
    resource: str
    kind: str
    minutes: float
    done: float


def kind_of(resource: dict[str, Any]) -> str:
    """Which of MINUTES' rows a resource counts as."""
    type_, properties = resource["Type"], resource.get("Properties", {})
    if type_ == "AWS::EC2::NatGateway":
        return "VPC with NAT"  # the NAT gateway is what takes the VPC's time
    if type_ == "AWS::EKS::Cluster":
        return "cluster"
    if type_ == "AWS::EKS::Nodegroup":
        return "GPU nodes" if properties.get("Taints") else "system nodes"
    if type_ == "AWS::EKS::Addon" and properties.get("AddonName") == "coredns":
        return "coredns"
    return "chart" if type_ == "Custom::AWSCDK-EKS-HelmChart" else "anything else"


def references(value: Any) -> set[str]:
    """Logical ids that a part of a template names by Ref, Fn::GetAtt, Fn::Sub or DependsOn."""
    found: set[str] = set()
    if isinstance(value, list):
        for inner in value:
            found |= references(inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key == "DependsOn":
                found |= {inner} if isinstance(inner, str) else set(inner)
            elif key == "Ref" and isinstance(inner, str):
                found.add(inner)
            elif key == "Fn::GetAtt":
                found.add(inner[0] if isinstance(inner, list) else str(inner).partition(".")[0])
            elif key == "Fn::Sub":
                found |= set(_SUB.findall(inner if isinstance(inner, str) else inner[0]))
                found |= references(inner[1]) if isinstance(inner, list) else set()
            else:
                found |= references(inner)
    return found


def longest_path(stacks: dict[str, dict[str, Any]], order: dict[str, list[str]]) -> list[Step]:
    """The path that ends last. ``stacks``: templates by name; ``order``: the stacks that each one waits for.

    Raises ValueError for a cycle.
    """
    ends: dict[str, list[Step]] = {}

    def stack_path(name: str) -> list[Step]:
        if name not in ends:
            before = max((stack_path(other) for other in order.get(name, [])), key=_done, default=[])
            ends[name] = max(_within(name, stacks[name], before), key=_done, default=before)
        return ends[name]

    return max((stack_path(name) for name in stacks), key=_done)


def _within(stack: str, template: dict[str, Any], before: list[Step]) -> list[list[Step]]:
    """The longest path to each resource of one stack, on top of what was ``before`` it."""
    resources = template["Resources"]
    paths: dict[str, list[Step]] = {}
    open_: set[str] = set()

    def path(name: str) -> list[Step]:
        if name in paths:
            return paths[name]
        if name in open_:
            raise ValueError(f"{stack}: {name} depends on itself")
        open_.add(name)
        needed = [path(other) for other in sorted(references(resources[name])) if other in resources and other != name]
        longest = max(needed, key=_done, default=before)
        kind = kind_of(resources[name])
        step = Step(stack, name, kind, MINUTES[kind], round(_done(longest) + MINUTES[kind], 2))
        paths[name] = [*longest, step]
        open_.discard(name)
        return paths[name]

    return [path(name) for name in resources]


def _done(path: list[Step]) -> float:
    return path[-1].done if path else 0.0


def read_assembly(folder: Path) -> tuple[dict[str, dict[str, Any]], dict[str, list[str]]]:
    """Templates, and which stack waits for which, of a synthesized app."""
    artifacts = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["artifacts"]
    stacks = {n: a for n, a in artifacts.items() if a["type"] == "aws:cloudformation:stack"}
    templates = {n: json.loads((folder / a["properties"]["templateFile"]).read_text()) for n, a in stacks.items()}
    return templates, {n: [d for d in a.get("dependencies", []) if d in stacks] for n, a in stacks.items()}


def report(templates: dict[str, dict[str, Any]], order: dict[str, list[str]]) -> dict[str, Any]:
    """Minutes and path of one composition."""
    path = longest_path(templates, order)
    in_a_row = sum(MINUTES[kind_of(r)] for t in templates.values() for r in t["Resources"].values())
    return {
        "minutes": _done(path),
        "minutes_if_nothing_ran_beside_anything": round(in_a_row, 1),
        "resources": sum(len(t["Resources"]) for t in templates.values()),
        "path": [{"stack": s.stack, "resource": s.resource, "kind": s.kind, "minutes": s.minutes, "done": s.done} for s in path],
    }


def synthesize_both(folder: Path) -> dict[str, dict[str, Any]]:
    """Reports of the two compositions, from the programs themselves."""
    from eks_ray_train.cli.render import synthesize

    synthesize(REPO, folder / "app", [])
    environment = {**os.environ, "CDK_OUTDIR": str(folder / "minimal")}
    subprocess.run([sys.executable, str(REPO / "examples" / "minimal.py")], env=environment, check=True, capture_output=True)
    return {
        "one stack (examples/minimal.py)": report(*read_assembly(folder / "minimal")),
        "three stacks (app.py)": report(*read_assembly(folder / "app")),
    }


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="critical-path-") as folder:
        compositions = synthesize_both(Path(folder))
    RESULT.write_text(json.dumps({"minutes_by_kind": MINUTES, "compositions": compositions}, indent=2) + "\n", encoding="utf-8")
    for name, result in compositions.items():
        print(f"{name}: {result['minutes']} minutes; {result['minutes_if_nothing_ran_beside_anything']} in a row")
        for step in result["path"]:
            print(f"  {step['done']:6.1f}  {step['kind']:<14} {step['stack']}/{step['resource']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
