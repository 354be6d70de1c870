"""The app as a user runs it: a process of its own, with no AWS environment and an empty home."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STACKS = ("EksRayTrainNetwork", "EksRayTrainCluster", "EksRayTrainTraining")


def _environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "CDK_", "NODE_", "JSII_"))}
    return {**kept, **more}


@pytest.fixture(scope="module")
def plain(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """`python app.py` where neither the virtual environment nor any Node.js is on PATH."""
    out = tmp_path_factory.mktemp("plain")
    environment = _environment(PATH="/usr/bin:/bin", CDK_OUTDIR=str(out))
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=repo, env=environment, capture_output=True, text=True, check=False
    )
    return done, out


def test_python_app_py_synthesizes_three_stacks_silently(plain: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, out = plain
    assert done.returncode == 0, done.stderr
    assert {p.name.removesuffix(".template.json") for p in out.glob("*.template.json")} == set(STACKS)
    assert done.stdout == "" and done.stderr == ""


def test_nothing_is_looked_up_and_no_warning_is_ours(plain: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    manifest = json.loads((plain[1] / "manifest.json").read_text())
    assert not manifest.get("missing")
    assert "aws:cdk:warning" not in json.dumps(manifest)
    for path in plain[1].glob("*.metadata.json"):
        assert "aws:cdk:warning" not in path.read_text()


def test_the_templates_rules_of_the_cdk_found_nothing(plain: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    report = json.loads((plain[1] / "validation-report.json").read_text())
    assert [p for p in report["pluginReports"] if p.get("violations")] == []


def test_a_template_that_breaks_a_rule_of_the_cdk_is_an_error(repo: Path, tmp_path: Path) -> None:
    from aws_cdk import App, Stack
    from aws_cdk import aws_s3 as s3

    from eks_ray_train.settings import read_cdk_json

    app = App(context=read_cdk_json(repo / "cdk.json"), outdir=str(tmp_path))
    s3.CfnBucket(Stack(app, "Broken"), "Bucket", bucket_name="NOT A BUCKET NAME")
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        app.synth()


def test_cdk_synth_works_with_the_cli_and_node_of_the_virtual_environment(repo: Path, tmp_path: Path) -> None:
    if shutil.which("cdk") is None:
        pytest.skip("needs the CDK CLI of requirements-cdk.txt in this environment")
    command = [
        "cdk", "synth", "--quiet", "--app", f"{sys.executable} app.py", "--output", str(tmp_path / "out"),
        "-c", "eks-ray-train:gpu_node_count=3",
    ]  # fmt: skip
    environment = _environment(HOME=str(tmp_path), CDK_DISABLE_VERSION_CHECK="1", AWS_EC2_METADATA_DISABLED="true")
    # jsii's unpacked packages are a cache; without it every home unpacks 100 MB again.
    environment["JSII_RUNTIME_PACKAGE_CACHE_ROOT"] = str(Path.home() / ".cache" / "aws" / "jsii" / "package-cache")
    done = subprocess.run(command, cwd=repo, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[Warning" not in done.stdout + done.stderr
    template = json.loads((tmp_path / "out" / "EksRayTrainTraining.template.json").read_text())
    sizes = [
        r["Properties"]["ScalingConfig"]["MaxSize"]
        for r in template["Resources"].values()
        if r["Type"] == "AWS::EKS::Nodegroup"
    ]
    assert sizes == [3]


def test_the_cdk_commands_telemetry_is_off_in_this_folder_and_in_no_other(repo: Path, tmp_path: Path) -> None:
    if shutil.which("cdk") is None:
        pytest.skip("needs the CDK CLI of requirements-cdk.txt in this environment")

    def status(folder: Path) -> str:
        environment = _environment(HOME=str(tmp_path), CDK_DISABLE_VERSION_CHECK="1", AWS_EC2_METADATA_DISABLED="true")
        environment.pop("CDK_DISABLE_CLI_TELEMETRY", None)
        done = subprocess.run(["cdk", "cli-telemetry", "--status"], cwd=folder, env=environment, capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    assert "CLI Telemetry is disabled" in status(repo)
    assert "CLI Telemetry is enabled" in status(tmp_path)  # so that the first answer is cdk.json's


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc to see when jsii has started")
def test_ctrl_c_during_synthesis_is_quiet_and_exit_code_130(repo: Path, tmp_path: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, "app.py"], cwd=repo, env=_environment(CDK_OUTDIR=str(tmp_path)), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    while running.poll() is None and not children.read_text().split():
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    out, error = running.communicate(timeout=60)
    assert (running.returncode, out, error) == (130, "", "")


@pytest.mark.parametrize("program", [["app.py"], ["job/train.py", "--steps", "3"]], ids=["app.py", "train.py"])
def test_without_its_packages_it_says_in_one_line_what_to_do(repo: Path, program: list[str]) -> None:
    # -S: this Python without its site-packages, as the system's own is.
    done = subprocess.run([sys.executable, "-S", *program], cwd=repo, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "source .venv/bin/activate" in done.stderr, done.stderr
    lacks = "aws_cdk or eks_ray_train" if program == ["app.py"] else "ray, torch, transformers"
    assert f"lacks {lacks}" in done.stderr


def test_train_py_without_its_packages_still_ends_with_a_done_event_and_tells_wrong_flags_first(repo: Path) -> None:
    for words, says in ((["--steps", "3"], "lacks ray"), (["--stepz", "3"], "did you mean --steps?")):
        done = subprocess.run([sys.executable, "-S", "job/train.py", *words], cwd=repo, capture_output=True, text=True, check=False)
        event = json.loads(done.stdout)
        assert (event["event"], event["status"], event["exit_code"], done.returncode) == ("done", "failed", 2, 2)
        assert says in event["error"]["message"] and says in done.stderr
    help_ = subprocess.run([sys.executable, "-S", "job/train.py", "--help"], cwd=repo, capture_output=True, text=True, check=False)
    assert help_.returncode == 0 and "--model-id" in help_.stdout


def test_an_import_that_fails_inside_is_shown_as_it_is(repo: Path, tmp_path: Path) -> None:
    shutil.copy(repo / "app.py", tmp_path)
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "__init__.py").write_text("import not_there_at_all\n")
    done = subprocess.run([sys.executable, "app.py"], cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "No module named 'not_there_at_all'" in done.stderr and "Traceback" in done.stderr


def test_a_region_that_looks_mistyped_is_a_warning_of_the_synthesis(repo: Path, tmp_path: Path) -> None:
    context = {"eks-ray-train": {"region": "us-eas-1"}}
    environment = _environment(CDK_CONTEXT_JSON=json.dumps(context), CDK_OUTDIR=str(tmp_path))
    done = subprocess.run([sys.executable, "app.py"], cwd=repo, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = "".join(path.read_text() for path in [tmp_path / "manifest.json", *tmp_path.glob("*.metadata.json")])
    assert "aws:cdk:warning" in told and "the nearest is us-east-1" in told


BAD = [
    ({"eks-ray-train": {"gpu_node_count": 0}}, "gpu_node_count must be at least 1, got 0"),
    ({"eks-ray-train": {"gpu_instance_type": "g6.2xlarge"}}, "g6.8xlarge"),
    ({"eks-ray-train": {"cluster_name": "c" * 101}}, "101 characters"),
    ({"eks-ray-train": {"gpu_nodes": 2}}, "the nearest known one is"),
    ({"gpu_node_count": "3"}, "-c eks-ray-train:gpu_node_count="),
]


@pytest.mark.parametrize(("context", "message"), BAD, ids=[m for _, m in BAD])
def test_a_wrong_setting_is_one_message_and_exit_code_two(
    repo: Path, tmp_path: Path, context: dict[str, object], message: str
) -> None:
    environment = _environment(CDK_CONTEXT_JSON=json.dumps(context), CDK_OUTDIR=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=repo, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.startswith("eks-ray-train: ")
    assert not list(tmp_path.glob("*.template.json"))
