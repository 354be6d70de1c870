"""Every message to a user says what to do: those of bad input, met one by one, and all that the code can raise."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from eks_ray_train.cli.__main__ import main
from eks_ray_train.cli.writable import check_writable, told_as_usage
from eks_ray_train.errors import UsageError

# What a remedy begins with. A message without any of these words leaves the reader alone.
REMEDY = re.compile(
    r"\b(set|use|leave|choose|add|name|raise|lower|shorten|write|store|correct|remove|make|see|check|list|give|run|start|stop"
    r"|for example|did you mean|try|copy|install|deploy|log in|sign in|restore|wait|follow|submit|allow|put|report|look|delete)\b"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text("")
    (tmp_path / "text.log").write_text("hello\n")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}')
    monkeypatch.chdir(tmp_path)
    for name in ("EKS_RAY_TRAIN_DEBUG", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


BAD = [
    "nonsense", "plann", "--nonsense", "plan extra", "plan --instance-type", "plan --instance-type g6.xlarge",
    "plan --instance-type p3dn.24xlarge", "plan --instance-type p6e-gb200.36xlarge", "plan --instance-type nothing",
    "plan --instance-type p5.48xlarge:", "plan --instance-type p5.48xlarge:x", "plan --instance-type p5.48xlarge:451",
    "plan --nodes 0", "plan --nodes 1000000", "plan --nodes x", "plan --tokens 1e300", "plan --tokens 0", "plan --tokens -1e9",
    "plan --tokens much", "plan --steps 1e23", "plan --steps 0", "plan --steps 10000000000", "plan --tokens 1 --steps 1",
    "plan --seq-len 0", "plan --batch-size 1000000", "plan --accumulate 0", "plan --precision fp4", "plan --model no/such",
    "plan --model nowhere.json", "plan --model list.json", "plan --model deep.json", "plan --model latin.json", "plan --model text.log",
    "plan --model gpt2 --seq-len 4096", "plan --html /nowhere/page.html",
    "gate", "gate nowhere.log", "gate job", "gate text.log --nodes 0", "gate text.log --nodes two", "gate - -",
    "gate text.log --instance-type g6.xlarge", "gate text.log --instance-type m7i.large", "gate text.log --expect ib",
    "gate text.log --junit /nowhere/gate.xml",
    "submit --env FOO", "submit --env =1", "submit --runtime-env-json {", "submit --runtime-env-json []",
    'submit --runtime-env-json {"working_dir":"x"}', 'submit --runtime-env-json {"env_vars":{"A":1}}', "submit --timeout 0",
    "submit --timeout nan", "submit --timeout soon", "submit --junit a.xml --no-gate", "submit --junit a.xml --detach",
    "submit --job-dir nowhere", "submit --job-dir text.log", "submit --steps 5", "submit --follow --detach",
    "submit --address ftp://x", "submit --address http://h:port", "submit --report-dir text.log --address http://127.0.0.1:1",
    "submit --junit text.log/a.xml --address http://127.0.0.1:1",
    "status --address x://y", "status a b", "logs", "stop", "dashboard --port 70000", "dashboard --port x",
    "bench", "bench transport --repeat 0", "bench transport --over ib", "bench nccl --over efa,efa", "bench nccl --timeout -1",
    "doctor extra", "render", "train --steps 1", "train --steps x", "train --steps ²", f"train --steps {'9' * 5000}", "train --job-dir nowhere", "train --out text.log",
    "train --report text.log/report.json",
]  # fmt: skip


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_exit_code_2_and_one_line_that_says_what_to_do(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split(" ")) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("eks-ray-train: ") and told.err.count("\n") == 1, told.err
    assert "Traceback" not in told.err and "unexpected" not in told.err
    assert REMEDY.search(told.err.partition(": ")[2]), told.err
    assert len(told.err) < 1200


@pytest.mark.parametrize("line", ["plan --nodes 0", "gate nowhere.log", "submit --env FOO", "train --steps 1", "nonsense"])
def test_the_same_under_json_is_one_document(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*line.split(" "), "--json"]) == 2
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert set(document) == {"error", "exit_code"}
    assert told.err == f"eks-ray-train: {document['error']}\n"
    assert REMEDY.search(document["error"])


def test_the_flag_that_was_typed_is_the_one_that_is_blamed(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("plan --instance-type g6.xlarge", "gate text.log --instance-type g6.xlarge"):
        main(line.split(" "))
        error = capsys.readouterr().err
        assert "--instance-type g6.xlarge" in error and "gpu_instance_type" not in error


# ---- all that can be raised ----------------------------------------------------------------------------------------------
RAISED = {"UsageError", "SettingsError", "JobUsageError", "ClusterNotReadyError", "NoCapacityError", "JobFailedError", "EksRayTrainError", "Unreachable", "ModelError"}  # fmt: skip
# Messages whose remedy is made elsewhere (in a variable that the message shows), or that only another message quotes.
MADE_ELSEWHERE = (
    "{self._remedy}", "{error}", "{found}", "{problem}", "{message}", "{text}", "; '.join", "no_place", "{hint}", "{login}", "{LOG_IN}",
    "done.stderr", "{rest}", "self._what_stands",
)  # fmt: skip


# Commands about capacity and the stacks have tests of their messages of their own.
ELSEWHERE = {"capacity", "consent", "deployment", "places", "scale", "spending", "up", "down", "init", "teardown", "attempts", "local_ray"}


def messages(root: Path) -> Iterator[tuple[str, str]]:
    """(place, source text) of every message that is raised in the files under ``root``."""
    for path in sorted(path for path in root.rglob("*.py") if path.stem.partition("_")[0] not in ELSEWHERE and path.stem not in ELSEWHERE):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)):
                continue
            if node.exc.func.id in RAISED and node.exc.args and isinstance(node.exc.args[0], ast.Constant | ast.JoinedStr | ast.BinOp):
                yield f"{path.name}:{node.lineno}", ast.unparse(node.exc.args[0]).replace("\\n", " ")


@pytest.mark.parametrize("part", ["constructs/eks_ray_train/cli", "constructs/eks_ray_train/plan", "constructs/eks_ray_train/gate"])
def test_every_message_that_is_raised_says_what_to_do(part: str, repo: Path) -> None:
    found = list(messages(repo / part))
    assert len(found) > 2
    alone = {place: text for place, text in found if not REMEDY.search(text) and not any(word in text for word in MADE_ELSEWHERE)}
    assert alone == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_told_before_anything_starts(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o500)
    with pytest.raises(UsageError, match="no permission for"):
        check_writable(folder / "closed" / "runs", "--report-dir", folder=True)


def test_a_place_that_can_be_written_is_taken_and_left_as_it_was(folder: Path) -> None:
    check_writable(folder / "a" / "b", "--report-dir", folder=True)
    check_writable(folder / "a" / "b.xml", "--junit")
    check_writable(folder / "text.log", "--junit")
    assert not (folder / "a").exists()
    with pytest.raises(UsageError, match="is a folder"):
        check_writable(folder / "job", "--junit")


def test_a_disk_that_fills_up_is_told_with_the_flag(folder: Path) -> None:
    with pytest.raises(UsageError, match="--out out cannot be written: No space left"), told_as_usage("--out", Path("out")):
        raise OSError(28, "No space left on device")
