"""``eks-ray-train train`` finds a mistake in the job's flags and files before a cluster is started for it, and no file that is there."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eks_ray_train.cli import dashboard, follow, run_view, runs, train
from eks_ray_train.cli.job_check import check_job
from eks_ray_train.errors import UsageError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stepz", "2"), "unknown flag --stepz (did you mean --steps?)"),
        (("--dataset", "nothing/*.txt"), "nothing/*.txt"),
        (("--dataset", "{empty}"), "holds no"),
        (("--learning-rate", "-1"), "--learning-rate"),
    ],
)
def test_a_mistake_is_exit_code_2_before_ray_is_started(tmp_path: Path, repo: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "empty").mkdir()
    given = [word.format(empty=tmp_path / "empty") for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "eks_ray_train.cli", "train", "--out", str(tmp_path / "out"), *given],
        cwd=repo, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "starting Ray" not in done.stderr and "Traceback" not in done.stderr
    assert not any((tmp_path / "out").rglob("*"))


# ---- paths ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "there"),
    [
        (["--dataset", "./text"], "--dataset={here}/text"),
        (["--dataset=text/a.txt"], "--dataset={here}/text/a.txt"),
        (["--dataset", "text/*.txt"], "--dataset={pattern}/text/*.txt"),
        (["--dataset", "**/*.txt"], "--dataset={pattern}/**/*.txt"),
        (["--model-config", "mine.json"], "--model_config={here}/mine.json"),
        (["--tokenizer", "./mine"], "--tokenizer={here}/mine"),
        (["--model_id=./mine"], "--model_id={here}/mine"),
    ],
)
def test_a_path_of_the_users_folder_is_found_from_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], there: str
) -> None:
    here = tmp_path / "with [signs]"
    (here / "text").mkdir(parents=True)
    (here / "text" / "a.txt").write_text("some text")
    (here / "mine").mkdir()
    (here / "mine.json").write_text("{}")
    monkeypatch.chdir(here)
    wanted = there.format(here=here, pattern=str(here).replace("[", "[[]"))
    assert train.seen_from_here(given, tmp_path / "job") == [*given, wanted]


@pytest.mark.parametrize(
    "given",
    [
        ["--dataset", "random"], ["--dataset", "s3://text/a"], ["--dataset", "nothing"], ["--dataset", "no/*.txt"], ["--dataset"], [], ["--steps", "text"],
        ["--tokenizer", "bytes"], ["--model-id", "mine"], ["--model-config=configs/both.json"], ["--dataset", "/"],
    ],
)  # fmt: skip
def test_other_words_are_left_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    for folder in ("job/configs", "configs", "text", "random", "bytes", "mine"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("job/configs", "configs"):
        (tmp_path / folder / "both.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert train.seen_from_here(given, Path("job")) == given


def test_the_line_of_the_docs_for_ones_own_text_is_accepted_by_the_job(
    tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--dataset", "./text", "--steps", "20"]
    assert f"`eks-ray-train train {shlex.join(words)}`" in (repo / "docs" / "data.md").read_text(encoding="utf-8")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("some text")
    monkeypatch.chdir(tmp_path)
    check_job("train", repo / "job", [*train.DEFAULTS, *train.seen_from_here(words, repo / "job")])
    with pytest.raises(UsageError, match=r"\./text"):
        check_job("train", repo / "job", [*train.DEFAULTS, *words])


def test_weights_and_text_of_the_users_replace_the_small_model_and_its_text(
    tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise UsageError("the check passed")

    monkeypatch.setattr("eks_ray_train.cli.package_dir.build_package", stop)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("some text")
    words = ["--model-id", "Qwen/Qwen2.5-0.5B", "--dataset", "a.txt"]
    args = SimpleNamespace(out=tmp_path / "out", report=None, job_dir=repo / "job", job_args=words)
    with pytest.raises(UsageError, match="the check passed"):
        train.run(args)  # type: ignore[arg-type]


# ---- Ctrl-C, and what a cluster that stays is good for -------------------------------------------------------------------
def test_ctrl_c_is_never_asked_about_and_ends_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    closed: list[str] = []

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "submit_run", lambda *_, **__: None)
    monkeypatch.setattr(follow, "follow", interrupted)
    monkeypatch.setattr(run_view.RunView, "close", lambda _: closed.append("view"))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: pytest.fail("it asks")))
    target: Any = SimpleNamespace(nodes=None, instance=None, client=None)
    with pytest.raises(KeyboardInterrupt):  # which the command's boundary makes 130
        train.train_and_resume(target, [], total=4, package=None, name="demo", as_json=False)
    said = capsys.readouterr().err
    assert "stopping demo-train and the local cluster" in said and "detach" not in said and closed == ["view"]


def test_the_command_for_a_cluster_that_stays_names_the_small_model(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = pytest.importorskip("fsdp_job.flags")
    monkeypatch.setattr(dashboard, "wait_for_interrupt", lambda: None)
    cluster: Any = SimpleNamespace(token="t", address="http://127.0.0.1:20001")
    train._keep(cluster, Path("job"))
    words = shlex.split(capsys.readouterr().err.splitlines()[-1])
    assert words[:4] == ["eks-ray-train", "submit", "--address", "http://127.0.0.1:20001"]
    cfg = config.parse_args(words[words.index("--") + 1 :])
    assert (repo / "job" / cfg.model_config).is_file()
    assert (cfg.effective_model_id, cfg.tokenizer, cfg.steps) == (None, "bytes", 5)
    train._keep(cluster, Path("my job"))
    assert "--job-dir 'my job' -- " in capsys.readouterr().err
