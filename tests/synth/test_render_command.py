"""``eks-ray-train render``: what a deploy applies, read back from the templates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from eks_ray_train.cli.__main__ import main
from eks_ray_train.cli.template_manifests import MANIFEST_RESOURCE, from_template
from tests.pure.manifest_support import crd_schema, schema_problems


def _render(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "CDK_"))}
    command = [sys.executable, "-m", "eks_ray_train.cli", "render", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def printed(repo: Path) -> str:
    """YAML of the repository's own application, with four nodes."""
    done = _render(repo, "-c", "eks-ray-train:gpu_node_count=4")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def documents(printed: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(printed) if document]


def _of(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


def test_the_deploys_objects_are_printed_as_yaml(documents: list[dict[str, Any]]) -> None:
    kinds = {document["kind"] for document in documents}
    assert {"Namespace", "ServiceAccount", "ConfigMap", "NetworkPolicy", "ValidatingAdmissionPolicy", "RayCluster"} <= kinds


def test_a_setting_given_on_the_command_line_reaches_the_manifests(documents: list[dict[str, Any]]) -> None:
    (cluster,) = _of(documents, "RayCluster")
    assert cluster["spec"]["workerGroupSpecs"][0]["replicas"] == 4
    facts = [document["data"] for document in _of(documents, "ConfigMap") if "expected_gpus" in document["data"]]
    assert facts == [{"expected_gpus": "16"}]


def test_the_raycluster_that_a_deploy_applies_fits_the_crd(documents: list[dict[str, Any]], shared_dir: Path) -> None:
    (cluster,) = _of(documents, "RayCluster")
    assert schema_problems(cluster, crd_schema(shared_dir, "rayclusters")) == []


def test_what_only_cloudformation_knows_appears_as_a_named_placeholder(documents: list[dict[str, Any]]) -> None:
    (cluster,) = _of(documents, "RayCluster")
    env = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    (path,) = [entry["value"] for entry in env if entry["name"] == "EKS_RAY_TRAIN_STORAGE_PATH"]
    assert path.startswith("s3://<EksRayTrainTraining.")


def test_the_jobs_files_are_readable_blocks(printed: str) -> None:
    assert "train.py: |" in printed


def test_charts_are_listed_as_comments(printed: str) -> None:
    comments = [line for line in printed.splitlines() if line.startswith("# Helm chart")]
    assert any("kuberay-operator 1.7.0" in line for line in comments)


def test_json_is_one_document_with_manifests_and_chart_values(repo: Path) -> None:
    done = _render(repo, "--json", "--kind", "raycluster")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [entry["manifest"]["kind"] for entry in document["manifests"]] == ["RayCluster"]
    assert {chart["release"] for chart in document["charts"]} >= {"kuberay-operator"}


def test_a_wrong_setting_is_one_message_with_exit_code_2(repo: Path) -> None:
    done = _render(repo, "-c", "eks-ray-train:gpu_node_count=0")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "gpu_node_count must be at least 1, got 0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no cdk.json in"), ("{", "is not JSON"), ("{}", "names no application"), ('{"app": "no-such-program"}', "cannot start")],
)
def test_a_folder_without_an_application_is_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "cdk.json").write_text(content)
    monkeypatch.chdir(tmp_path)
    assert main(["render"]) == 2
    assert message in capsys.readouterr().err


def test_a_context_without_a_value_is_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cdk.json").write_text('{"app": "python3 app.py"}')
    monkeypatch.chdir(tmp_path)
    assert main(["render", "-c", "gpu_node_count"]) == 2
    assert "takes KEY=VALUE" in capsys.readouterr().err


def test_an_application_that_crashes_is_told_with_the_end_of_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cdk.json").write_text('{"app": "python3 app.py"}')
    (tmp_path / "app.py").write_text("raise RuntimeError('out of luck')")
    monkeypatch.chdir(tmp_path)
    assert main(["render"]) == 1
    assert "out of luck" in capsys.readouterr().err


def _template(manifest: Any) -> dict[str, Any]:
    return {"Resources": {"R": {"Type": MANIFEST_RESOURCE, "Properties": {"Manifest": manifest}}}}


def test_references_inside_texts_and_instead_of_numbers_both_stay_valid_json() -> None:
    joined = {
        "Fn::Join": [
            "",
            ['[{"kind":"A","say":"a \\"b\\" ', {"Ref": "Bucket"}, '/x","replicas":', {"Fn::GetAtt": ["Claim", "Nodes"]}, ',"r":"', {"Ref": "AWS::Region"}, '"}]'],
        ]
    }  # fmt: skip
    (found,), _ = from_template("S", _template(joined))
    assert found.document == {"kind": "A", "say": 'a "b" <S.Bucket>/x', "replicas": "<S.Claim.Nodes>", "r": "<AWS::Region>"}
    assert found.source == "S/R"
