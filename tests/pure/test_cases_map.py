"""Every reported case has a test: by its own name in the two files of cases, or by this table."""

from __future__ import annotations

import ast
import json
from pathlib import Path

BY_NAME = {"tests/pure/test_capacity_cases.py": "test_", "tests/synth/test_infra_cases.py": "test_case_"}
ELSEWHERE = {
    "env-gloo-ifname-pattern": "tests/pure/test_manifest_transport_env.py::test_gloo_gets_one_real_interface_or_nothing",
    "submit-logs-exit-zero": "tests/pure/test_cli_submit.py::test_any_end_but_success_is_exit_code_4",
    "submit-exec-error-shadowed": "tests/pure/test_cli_submit.py::test_an_upload_that_the_server_finds_too_large_says_so",
    "submit-working-dir-git": "tests/pure/test_cli_package.py::test_a_git_folder_of_150_mb_stays_out",
    "gate-debug-not-info": "tests/pure/test_gate_verdict.py::test_it_fails_and_says_where",
    "gate-rank1-has-the-reason": "tests/training/test_submit_ray.py::test_the_failure_names_the_rank_that_raised_first",
    "fsdp-optimizer-state-other-world-size": (
        "tests/training/test_job_resume.py::test_moments_of_the_optimizer_survive_another_world_size"
    ),
    "fsdp-state-dict-rank0-only": "tests/training/test_job_on_ray.py::test_a_run_trains_saves_and_says_so_in_event_lines",
    "fsdp-crash-on-one-rank": "tests/training/test_job_on_ray.py::test_a_rank_that_raises_ends_the_job_quickly_and_is_named",
}


def _functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_reported_case_has_a_test(repo: Path, shared_dir: Path) -> None:
    named = {name.removeprefix(prefix) for path, prefix in BY_NAME.items() for name in _functions(repo / path)}
    lines = (shared_dir / "cases" / "infra.jsonl").read_text().splitlines()
    ids = [json.loads(line)["id"] for line in lines]
    assert len(ids) >= 50
    assert [case for case in ids if case.replace("-", "_") not in named and case not in ELSEWHERE] == []


def test_the_table_names_tests_that_exist(repo: Path) -> None:
    for case, node in ELSEWHERE.items():
        path, _, name = node.partition("::")
        assert name in _functions(repo / path), f"{case}: {node}"
