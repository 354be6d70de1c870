"""The CodePipeline example: reviews start with pull requests, the nightly run is gated, inside the VPC, and stops paying."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs_reading import problems_of
from tests.synth.template_reading import of_type

Template = dict[str, Any]


@pytest.fixture(scope="module")
def template(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Template:
    from eks_ray_train.node_runtime import use_bundled_node

    use_bundled_node()
    from aws_cdk import App

    spec = importlib.util.spec_from_file_location("example_codepipeline", repo / "examples" / "ci" / "codepipeline.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out = tmp_path_factory.mktemp("codepipeline")
    app = App(outdir=str(out))
    module.build(app)
    app.synth()
    found: Template = json.loads((out / "TrainingPipelines.template.json").read_text())
    return found


def projects(template: Template) -> dict[str, dict[str, Any]]:
    """Build specification and properties of each project by its construct's name."""
    found = {}
    for name, resource in of_type(template, "AWS::CodeBuild::Project").items():
        properties = resource["Properties"]
        short = "NightlyRun" if name.startswith("NightlyRun") else "ReviewBuild"
        found[short] = {**properties, "spec": yaml.safe_load(properties["Source"]["BuildSpec"])}
    return found


def test_a_pull_request_starts_the_review_and_nothing_else_does(template: Template) -> None:
    pipelines = of_type(template, "AWS::CodePipeline::Pipeline")
    triggers = {name: r["Properties"].get("Triggers") for name, r in pipelines.items()}
    assert len(pipelines) == 2
    (review,) = [t for name, t in triggers.items() if name.startswith("Review")]
    assert review[0]["GitConfiguration"]["PullRequest"][0]["Events"] == ["OPEN", "UPDATED"]
    assert [t for name, t in triggers.items() if name.startswith("Nightly")] == [None]
    for resource in pipelines.values():
        (source,) = resource["Properties"]["Stages"][0]["Actions"]
        assert source["Configuration"]["DetectChanges"] is False


def test_the_review_synthesizes_and_compares(template: Template) -> None:
    assert projects(template)["ReviewBuild"]["spec"]["phases"]["build"]["commands"] == ["make synth", ".venv/bin/cdk diff --method template"]


def test_the_nightly_run_is_gated_inside_the_vpc_and_stops_paying_whatever_happened(template: Template) -> None:
    nightly = projects(template)["NightlyRun"]
    build = nightly["spec"]["phases"]["build"]
    assert any("submit --gate" in command for command in build["commands"])
    assert build["finally"] == [".venv/bin/eks-ray-train scale 0"]
    assert nightly["spec"]["reports"]["gate"] == {"files": ["gate.xml"], "file-format": "JUNITXML"}
    assert nightly["VpcConfig"]["Subnets"] and nightly["ConcurrentBuildLimit"] == 1
    (rule,) = of_type(template, "AWS::Events::Rule").values()
    assert rule["Properties"]["ScheduleExpression"].startswith("cron(")


def test_every_command_of_the_builds_exists(template: Template) -> None:
    for project in projects(template).values():
        phases = project["spec"]["phases"]
        lines = [*phases["install"]["commands"], *phases["build"]["commands"], *phases["build"].get("finally", [])]
        assert [bad for line in lines if (bad := problems_of(line.removeprefix(".venv/bin/")))] == []


def test_a_review_may_only_look(template: Template) -> None:
    (policy,) = [p for name, p in of_type(template, "AWS::IAM::Policy").items() if name.startswith("ReviewBuildRole")]
    assumed = [s["Resource"] for s in policy["Properties"]["PolicyDocument"]["Statement"] if s["Action"] == "sts:AssumeRole"]
    assert len(assumed) == 1 and "cdk-hnb659fds-lookup-role-*" in json.dumps(assumed)
