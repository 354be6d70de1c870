"""Every command that the documentation shows is run as it stands there: those that need AWS or a cluster against stand-ins."""

from __future__ import annotations

import ast
import gzip
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore import xform_name
from botocore.loaders import Loader

from eks_ray_train.cli import __main__ as cli
from eks_ray_train.cli import aws_session, capacity, init, leftovers, stack_state
from eks_ray_train.cli.leftovers import Report
from tests.deployed_cluster import Deployed, deployed
from tests.docs_reading import COMMANDS, CURRENT, OPTIONS, REPO, code_lines
from tests.fake_cdk import CdkWorld
from tests.fake_ec2 import FakeAccount, World
from tests.pure.test_cli_init import Init
from tests.ray_stub import StubJob, StubRay, serve

__all__ = ["deployed"]  # a fixture

LOGS = REPO / "tests" / "data" / "nccl"
# Commands that this file cannot run, and the test that does.
ELSEWHERE = {
    "dashboard": "tests/pure/test_cli_deployed.py::test_dashboard_prints_a_url_that_answers",
    "train": "tests/training/test_submit_train.py",
    "render": "tests/synth/test_render_command.py",
}
# Exit codes besides 0 that a stand-in's answer may give. A job that shows no NCCL line fails the gate.
ALSO = {"submit": {3}, "bench transport": {3}, "bench nccl": {3}, "gate": {3}}


def shown() -> dict[str, str]:
    """Command line of eks-ray-train -> a page that shows it; comments, pipes and redirections cut off."""
    found: dict[str, str] = {}
    for page in CURRENT:
        for line in code_lines(page.read_text(encoding="utf-8")):
            for part in re.split(r"&&|\|\s|[>;#]", line):
                words = re.sub(r"^(- )?run: ", "", part.strip())
                words = re.sub(r"^(?:[A-Z_]+=\S+ )+", "", words)
                if re.match(r"eks-ray-train \S", words) and "COMMAND" not in words:
                    found.setdefault(words.removeprefix("eks-ray-train ").strip(), page.name)
    return found


SHOWN = shown()


def name_of(line: str) -> str | None:
    words = line.split()
    return next((n for n in (" ".join(words[:2]), words[0]) if n in COMMANDS), None)


def different() -> list[str]:
    """One line for each command and set of flags: another model's name is no other command."""
    kinds: dict[tuple[str, ...], str] = {}
    for line in sorted(SHOWN):
        if (name := name_of(line)) and name not in ELSEWHERE:
            values = [word for word in line.split() if "://" in word or re.fullmatch(r"[\d.e]+", word)] if name != "submit" else []
            kinds.setdefault((name, *re.findall(r"(?<!\S)--[\w-]*", line), *values), line)
    return list(kinds.values())


RUN_HERE = different()


def words_of(line: str, **values: str) -> list[str]:
    """The words as a shell would hand them over, with what the pages leave open filled in."""
    for pattern, value in (
        (r"--model_id …", "--model_id Qwen/Qwen2.5-1.5B"), (r"--steps …", "--steps 5"), (r"-- …$", "-- --steps 5"),
        (r"http://(?:HOST|…):8265", values.get("address", "")), (r"\bcr-…|(?<=check )ID\b", values.get("reservation", "")),
        (r"\bID\b", "run-1"), (r"\bN\b", "2"), (r"FILE…", "train.log"), (r"(?<=--job-status )S\b", "SUCCEEDED"), (r'"\$STATUS"', "SUCCEEDED"),
    ):  # fmt: skip
        line = re.sub(pattern, value, line)
    words: list[str] = []
    for word in shlex.split(line):
        words += sorted(str(p) for p in Path().glob(word)) if "*" in word and not word.startswith("s3:") else [word]
    name = name_of(line)
    cut = words.index("--") if "--" in words else len(words)
    yes = ["--yes"] if name and "--yes" in OPTIONS[name] and "--yes" not in words else []
    return [*words[:cut], *yes, *words[cut:]]


@pytest.fixture
def bare_ray() -> Iterator[str]:
    with serve(StubRay().app()) as port:
        yield f"http://127.0.0.1:{port}"


def files(folder: Path) -> None:
    """What the pages name: logs, a model's configuration, a job's folder."""
    shutil.copy(LOGS / "53-efa-direct-two-node-receipts.log", folder / "train.log")
    shutil.copy(LOGS / "27-socket-ec2-no-plugin-nccl24.log", folder / "tcp.log")
    for number in range(2):
        (folder / f"worker-{number}.log.gz").write_bytes(gzip.compress((folder / "train.log").read_bytes()))
    shutil.copy(REPO / "job" / "configs" / "qwen2-tiny.json", folder / "config.json")
    shutil.copy(REPO / "job" / "nccl_bench.py", folder / "job" / "nccl_bench.py")


