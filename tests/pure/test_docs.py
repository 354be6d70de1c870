"""The documentation says what the code does: links, commands, flags, settings, targets, exit codes, examples."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.errors import ExitCode
from eks_ray_train.settings import Settings, from_mapping
from tests.docs_reading import (
    CURRENT,
    FENCE,
    JOB_FLAGS,
    OPTIONS,
    PAGES,
    REFERENCE,
    REPO,
    broken_links,
    code_lines,
    ids,
    is_job_flag,
    problems_of,
    spans,
)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_a_link_to_a_missing_page_or_heading_is_found() -> None:
    page = REPO / "README.md"
    text = "[a](docs/none.md) [b](docs/operate.md#no-such-heading) [c](docs/operate.md#exit-codes) [d](https://example.com/x)"
    assert broken_links(page, text) == ["docs/none.md", "docs/operate.md#no-such-heading"]


def test_every_page_is_reached_from_the_readme() -> None:
    text = (REPO / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in (REPO / "docs").glob("*.md") if f"docs/{page.name}" not in text] == []


def test_tables_and_examples_are_what_the_code_says_now() -> None:
    assert [page.name for page in REFERENCE.outdated()] == [], "run python docs/reference.py"


def test_a_block_that_differs_from_the_code_is_found() -> None:
    page = "<!-- reference: file examples/minimal.py -->\nold\n<!-- end -->\n"
    assert "EfaGpuNodeGroup(" in REFERENCE.rendered(page)
    with pytest.raises(LookupError, match="unknown reference 'films'"):
        REFERENCE.rendered("<!-- reference: films x -->\n<!-- end -->")


# ---- commands and flags -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", CURRENT, ids=ids)
def test_every_command_line_in_the_docs_is_one_that_exists(page: Path) -> None:
    lines = code_lines(page.read_text(encoding="utf-8"))
    assert [(line, bad) for line in lines if (bad := problems_of(line))] == []


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("eks-ray-train submit --detatch -- --steps 5", ["submit --detatch"]),
        ("eks-ray-train submit -- --step 5", ["--step"]),
        ("eks-ray-train capcity find", ["capcity"]),
        ("EKS_RAY_TRAIN_DEBUG=1 eks-ray-train status --follow", ["status --follow"]),
        ("eks-ray-train train --steps 5 --batch_size 8", []),
        ("eks-ray-train logs ID | eks-ray-train gate - --job-state X", ["gate --job-state"]),
    ],
)
def test_a_wrong_command_line_is_found(line: str, bad: list[str]) -> None:
    assert problems_of(line) == bad


@pytest.mark.parametrize("page", CURRENT, ids=ids)
def test_every_flag_named_alone_belongs_to_a_command_or_the_job(page: Path) -> None:
    known = set().union(*OPTIONS.values())
    named = [span.split()[0].partition("=")[0].rstrip(",") for span in spans(page.read_text(encoding="utf-8")) if re.match(r"--\w", span)]
    assert [flag for flag in named if flag not in known and not is_job_flag(flag)] == []


def test_every_command_and_flag_is_documented() -> None:
    text = (REPO / "docs" / "commands.md").read_text(encoding="utf-8")
    for name, options in OPTIONS.items():
        section = text.partition(f"### {name}\n")[2].partition("\n### ")[0]
        assert section, f"docs/commands.md lacks {name}: run python docs/reference.py"
        missing = [o for o in options if o.startswith("--") and o != "--help" and "_" not in o and f"`{o}" not in section]
        assert missing == [], name


def test_every_flag_of_the_job_is_documented() -> None:
    text = (REPO / "docs" / "training.md").read_text(encoding="utf-8")
    assert [flag for flag in sorted(JOB_FLAGS - {"-h", "--help"}) if f"`{flag}" not in text] == []


# ---- everything else that is named --------------------------------------------------------------------------------------
def make_targets() -> set[str]:
    text = (REPO / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", text, re.MULTILINE))


@pytest.mark.parametrize("page", CURRENT, ids=ids)
def test_every_make_target_named_exists(page: Path) -> None:
    lines = code_lines(page.read_text(encoding="utf-8"))
    named = {word for line in lines for word in re.findall(r"(?:^|&& |run: )make ([a-z][\w-]*)", line)}
    assert named - make_targets() == set()


def vocabulary() -> set[str]:
    """Names with an underscore that are no settings: properties and attributes of constructs, fields of events and documents."""
    library = REPO / "constructs" / "eks_ray_train"
    sources = [*library.rglob("*.py"), *(REPO / "job").rglob("*.py"), REPO / "app.py"]
    names: set[str] = set()
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.arg | ast.keyword) and node.arg:
                names.add(node.arg)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
            elif isinstance(node, ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.ImportFrom):
                names |= {alias.name for alias in node.names}
    return names | {"eks_ray_train", "aws_eks"}


def test_every_name_with_an_underscore_is_a_setting_or_a_name_in_the_code() -> None:
    known = {field.name for field in dataclasses.fields(Settings)} | vocabulary()
    bad: dict[str, list[str]] = {}
    for page in CURRENT:
        named = [re.match(r"([a-z]+(?:_[a-z0-9]+)+)(?:$|: |=)", span) for span in spans(page.read_text(encoding="utf-8"))]
        unknown = [match[1] for match in named if match and match[1] not in known]
        if unknown:
            bad[page.name] = unknown
    assert bad == {}


def test_every_setting_given_on_the_command_line_exists() -> None:
    settings = {field.name for field in dataclasses.fields(Settings)}
    named = {key for page in CURRENT for key in re.findall(r"-c eks-ray-train:(\w+)=", page.read_text(encoding="utf-8"))}
    assert named and named - settings - {"KEY"} == set()


def test_the_exit_codes_are_those_of_the_code() -> None:
    text = (REPO / "docs" / "operate.md").read_text(encoding="utf-8")
    section = text.partition("### Exit codes")[2].partition("\n#")[0]
    rows = [(int(code), name) for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", section, re.MULTILINE)]
    assert rows == [(code.value, code.name) for code in ExitCode]


def test_the_jobs_exit_codes_are_those_of_the_job() -> None:
    from fsdp_job import errors

    text = (REPO / "docs" / "training.md").read_text(encoding="utf-8")
    line = re.search(r"Exit codes of `train.py`: ([^.]+)\.", text)
    assert line
    codes = {int(number) for number in re.findall(r"\d+", line[1])}
    assert codes == {value for name, value in vars(errors).items() if name.startswith("EXIT_")}


def test_every_event_of_the_job_is_documented() -> None:
    from fsdp_job.events import EVENTS

    text = (REPO / "docs" / "training.md").read_text(encoding="utf-8")
    table = text.partition("## Event lines")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(EVENTS)


def test_the_stated_accuracy_of_plan_holds_in_its_measurements() -> None:
    text = " ".join((REPO / "docs" / "plan.md").read_text(encoding="utf-8").split())
    said = re.search(r"within (\d+) %, half of the points to within ([\d.]+) %, and the peak memory to within (\d+) %. These are (\d+) runs", text)
    assert said
    rows = json.loads((REPO / "bench" / "results" / "plan_check.json").read_text(encoding="utf-8"))["rows"]
    steps, peaks = [abs(r["step_error"]) * 100 for r in rows], [abs(r["peak_error"]) * 100 for r in rows]
    assert max(steps) <= float(said[1])
    assert statistics.median(steps) <= float(said[2])
    assert max(peaks) <= float(said[3])
    assert len(rows) == int(said[4])


def python_blocks() -> list[Any]:
    blocks = [(page, body) for page in PAGES for language, body in FENCE.findall(page.read_text(encoding="utf-8")) if language == "python"]
    return [pytest.param(body, id=f"{page.name}-{n}") for n, (page, body) in enumerate(blocks)]


@pytest.mark.parametrize("body", python_blocks())
def test_python_in_the_docs_compiles_and_imports_public_names(body: str) -> None:
    import eks_ray_train

    for node in ast.walk(ast.parse(body)):
        if isinstance(node, ast.ImportFrom) and node.module == "eks_ray_train":
            assert [alias.name for alias in node.names if alias.name not in eks_ray_train.__all__] == []


def settings_blocks() -> list[Any]:
    blocks = [(page, body) for page in CURRENT for language, body in FENCE.findall(page.read_text(encoding="utf-8")) if language == "json"]
    return [pytest.param("{" + body.replace("<64 hex digits>", "0" * 64) + "}", id=f"{page.name}-{n}") for n, (page, body) in enumerate(blocks)]


@pytest.mark.parametrize("body", settings_blocks())
def test_settings_that_a_page_shows_are_accepted(body: str) -> None:
    shown = json.loads(body)
    assert shown and from_mapping(shown) != Settings()
