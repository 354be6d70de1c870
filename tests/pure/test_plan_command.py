"""``eks-ray-train plan``: answers, exit codes and the page."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest


def plan(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "eks_ray_train.cli", "plan", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_json_is_one_document_on_stdout_and_people_read_stderr(tmp_path: Path) -> None:
    done = plan(
        "--json", "--instance-type", "g6.12xlarge", "p5.48xlarge:1", "--nodes", "2", "--tokens", "1e9", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [c["cluster"] for c in document["candidates"]] == ["2 × g6.12xlarge", "1 × p5.48xlarge"]
    assert "tokens/s" in done.stderr
    first = document["candidates"][0]
    assert first["usd"] > 0
    assert first["memory_gib"]["needed"] > first["memory_gib"]["peak"] > 0
    assert first["step_s"]["total"] == pytest.approx(first["tokens_per_step"] / first["tokens_per_s"], rel=1e-3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "no/such-model"], "config.json"),
        (["--instance-type", "g6.xlarge"], "--instance-type g6.xlarge has no EFA"),
        (["--instance-type", "p5.48xlarge:0"], "number of nodes"),
        (["--nodes", "0"], "--nodes: must be a whole number from 1 to 450, got '0'"),
        (["--nodes", "100000000000000000000"], "--nodes: must be a whole number from 1 to 450"),
        (["--instance-type", "p5.48xlarge:99999999999"], "number of nodes from 1 to 450"),
        (["--steps", "-3"], "--steps: must be a whole number from 1 to 1,000,000,000, got '-3'"),
        (["--steps", "1e23"], "--steps: must be a whole number from 1 to 1,000,000,000, got '1e23'"),
        (["--tokens", "0"], "--tokens: must be a number from 1 to 1e+16, got '0'"),
        (["--tokens", "1e300"], "--tokens: must be a number from 1 to 1e+16, got '1e300'"),
        (["--tokens", "inf"], "--tokens: must be a number from 1 to 1e+16"),
        (["--tokens", "nan"], "--tokens: must be a number from 1 to 1e+16, got 'nan'"),
        (["--seq-len", "0"], "must be a whole number from 1 to 16,777,216, got '0'"),
        (["--tokens", "1", "--steps", "1"], "not allowed with"),
        (["--sharding", "half"], "invalid choice"),
        (["--html", "/nonexistent/plan.html"], "cannot be written"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(words: list[str], said: str, tmp_path: Path) -> None:
    done = plan(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_project_settings_give_the_first_candidate(repo: Path) -> None:
    done = plan("--json", cwd=repo)
    assert json.loads(done.stdout)["candidates"][0]["cluster"] == "2 × g6.12xlarge"


def test_the_answer_takes_under_half_a_second_of_cpu(tmp_path: Path) -> None:
    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    taken = []
    for _ in range(5):
        before = cpu()
        assert plan(cwd=tmp_path).returncode == 0
        taken.append(cpu() - before)
    assert min(taken) < 0.5, taken


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_complete_in_one_file_and_well_formed(tmp_path: Path) -> None:
    target = tmp_path / "plan.html"
    assert plan("--html", str(target), cwd=tmp_path).returncode == 0
    page = _Page()
    page.feed(target.read_text(encoding="utf-8"))
    assert page.open == []
    assert page.links == ["data:,"]
    assert "script" not in page.tags
    assert not re.search(r"url\(|@import|https?://", target.read_text(encoding="utf-8"))


def test_the_page_escapes_what_a_config_says(tmp_path: Path) -> None:
    config = {
        "model_type": "<b>&x",
        "vocab_size": 256,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert plan("--model", "config.json", "--html", "plan.html", cwd=tmp_path).returncode == 0
    assert "<b>&x" not in (tmp_path / "plan.html").read_text(encoding="utf-8")


def test_a_run_that_does_not_fit_says_so_with_a_remedy(tmp_path: Path) -> None:
    done = plan("--instance-type", "g6.12xlarge", "--model", "llama-3.1-70b", cwd=tmp_path)
    assert done.returncode == 0
    assert "does not fit" in done.stdout
    assert "--activation-checkpointing full" in done.stdout