def account(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """A deployed account behind ``up``, ``down``, ``scale`` and ``capacity``; the id of a reservation in it."""
    (folder / "cdk.json").write_text('{"app": "x", "context": {"eks-ray-train": {"region": "us-west-2", "gpu_node_count": 2}}}')
    world = CdkWorld(folder)
    world.standing(Network="CREATE_COMPLETE", Cluster="CREATE_COMPLETE", Training="CREATE_COMPLETE")
    oregon = World(zones={f"us-west-2{letter}": f"usw2-az{n}" for n, letter in enumerate("abc", 1)})
    ohio = World(region="us-east-2", zones={f"us-east-2{letter}": f"use2-az{n}" for n, letter in enumerate("ab", 1)})
    for ec2 in (oregon, ohio):
        ec2.quota = dict.fromkeys(ec2.quota, 10_000)
    held = oregon.add_reservation(zone_id="usw2-az1", TotalInstanceCount=2, AvailableInstanceCount=2)
    monkeypatch.setenv("EKS_RAY_TRAIN_CDK", str(world.command))
    monkeypatch.setattr(aws_session, "open_session", world.session)
    monkeypatch.setattr(leftovers, "look", lambda session, region, settings: Report(region="us-west-2", items=()))
    monkeypatch.setattr(stack_state, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(
        capacity, "open_account", lambda region: FakeAccount({"us-west-2": oregon, "us-east-2": ohio}, home=region or "us-west-2")
    )
    return str(held["CapacityReservationId"])


def test_the_pages_show_many_commands_and_every_kind() -> None:
    names = {name_of(line) for line in SHOWN}
    assert len(SHOWN) > 40
    assert set(COMMANDS) - names == set(), "commands that no page shows in use"


@pytest.mark.parametrize("line", RUN_HERE)
def test_a_command_of_the_documentation_runs(
    line: str, deployed: Deployed, bare_ray: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = name_of(line)
    assert name
    files(tmp_path)
    deployed.ray.jobs["run-1"] = StubJob(script=[(0, "SUCCEEDED")], log=b"hello\n")
    reservation = ""
    if name == "init":
        Init(monkeypatch, tmp_path, capsys)
    elif name.split()[0] in ("up", "down", "scale", "capacity", "teardown"):
        reservation = account(monkeypatch, tmp_path)
    code = cli.main(words_of(line, address=bare_ray, reservation=reservation))
    out = capsys.readouterr()
    assert code in {0, *ALSO.get(name, set())}, f"{SHOWN[line]}: eks-ray-train {line} ended with {code}\n{out.err[-2000:]}"
    assert "Traceback" not in out.out + out.err


def test_a_command_that_does_not_run_would_be_found(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words_of("submit --detatch -- --steps 5")) == 2
    assert init.run  # the module whose stand-in is used above


def test_what_cannot_run_here_has_a_test_elsewhere() -> None:
    for command, place in ELSEWHERE.items():
        path, _, name = place.partition("::")
        names = {node.name for node in ast.walk(ast.parse((REPO / path).read_text())) if isinstance(node, ast.FunctionDef)}
        assert command in COMMANDS and names
        assert not name or name in names, f"{command}: {place}"


# ---- commands of other programs -----------------------------------------------------------------------------------------
def others(program: str) -> list[str]:
    lines = [line for page in CURRENT for line in code_lines(page.read_text(encoding="utf-8"))]
    return [part.strip() for line in lines for part in re.split(r"&&|\|\s|[>;#]", line) if part.strip().startswith(f"{program} ")]


def test_every_script_that_a_page_runs_exists() -> None:
    named = {word for line in others("python") for word in line.split() if word.endswith(".py") and "/" in word}
    named |= {word for line in others("cdk") for word in re.findall(r'"python ([\w/]+\.py)"', line)}
    assert len(named) > 5
    assert [word for word in named if not (REPO / word).exists()] == []


def wrong_aws(line: str) -> list[str]:
    """What AWS's own models say against an ``aws`` command: unknown service, operation or parameter."""
    loader = Loader()
    _, service, operation, *words = shlex.split(line.replace("…", "x"))
    if (service, operation) in (("eks", "update-kubeconfig"), ("s3", "cp")):  # the CLI's own, not the API's
        return []
    if service not in loader.list_available_services("service-2"):
        return [service]
    model = loader.load_service_model(service, "service-2")
    known = {xform_name(name, "-"): op for name, op in model["operations"].items()}
    if f"{service} {operation}" in OF_THE_CLI:
        return []
    if operation not in known:
        return [f"{service} {operation}"]
    members = model["shapes"][known[operation]["input"]["shape"]]["members"]
    flags = {xform_name(member, "-") for member in members} | {"region", "query", "output", "profile"}
    return [word for word in words if word.startswith("--") and word[2:] not in flags]


OF_THE_CLI = {"logs tail"}
"""Commands that the AWS command line makes of several operations (awscli/customizations)."""


def test_every_aws_command_is_one_that_aws_knows() -> None:
    lines = [line for line in others("aws") if len(line.split()) > 2]
    assert len(lines) >= 4
    assert [(line, bad) for line in lines if (bad := wrong_aws(line))] == []
    assert wrong_aws("aws eks describe-cluster --nam x") == ["--nam"] and wrong_aws("aws eks describe-clutser") == ["eks describe-clutser"]
