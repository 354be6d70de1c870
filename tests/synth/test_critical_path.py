"""The deploy's critical path: nothing waits for what it does not need."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.synth.template_reading import CHART, depends_on, of_type

REPO = Path(__file__).resolve().parents[2]


def _load(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


bench = _load(REPO / "bench" / "critical_path.py", "bench_critical_path")


@pytest.fixture(scope="module")
def minimal(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from eks_ray_train.node_runtime import use_bundled_node

    use_bundled_node()
    from aws_cdk import App

    app = App(outdir=str(tmp_path_factory.mktemp("minimal")))
    _load(REPO / "examples" / "minimal.py", "example_minimal_for_path").build(app)
    template: dict[str, Any] = json.loads((Path(app.synth().directory) / "Minimal.template.json").read_text())
    return template


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(bench.RESULT.read_text())
    return result


def test_with_everything_in_one_stack_the_path_is_at_most_17_minutes_and_the_recorded_one(
    minimal: dict[str, Any], recorded: dict[str, Any]
) -> None:
    found = bench.report({"Minimal": minimal}, {})
    assert found["minutes"] <= 17
    assert found["minutes"] == recorded["compositions"]["one stack (examples/minimal.py)"]["minutes"]


def test_coredns_charts_and_gpu_nodes_come_up_beside_each_other(minimal: dict[str, Any]) -> None:
    gpu = next(n for n, g in of_type(minimal, "AWS::EKS::Nodegroup").items() if g["Properties"].get("Taints"))
    coredns = next(n for n, a in of_type(minimal, "AWS::EKS::Addon").items() if a["Properties"]["AddonName"] == "coredns")
    beside = {gpu, coredns, *of_type(minimal, CHART)}
    assert len(beside) == 5
    for name in beside:
        assert not beside & depends_on(minimal, name), name


def test_the_three_stacks_take_the_recorded_time_and_only_their_order_costs_more(
    default_app: dict[str, Any], recorded: dict[str, Any]
) -> None:
    stacks = {"network": default_app["network"], "eks": default_app["eks"], "training": default_app["training"]}
    in_a_row = {"eks": ["network"], "training": ["eks", "network"]}
    found = bench.report(stacks, in_a_row)
    assert found["minutes"] == recorded["compositions"]["three stacks (app.py)"]["minutes"]
    waited = {step["kind"]: step["minutes"] for step in found["path"]}
    assert waited["system nodes"] + waited["coredns"] == 3.5  # of the stack before: the GPU nodes need neither
    alone = bench.report({"training": default_app["training"]}, {})["minutes"]
    assert alone <= 5.5  # claim, nodes, limit: nothing else of the training stack is on its path


def test_the_path_goes_through_the_slower_branch_and_waits_for_whole_stacks() -> None:
    first = {"Resources": {
        "Nat": {"Type": "AWS::EC2::NatGateway"},
        "Slow": {"Type": "AWS::EKS::Cluster", "DependsOn": "Nat"},
        "Quick": {"Type": "Custom::X", "Properties": {"A": {"Fn::GetAtt": ["Nat", "Id"]}}},
    }}  # fmt: skip
    second = {"Resources": {
        "Nodes": {"Type": "AWS::EKS::Nodegroup", "Properties": {"Taints": [1]}},
        "Text": {"Type": "Custom::Y", "Properties": {"B": {"Fn::Sub": "x ${Nodes.Arn} ${AWS::Region}"}}},
    }}  # fmt: skip
    path = bench.longest_path({"first": first, "second": second}, {"second": ["first"]})
    assert [(step.resource, step.done) for step in path] == [("Nat", 2.0), ("Slow", 11.0), ("Nodes", 14.5), ("Text", 14.7)]


def test_a_cycle_is_an_error_that_names_a_resource_of_it() -> None:
    template = {"Resources": {"A": {"Type": "T", "DependsOn": ["B"]}, "B": {"Type": "T", "DependsOn": ["A"]}}}
    with pytest.raises(ValueError, match="depends on itself"):
        bench.longest_path({"s": template}, {})
