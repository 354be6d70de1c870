"""Workflows, ours and the examples to copy: pinned actions, least permissions, commands that exist; and the forms of the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs_reading import REPO, problems_of

OURS = sorted((REPO / ".github" / "workflows").glob("*.yml"))
EXAMPLES = sorted((REPO / "examples" / "ci" / "github").glob("*.yml"))
FORMS = sorted((REPO / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PINNED = re.compile(r"^[\w.-]+/[\w.-]+@[0-9a-f]{40}$")


def loaded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    # YAML 1.1 reads the key `on` as true.
    return {("on" if key is True else key): value for key, value in found.items()}


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def problems(workflow: dict[str, Any]) -> list[str]:
    """What is wrong with a workflow's structure, by GitHub's own rules and by ours."""
    found = [f"no {key}" for key in ("name", "on", "permissions", "jobs") if not workflow.get(key)]
    if workflow.get("permissions") == "write-all":
        found.append("may write everything")
    for name, job in workflow.get("jobs", {}).items():
        found += [f"{name} has no {key}" for key in ("runs-on", "timeout-minutes", "steps") if not job.get(key)]
        known = set(workflow["jobs"])
        found += [f"{name} needs {other}, which is no job" for other in [job["needs"]] if other not in known] if "needs" in job else []
        for step in job.get("steps", []):
            if ("uses" in step) == ("run" in step):
                found.append(f"{name}: a step either uses or runs: {step}")
            if "uses" in step and not PINNED.match(step["uses"]):
                found.append(f"{name}: {step['uses']} is not pinned by its commit")
            if "checkout" in step.get("uses", "") and step.get("with", {}).get("persist-credentials") is not False:
                found.append(f"{name}: the checkout leaves its token behind")
            if re.search(r"\$\{\{\s*(github\.event|github\.head_ref|inputs)", str(step.get("run", ""))):
                found.append(f"{name}: text of an event inside a shell command")
    return found


@pytest.mark.parametrize("path", [*OURS, *EXAMPLES], ids=lambda p: p.name)
def test_a_workflow_has_pinned_actions_least_permissions_and_a_limit(path: Path) -> None:
    assert problems(loaded(path)) == []


@pytest.mark.parametrize("path", [*OURS, *EXAMPLES], ids=lambda p: p.name)
def test_every_pinned_action_says_its_version(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert lines and all(re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line) for line in lines)


def test_a_wrong_workflow_is_found() -> None:
    job = {"runs-on": "x", "steps": [{"uses": "actions/checkout@v6"}, {"run": "echo ${{ github.event.title }}"}], "needs": "nothing"}
    found = problems({"name": "x", "on": "push", "jobs": {"a": job}})
    assert len(found) == 6, found


def commands(path: Path) -> list[str]:
    text = "\n".join(str(step["run"]) for step in steps(loaded(path)) if "run" in step)
    return [line.strip().removeprefix(".venv/bin/") for line in text.splitlines()]


@pytest.mark.parametrize("path", [*OURS, *EXAMPLES], ids=lambda p: p.name)
def test_every_command_of_a_workflow_exists(path: Path) -> None:
    lines = commands(path)
    assert [(line, bad) for line in lines if (bad := problems_of(line))] == []
    targets = set(re.findall(r"^([a-z][\w-]*):(?!=)", (REPO / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {line.split()[1] for line in lines if line.startswith("make ")} <= targets
    files = {word for line in lines for word in line.split() if re.match(r"(\.ci|tools|docs|bench)/", word)}
    assert [word for word in files if not (REPO / word).exists()] == []


def test_the_review_needs_no_credentials_to_synthesize_and_gives_none_to_forks() -> None:
    jobs = loaded(REPO / "examples" / "ci" / "github" / "review.yml")["jobs"]
    assert "permissions" not in jobs["synth"] and "make synth" in str(jobs["synth"]["steps"])
    assert jobs["diff"]["permissions"] == {"contents": "read", "id-token": "write"}
    assert jobs["diff"]["if"] == "github.event.pull_request.head.repo.full_name == github.repository"


def test_the_nightly_run_is_gated_and_stops_paying_whatever_happened() -> None:
    workflow = loaded(REPO / "examples" / "ci" / "github" / "nightly.yml")
    assert "schedule" in workflow["on"] and workflow["concurrency"]
    words = steps(workflow)
    submitted = next(n for n, step in enumerate(words) if "submit --gate" in str(step.get("run")))
    stopped = next(n for n, step in enumerate(words) if str(step.get("run", "")).endswith("scale 0"))
    assert submitted < stopped and words[stopped]["if"] == "always()"
    assert "continue-on-error" not in words[submitted]


@pytest.mark.parametrize("path", [p for p in FORMS if p.name != "config.yml"], ids=lambda p: p.name)
def test_an_issue_form_has_the_fields_that_github_asks_for(path: Path) -> None:
    form = loaded(path)
    assert form["name"] and form["description"]
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in asked}) == len(asked)
    assert all(part["attributes"]["label"] and part["type"] in ("input", "textarea", "dropdown", "checkboxes") for part in asked)
    assert any(part.get("validations", {}).get("required") for part in asked)


def test_dependabot_watches_packages_and_actions_and_leaves_the_images_versions_alone() -> None:
    updates = {u["package-ecosystem"]: u for u in loaded(REPO / ".github" / "dependabot.yml")["updates"]}
    assert set(updates) == {"pip", "github-actions"}
    assert {rule["dependency-name"] for rule in updates["pip"]["ignore"]} == {"torch", "ray", "transformers"}
    for folder in updates["github-actions"]["directories"]:
        assert (REPO / folder.strip("/")).is_dir()


def test_every_pre_commit_hook_is_local_and_its_files_exist() -> None:
    (repository,) = loaded(REPO / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        named = [word for word in hook["entry"].split() if word.endswith(".py")]
        assert all((REPO / word).exists() for word in named)
        re.compile(hook.get("files", ""))
