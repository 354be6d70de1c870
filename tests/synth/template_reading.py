"""Reads CloudFormation templates: resources by type, manifests and chart values out of their JSON strings."""

from __future__ import annotations

import json
from typing import Any

Template = dict[str, Any]
MANIFEST = "Custom::AWSCDK-EKS-KubernetesResource"
CHART = "Custom::AWSCDK-EKS-HelmChart"


def of_type(template: Template, kind: str) -> dict[str, Any]:
    """Resources of one type by logical id."""
    return {name: r for name, r in template["Resources"].items() if r["Type"] == kind}


def only(template: Template, kind: str) -> dict[str, Any]:
    """The one resource of that type."""
    found = of_type(template, kind)
    assert len(found) == 1, f"{len(found)} resources of type {kind}: {sorted(found)}"
    return next(iter(found.values()))


def text_of(value: Any) -> str:
    """A string property as text; what only a deploy knows becomes ``<deploy>``."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and set(value) == {"Fn::Join"}:
        separator, parts = value["Fn::Join"]
        return str(separator).join(text_of(part) for part in parts)
    return "<deploy>"


def manifests(template: Template, kind: str | None = None) -> list[dict[str, Any]]:
    """All Kubernetes objects that the template applies, or those of one kind."""
    objects: list[dict[str, Any]] = []
    for resource in of_type(template, MANIFEST).values():
        objects += json.loads(text_of(resource["Properties"]["Manifest"]))
    return [o for o in objects if kind is None or o["kind"] == kind]


def manifest_resource(template: Template, kind: str) -> tuple[str, dict[str, Any]]:
    """Logical id and resource that applies the object of ``kind``."""
    for name, resource in of_type(template, MANIFEST).items():
        if any(o["kind"] == kind for o in json.loads(text_of(resource["Properties"]["Manifest"]))):
            return name, resource
    raise AssertionError(f"no manifest of kind {kind}")


def chart_values(template: Template, chart: str) -> dict[str, Any]:
    """The values of the one release of ``chart``."""
    found = [r for r in of_type(template, CHART).values() if r["Properties"].get("Chart") == chart]
    assert len(found) == 1, f"{len(found)} releases of {chart}"
    values: dict[str, Any] = json.loads(text_of(found[0]["Properties"]["Values"]))
    return values


def launch_template_of(template: Template, node_group: dict[str, Any]) -> dict[str, Any]:
    """LaunchTemplateData of a node group's template."""
    ref = node_group["Properties"]["LaunchTemplate"]["Id"]["Ref"]
    data: dict[str, Any] = template["Resources"][ref]["Properties"]["LaunchTemplateData"]
    return data


def depends_on(template: Template, start: str) -> set[str]:
    """Logical ids that ``start`` waits for, directly or not: DependsOn, Ref and GetAtt."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        resource = template["Resources"].get(todo.pop())
        if resource is None:
            continue
        for name in _direct(resource):
            if name in template["Resources"] and name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


def _direct(value: Any) -> set[str]:
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
                found |= _direct(inner)
    elif isinstance(value, list):
        for inner in value:
            found |= _direct(inner)
    return found
