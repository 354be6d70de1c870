"""The script that lists what has aged: each kind of age is found, and what is young is not."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from eks_ray_train.versions import DEFAULT_KUBERNETES, KUBERNETES_RELEASES
from tests.scripts import load_script

DAY = dt.date(2026, 8, 1)


@pytest.fixture(scope="module")
def tool(repo: Path) -> ModuleType:
    return load_script("freshness_tool", repo / "tools" / "freshness.py")


def whats(found: Any) -> list[str]:
    return [f.what for f in found]


def test_a_default_version_is_told_four_months_before_its_end(tool: ModuleType) -> None:
    end = KUBERNETES_RELEASES[DEFAULT_KUBERNETES].standard_until
    early, late = end - dt.timedelta(days=121), end - dt.timedelta(days=120)
    name = f"Kubernetes {DEFAULT_KUBERNETES}"
    assert name not in whats(tool.kubernetes(early, KUBERNETES_RELEASES.values(), DEFAULT_KUBERNETES))
    assert name in whats(tool.kubernetes(late, KUBERNETES_RELEASES.values(), DEFAULT_KUBERNETES))


def test_a_calendar_without_a_release_for_half_a_year_is_told(tool: ModuleType) -> None:
    newest = max(r.released for r in KUBERNETES_RELEASES.values())
    told = "calendar of Kubernetes versions"
    for days, said in ((180, False), (181, True)):
        found = tool.kubernetes(newest + dt.timedelta(days=days), KUBERNETES_RELEASES.values(), DEFAULT_KUBERNETES)
        assert (told in whats(found)) is said


def test_gpu_types_that_are_not_in_the_catalogue_are_told_by_family(tool: ModuleType) -> None:
    known = ["p7-c100.48xlarge", "g8.12xlarge", "g8.48xlarge", "g8.2xlarge", "m9i.24xlarge", "g6.12xlarge", "p3dn.24xlarge", "g4ad.16xlarge", "p6-b200.48xlarge"]
    found = whats(tool.instance_types(known, ["g6.12xlarge", "p6-b200.48xlarge"], ["p3dn", *tool.WITHOUT_EFA]))
    assert found == ["instance types g8.12xlarge, g8.48xlarge", "instance types p7-c100.48xlarge"]


def test_the_installed_botocore_knows_types_of_our_catalogue(tool: ModuleType) -> None:
    assert {"g6.12xlarge", "p5.48xlarge"} <= set(tool.known_types())


@pytest.mark.parametrize(("text", "why"), [("Checked 2026-01-01.", "212 days"), ("Checked 2026-07-30.", None), ("nothing", "not written")])
def test_a_date_in_a_source_file_ages_and_must_be_there(tool: ModuleType, text: str, why: str | None) -> None:
    found = list(tool.dated(DAY, "x", text, r"Checked (\d{4}-\d\d-\d\d)", dt.timedelta(days=90), "do"))
    assert (found == []) if why is None else why in found[0].why


def index(*versions: str) -> dict[str, Any]:
    return {"entries": {"c": [{"version": v} for v in versions]}}


@pytest.mark.parametrize(
    ("versions", "why"),
    [
        (("1.7.0", "1.6.2"), []),
        (("1.7.0", "1.8.0-rc.1"), []),
        (("v1.7.0", "v1.10.0"), ["1.10.0 is out"]),
        (("1.6.2",), ["its repository does not have it"]),
        ((), ["its repository does not have it"]),
    ],
)
def test_a_newer_chart_and_a_pin_that_is_gone_are_told(tool: ModuleType, versions: tuple[str, ...], why: list[str]) -> None:
    assert [f.why for f in tool.chart("c", "1.7.0", "C", index(*versions))] == why


def test_a_repository_that_cannot_be_read_is_a_finding_and_not_silence(tool: ModuleType) -> None:
    def refuse(_: str) -> dict[str, Any]:
        raise OSError("no route")

    found = list(tool.charts(refuse))
    assert len(found) == 3 and all("no route" in f.why for f in found)


def test_the_day_after_everything_ended_is_red_and_the_document_is_json(
    tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["--today", "2030-01-01", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert {"what", "why", "do"} == set(told[0])
    assert {"pinned versions", "prices of the catalogue", f"Kubernetes {DEFAULT_KUBERNETES}"} <= {f["what"] for f in told}


def test_the_repository_says_nothing_has_aged_on_the_day_it_was_checked(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--today", "2026-11-29"]) == 0, capsys.readouterr().out
