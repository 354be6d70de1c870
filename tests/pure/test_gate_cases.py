"""Real logs that people met: each gives the right transport and verdict, read by lines or in chunks.

``tests/data/nccl``: log lines as programs printed them; ``cases.jsonl`` has each file's public source.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.gate import LogParser, RunJudge, Verdict, judge, read_log
from eks_ray_train.gate.evidence import Transport

DATA = Path(__file__).resolve().parent.parent / "data" / "nccl"
CASES = [json.loads(line) for line in (DATA / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
ids = [case["file"] for case in CASES]


def judged(case: dict[str, Any], folder: Path = DATA) -> Verdict:
    run = RunJudge(nodes_expected=case["declared_nodes"], expected="efa")
    read_log(run, str(folder / case["file"]))
    return run.verdict(case["job"])


def check(case: dict[str, Any], verdict: Verdict) -> None:
    assert verdict.to_json()["transport"] in case.get("accept", [case["transport"]]), verdict.reasons
    assert verdict.outcome == case["gate"], verdict.reasons
    assert verdict.exit_code == (0 if case["gate"] == "pass" else 3)
    assert verdict.reasons or verdict.outcome == "pass"


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_case_gives_its_transport_and_verdict(case: dict[str, Any]) -> None:
    check(case, judged(case))


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_lines_one_by_one_give_the_same_verdict_as_chunks(case: dict[str, Any]) -> None:
    parser = LogParser()
    for line in (DATA / case["file"]).read_text(encoding="utf-8").splitlines():
        parser.feed(line)
    verdict = judge(parser.evidence(), job_status=case["job"], nodes_expected=case["declared_nodes"], expected="efa")
    assert verdict == judged(case)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["gate"] == "pass"], ids=[c["file"] for c in CASES if c["gate"] == "pass"]
)
def test_a_pass_says_whether_it_rests_on_selection_only(case: dict[str, Any]) -> None:
    said = any("selection only" in reason for reason in judged(case).reasons)
    assert said == (case.get("evidence") == "selection")


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["gate"] == "pass"], ids=[c["file"] for c in CASES if c["gate"] == "pass"]
)
@pytest.mark.parametrize("status", ["FAILED", "STOPPED", "RUNNING", "PENDING", "", None])
def test_nothing_passes_unless_the_job_succeeded(case: dict[str, Any], status: str | None) -> None:
    verdict = judged({**case, "job": status})
    assert verdict.outcome == "fail"
    assert "only SUCCEEDED can pass" in verdict.reasons[0]


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
@pytest.mark.parametrize("path", sorted(DATA.rglob("*.log")), ids=lambda path: path.name)
def test_the_transport_is_what_the_log_shows_whatever_is_expected(path: Path, status: str) -> None:
    found = set()
    for expected in ("efa", "tcp", "none"):
        run = RunJudge(nodes_expected=2, expected=expected)  # type: ignore[arg-type]
        read_log(run, str(path))
        verdict = run.verdict(status)
        found.add(verdict.to_json()["transport"])
        assert verdict.reasons or verdict.transport is not Transport.UNKNOWN  # a missing answer comes with its reason
    assert len(found) == 1


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_no_case_passes_as_the_tcp_run_unless_it_is_one(case: dict[str, Any]) -> None:
    run = RunJudge(nodes_expected=case["declared_nodes"], expected="tcp")
    read_log(run, str(DATA / case["file"]))
    verdict = run.verdict("SUCCEEDED")
    if verdict.outcome == "pass":
        assert verdict.to_json()["transport"] == "socket" == case["transport"]


@pytest.mark.parametrize(
    "name", ["21-socket-ray-channels-cut-line-job-finished.log", "29-socket-channels-host-in-angle-brackets.log"]
)
def test_a_run_over_sockets_is_named_by_node_and_line(name: str) -> None:
    case = next(case for case in CASES if case["file"] == name)
    reasons = " ".join(judged(case).reasons)
    assert "uses TCP sockets, not EFA" in reasons
    assert "via NET/Socket/0" in reasons
    assert "check" in reasons


def test_shared_cases_are_judged_right_where_they_are_present(shared_dir: Path) -> None:
    folder = shared_dir / "cases" / "nccl"
    lines = (folder / "expected.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) >= len(CASES)
    for line in lines:
        case = json.loads(line)
        check(case, judged(case, folder))
