"""Kubernetes manifests and Helm charts inside synthesized CloudFormation templates, read back. Pure but for reading files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST_RESOURCE = "Custom::AWSCDK-EKS-KubernetesResource"
CHART_RESOURCE = "Custom::AWSCDK-EKS-HelmChart"


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """One object that a deploy applies. ``source`` is ``stack/logical id``; values that only CloudFormation knows are texts
    such as ``<EksRayTrainTraining.StorageBucket>``."""

    source: str
    document: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One Helm release of a deploy."""

    source: str
    release: str
    chart: str
    version: str
    repository: str
    namespace: str
    values: Any


def read_templates(folder: Path) -> tuple[list[Rendered], list[Chart]]:
    """Everything that the stacks below a cloud assembly's ``folder`` apply to Kubernetes, in the stacks' deployment order."""
    assembly = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifests: list[Rendered] = []
    charts: list[Chart] = []
    for name, artifact in assembly["artifacts"].items():
        if artifact["type"] != "aws:cloudformation:stack":
            continue
        template = json.loads((folder / artifact["properties"]["templateFile"]).read_text(encoding="utf-8"))
        found, used = from_template(name, template)
        manifests += found
        charts += used
    return manifests, charts


def from_template(stack: str, template: Mapping[str, Any]) -> tuple[list[Rendered], list[Chart]]:
    """The manifests and charts of one template."""
    manifests: list[Rendered] = []
    charts: list[Chart] = []
    for logical_id, resource in template.get("Resources", {}).items():
        properties, source = resource.get("Properties", {}), f"{stack}/{logical_id}"
        if resource["Type"] == MANIFEST_RESOURCE:
            documents = json.loads(_text(properties["Manifest"], stack, json_text=True))
            manifests += [Rendered(source=source, document=document) for document in documents]
        elif resource["Type"] == CHART_RESOURCE:
            fields = {key.lower(): _text(properties.get(key, ""), stack) for key in ("Release", "Chart", "Version", "Repository", "Namespace")}
            values = json.loads(_text(properties.get("Values", "{}"), stack, json_text=True))
            charts.append(Chart(source=source, values=values, **fields))
    return manifests, charts


def _text(value: Any, stack: str, *, json_text: bool = False) -> str:
    """A template value as text. In JSON text a reference that stands for a whole value (a number) gets quotes."""
    if isinstance(value, str):
        return value
    parts = list(_parts(value, stack))
    text = ""
    for literal, part in parts:
        bare = json_text and not literal and not _inside_string(text)
        text += json.dumps(part) if bare else part
    return text


def _inside_string(text: str) -> bool:
    """Whether the end of this beginning of a JSON text lies inside a string."""
    inside, escaped = False, False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\" and inside:
            escaped = True
        elif character == '"':
            inside = not inside
    return inside


def _parts(value: Any, stack: str) -> Iterator[tuple[bool, str]]:
    """(literal?, text) of each piece of a joined value."""
    if isinstance(value, dict) and list(value) == ["Fn::Join"]:
        separator, pieces = value["Fn::Join"]
        for number, piece in enumerate(pieces):
            if number and separator:
                yield True, separator
            yield from _parts(piece, stack)
    elif isinstance(value, str):
        yield True, value
    else:
        yield False, f"<{_reference(value, stack)}>"


def _reference(value: Any, stack: str) -> str:
    if isinstance(value, dict) and len(value) == 1:
        ((function, argument),) = value.items()
        if function == "Ref":
            return argument if argument.startswith("AWS::") else f"{stack}.{argument}"
        if function == "Fn::GetAtt":
            return f"{stack}.{'.'.join(argument)}" if isinstance(argument, list) else f"{stack}.{argument}"
        if function == "Fn::GetStackOutput":
            return f"{argument.get('StackName', '?')}.{argument.get('OutputName', '?')}"
        if function == "Fn::ImportValue":
            return str(argument)
    return json.dumps(value, separators=(",", ":"))
