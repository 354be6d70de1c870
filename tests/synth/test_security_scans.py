"""cdk-nag (AwsSolutions) and checkov on every variant: each finding is fixed, or suppressed on one resource with a reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.suppressions import SUPPRESSIONS
from tests.synth.variants import VARIANTS

NAMES = [*VARIANTS, "RayTrainJob"]
MOST = 12


@dataclass(frozen=True)
class Scan:
    folder: Path
    violations: list[tuple[str, str]]  # rule, construct path
    suppressed: list[tuple[str, str, str]]  # rule, construct path, reason


@pytest.fixture(scope="module")
def scans(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scan]:
    """Every variant synthesized with cdk-nag as validation plugin."""
    from eks_ray_train.node_runtime import use_bundled_node

    use_bundled_node()
    from aws_cdk import App, Environment, Validations
    from cdk_nag import AwsSolutionsChecks

    import app as application
    from eks_ray_train import Settings
    from eks_ray_train.settings import read_cdk_json

    context = read_cdk_json(repo / "cdk.json")
    root = tmp_path_factory.mktemp("scans")
    found = {}
    for name in NAMES:
        cdk = App(context=context, analytics_reporting=False, outdir=str(root / name))
        if name in VARIANTS:
            application.build(cdk, Settings(**VARIANTS[name]), Environment(region=VARIANTS[name].get("region")))
        else:
            _gitops_example(repo, cdk)
        Validations.of(cdk).add_plugins(AwsSolutionsChecks())
        failure = ""
        try:
            cdk.synth()
        except RuntimeError as error:  # the report says what failed
            failure = str(error)
        found[name] = _read(root / name)
        assert not failure or found[name].violations, failure
    return found


def _gitops_example(repo: Path, cdk: Any) -> None:
    sys.path.insert(0, str(repo / "examples"))
    try:
        import gitops_job  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(repo / "examples"))
    gitops_job.build(cdk)


def _read(folder: Path) -> Scan:
    document = json.loads((folder / "validation-report.json").read_text())
    (report,) = [r for r in document["pluginReports"] if r["pluginName"] == "AwsSolutions"]
    return Scan(
        folder=folder,
        violations=[(v["ruleName"], c["constructPath"]) for v in report["violations"] for c in v["violatingConstructs"]],
        suppressed=[
            (v["ruleName"], c["constructPath"], v["reason"])
            for v in report.get("suppressedViolations", [])
            for c in v["violatingConstructs"]
        ],
    )  # fmt: skip


def suppressed_resources(scan: Scan) -> set[tuple[str, str, str]]:
    """Each resource with a suppression, as (stack, reason, what it is of): a function or role counts once with its policies."""
    found = {
        (path.partition("/")[0], reason, _owner(path)) for _, path, reason in scan.suppressed
    }  # fmt: skip
    by_nag = {(stack, reason) for stack, reason, _ in found}
    for path in scan.folder.glob("*.template.json"):
        stack = path.name.removesuffix(".template.json")
        for name, resource in json.loads(path.read_text())["Resources"].items():
            for skip in resource.get("Metadata", {}).get("checkov", {}).get("skip", []):
                if (stack, skip["comment"]) not in by_nag:  # else a part of what cdk-nag looks at
                    found.add((stack, skip["comment"], name))
    return found


def _owner(path: str) -> str:
    return path.partition("/ServiceRole")[0].removesuffix("/Resource").removesuffix("/DefaultPolicy")


def test_every_reason_is_its_own_and_says_something() -> None:
    assert all(len(entry.reason) > 40 and (entry.nag or entry.checkov) for entry in SUPPRESSIONS.values())
    assert len({entry.reason for entry in SUPPRESSIONS.values()}) == len(SUPPRESSIONS)


@pytest.mark.parametrize("name", NAMES)
def test_at_most_twelve_resources_of_all_stacks_together_have_a_suppression(scans: dict[str, Scan], name: str) -> None:
    found = suppressed_resources(scans[name])
    assert 0 < len(found) <= MOST, sorted(found)
    assert {reason for _, reason, _ in found} <= {entry.reason for entry in SUPPRESSIONS.values()}


def test_the_count_by_resource_is_reached_where_everything_is_switched_on(scans: dict[str, Scan]) -> None:
    """So that one more suppression, in any variant's code, shows."""
    assert len(suppressed_resources(scans["block-nothing-kept"])) == MOST


@pytest.mark.parametrize("name", NAMES)
def test_cdk_nag_finds_nothing_that_is_not_suppressed(scans: dict[str, Scan], name: str) -> None:
    assert scans[name].violations == []
    assert scans[name].suppressed  # it did look


def test_no_suppression_stands_on_a_resource_where_cdk_nag_finds_nothing(scans: dict[str, Scan]) -> None:
    used = {(reason, rule.partition("[")[0]) for scan in scans.values() for rule, _, reason in scan.suppressed}
    written = {(entry.reason, rule) for entry in SUPPRESSIONS.values() for rule in entry.nag}
    assert used == written


def test_a_reason_is_given_by_one_resource_of_a_stack_and_what_belongs_to_it(scans: dict[str, Scan]) -> None:
    for name, scan in scans.items():
        places: dict[tuple[str, str], set[str]] = {}
        for _, path, reason in scan.suppressed:
            places.setdefault((path.partition("/")[0], reason), set()).add(_owner(path))
        addons = SUPPRESSIONS["addon-role"].reason
        assert all(len(owners) == 1 for (_, reason), owners in places.items() if reason != addons), (name, places)


@pytest.fixture(scope="module")
def checkov(repo: Path) -> Path:
    """checkov's program: $CHECKOV, or one in an environment of its own beside .venv, made on first use."""
    if os.environ.get("CHECKOV"):
        return Path(os.environ["CHECKOV"])
    program = repo / ".venv-checkov" / "bin" / "checkov"
    if not program.exists():
        pip = [str(program.parent / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        try:
            subprocess.run([sys.executable, "-m", "venv", str(program.parent.parent)], check=True, capture_output=True)
            subprocess.run([*pip, "-r", str(repo / "requirements-checkov.txt")], check=True, capture_output=True, timeout=420)
        except (OSError, subprocess.SubprocessError) as error:
            shutil.rmtree(program.parent.parent, ignore_errors=True)
            pytest.skip(f"checkov cannot be installed here (requirements-checkov.txt): {error}")
    return program


@pytest.mark.timeout(1500)  # the first run installs checkov
def test_checkov_finds_nothing_that_is_not_suppressed(checkov: Path, scans: dict[str, Scan], tmp_path: Path) -> None:
    for name, scan in scans.items():
        (tmp_path / name).mkdir()
        for template in scan.folder.glob("*.template.json"):
            shutil.copy(template, tmp_path / name)
    command = [str(checkov), "-d", str(tmp_path), "--framework", "cloudformation", "--skip-download", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    report = json.loads(done.stdout)
    failed = {(f["check_id"], f["file_path"], f["resource"]) for f in report["results"]["failed_checks"]}
    assert failed == set()
    assert report["summary"]["passed"] > 500 and report["summary"]["parsing_errors"] == 0
    used = {(c["check_id"], c["check_result"]["suppress_comment"]) for c in report["results"]["skipped_checks"]}
    assert used == {(rule, entry.reason) for entry in SUPPRESSIONS.values() for rule in entry.checkov}
