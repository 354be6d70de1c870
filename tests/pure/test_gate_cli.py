"""``eks-ray-train gate`` as people and CI call it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from eks_ray_train.cli.__main__ import main
from eks_ray_train.gate import LogParser, judge, junit_xml

DATA = Path(__file__).resolve().parent.parent / "data" / "nccl"
EFA, SOCKET = DATA / "17-efa-g7e-then-cuda-failure.log", DATA / "21-socket-ray-channels-cut-line-job-finished.log"
GOOD = ["--job-status", "succeeded"]


def gate(*words: str | Path) -> int:
    return int(main(["gate", *map(str, words)]) or 0)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((EFA, *GOOD, "--nodes", "2"), 0),
        ((EFA, *GOOD), 0),
        ((EFA, "--nodes", "2"), 3),
        ((DATA / "03-efa-p4d-gdrdma-new-format.log", *GOOD), 3),  # NCCL counts four nodes, and one shows its log
        ((EFA, "--job-status", "FAILED"), 3),
        ((EFA, *GOOD, "--nodes", "3"), 3),
        ((EFA, *GOOD, "--expect", "tcp"), 3),
        ((SOCKET, *GOOD), 3),
        ((DATA / "25-socket-could-not-find-ofi-plugin.log", *GOOD, "--expect", "tcp"), 0),
        ((SOCKET, *GOOD, "--expect", "none"), 0),
        ((SOCKET, *GOOD, "--nodes", "1"), 0),
        ((SOCKET, "--job-status", "STOPPED", "--expect", "none"), 4),
        ((EFA, SOCKET, *GOOD), 3),
        ((EFA, *GOOD, "--instance-type", "g6.12xlarge"), 0),
        ((EFA, *GOOD, "--instance-type", "p5.48xlarge"), 3),
        (("no-such.log", *GOOD), 2),
        ((DATA, *GOOD), 2),
        ((EFA, *GOOD, "--nodes", "0"), 2),
        ((EFA, *GOOD, "--nodes", "two"), 2),
        ((EFA, *GOOD, "--expect", "infiniband"), 2),
        ((EFA, *GOOD, "--instance-type", "m5.large"), 2),
        ((EFA, *GOOD, "--junit", "no/such/folder/gate.xml"), 2),
        (("-", "-", *GOOD), 2),
        ((), 2),
    ],
)
def test_exit_codes(words: tuple[str | Path, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(*words) == code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    if code == 2:
        assert printed.err.strip()


def test_json_is_one_document_on_stdout_and_text_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(SOCKET, *GOOD, "--json") == 3
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["verdict"], document["transport"], document["expected"]) == ("fail", "socket", "efa")
    assert printed.err.startswith("FAIL: transport socket")


def test_text_names_verdict_nodes_and_reasons_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(DATA / "34-mixed-ray-ansi-dedup-one-node-socket.log", *GOOD) == 3
    text = capsys.readouterr().out
    assert text.startswith("FAIL: transport mixed, expected efa; job succeeded; 2 of 2 nodes")
    assert "raycluster-gpu-workers-b2 (10.0.1.52): uses TCP sockets" in text
    assert all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize("encoding", ["gzip", "utf-16", "crlf", "colour", "docker"])
def test_logs_are_read_as_they_come(encoding: str, tmp_path: Path) -> None:
    text, path = EFA.read_text(encoding="utf-8"), tmp_path / "train.log"
    if encoding == "gzip":
        path = tmp_path / "train.log.gz"
        path.write_bytes(gzip.compress(text.encode()))
    elif encoding == "utf-16":
        path.write_text(text, encoding="utf-16")
    elif encoding == "crlf":
        path.write_bytes(text.replace("\n", "\r\n").encode())
    elif encoding == "docker":
        entries = [
            {"log": line + "\n", "stream": "stdout", "time": "2026-01-15T02:30:45.1Z"} for line in text.splitlines()
        ]
        path.write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    else:
        path.write_text("".join(f"\x1b[36m{line}\x1b[0m\n" for line in text.splitlines()), encoding="utf-8")
    assert gate(path, *GOOD) == 0


def test_a_cut_gzip_file_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(os.urandom(100_000))[:5000])
    assert gate(path, *GOOD) == 2
    assert "not a whole gzip file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 10_000, bytes(range(256)) * 1000, b"x" * 9_000_000, b"\x1f\x8bnot gzip", b"\xff\xfe\x00"]
)
def test_rubbish_is_no_evidence_and_no_traceback(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rubbish.log"
    path.write_bytes(content)
    assert gate(path, *GOOD) in (2, 3)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train.log.zst", b"\x28\xb5\x2f\xfd" + EFA.read_bytes(), "packed by zstd, and only gzip is read"),
        ("train.log.xz", lzma.compress(EFA.read_bytes()), "packed by xz"),
        ("train.log.bz2", bz2.compress(EFA.read_bytes()), "packed by bzip2"),
        ("logs.zip", b"PK\x03\x04" + bytes(30) + EFA.read_bytes(), "packed by zip"),
        ("train.log.gz", b"\x00\x01" + EFA.read_bytes(), "no gzip file, though its name says so"),
    ],
)
def test_what_is_packed_in_another_way_is_wrong_use_and_not_judged(
    name: str, content: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert gate(path, *GOOD) == 2
    assert says in capsys.readouterr().err


def test_a_log_that_was_unpacked_on_its_way_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(EFA.read_bytes())
    assert gate(path, *GOOD) == 0


def test_standard_input_is_unpacked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(EFA.read_bytes()))))
    assert gate("-", *GOOD) == 0
    assert not sys.stdin.buffer.closed


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(EFA.read_bytes())))
    assert gate("-", *GOOD) == 0


def test_files_of_several_workers_are_one_run(tmp_path: Path) -> None:
    for host in ("gpu-st-a-1", "gpu-st-a-2"):
        lines = [
            line
            for line in EFA.read_text(encoding="utf-8").splitlines()
            if line.startswith(host + ":") or "WARN" in line
        ]
        (tmp_path / f"{host}.log").write_text("\n".join(lines), encoding="utf-8")
    assert gate(*sorted(tmp_path.iterdir()), *GOOD, "--nodes", "2") == 0


def test_a_job_s_own_done_event_gives_the_status_where_none_is_given(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(EFA.read_text(encoding="utf-8") + '\n{"event": "done", "status": "SUCCEEDED"}\n', encoding="utf-8")
    assert gate(path) == 0
    assert gate(path, "--job-status", "FAILED") == 3


def check_schema(root: Xml.Element) -> None:
    """The rules of the common JUnit schema: names, order and attributes of elements, numbers that add up."""
    assert root.tag == "testsuites"
    for suite in root:
        assert suite.tag == "testsuite"
        needed = {"name", "tests", "failures", "errors", "time", "timestamp", "hostname", "id", "package"}
        assert needed <= set(suite.attrib) <= needed | {"skipped"}
        tags = [child.tag for child in suite]
        cases = suite.findall("testcase")
        assert tags == ["properties", *["testcase"] * len(cases), "system-out", "system-err"]
        assert all(set(prop.attrib) == {"name", "value"} for prop in suite.find("properties") or ())
        for case in cases:
            assert set(case.attrib) == {"name", "classname", "time"}
            assert all(child.tag in ("failure", "skipped", "system-out") for child in case)
        for attribute, tag in (("failures", "failure"), ("skipped", "skipped")):
            assert int(suite.attrib[attribute]) == sum(case.find(tag) is not None for case in cases)
        assert int(suite.attrib["tests"]) == len(cases)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.log")), ids=lambda path: path.name)
def test_junit_follows_the_schema_and_is_red_exactly_when_the_gate_is(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "gate.xml"
    code = gate(path, *GOOD, "--junit", file)
    root = Xml.parse(file).getroot()
    check_schema(root)
    (suite,) = root
    assert (int(suite.attrib["failures"]) > 0) == (code == 3)


def test_junit_has_a_case_for_each_node_with_its_own_reason(tmp_path: Path) -> None:
    file = tmp_path / "gate.xml"
    gate(DATA / "34-mixed-ray-ansi-dedup-one-node-socket.log", *GOOD, "--junit", file)
    cases = {case.attrib["name"]: case for case in Xml.parse(file).getroot().iter("testcase")}
    assert set(cases) == {"the run", "raycluster-gpu-workers-a1 (10.0.1.17)", "raycluster-gpu-workers-b2 (10.0.1.52)"}
    assert cases["raycluster-gpu-workers-a1 (10.0.1.17)"].find("failure") is None
    failure = cases["raycluster-gpu-workers-b2 (10.0.1.52)"].find("failure")
    assert failure is not None
    assert "TCP sockets" in failure.attrib["message"]


def test_junit_of_a_run_without_any_node_is_red() -> None:
    verdict = judge(LogParser().evidence(), job_status="SUCCEEDED", nodes_expected=2, expected="efa")
    root = Xml.fromstring(junit_xml(verdict, run="r\x00un").encode())
    check_schema(root)
    assert [case.find("failure") is not None for case in root.iter("testcase")] == [True]


def test_a_run_that_is_not_judged_is_skipped_in_junit_unless_its_job_failed() -> None:
    for status, tag in (("SUCCEEDED", "skipped"), ("FAILED", "failure")):
        verdict = judge(LogParser().evidence(), job_status=status, nodes_expected=1, expected="none")
        (case,) = Xml.fromstring(junit_xml(verdict).encode()).iter("testcase")
        assert [child.tag for child in case] == [tag]


def test_the_gate_needs_no_aws_cdk_and_no_third_party_package() -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import eks_ray_train.gate, eks_ray_train.cli.gate\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'eks_ray_train'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_reason_that_the_docs_explain_is_one_the_gate_gives(repo: Path) -> None:
    text = "\n\n".join(page.read_text(encoding="utf-8") for page in sorted((repo / "docs").glob("*.md")))
    table = text.partition("| reason contains |")[2].partition("\n\n")[0]
    phrases = [phrase for row in table.splitlines()[2:] for phrase in re.findall("`([^`]+)`", row.split("|")[1])]
    assert len(phrases) > 20
    folder = repo / "constructs" / "eks_ray_train" / "gate"
    source = "".join((folder / name).read_text(encoding="utf-8") for name in ("reasons.py", "events.py"))
    for phrase in phrases:
        words = re.sub(r"\\? \d+\\? ", r" \\{[^}]+\\} ", re.escape(phrase.removeprefix("uses ")))
        assert re.search(words, source), phrase


def test_help_shows_an_example_session(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["gate", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "example session" in text
    for flag in ("--job-status", "--nodes", "--expect", "--instance-type", "--junit", "--json"):
        assert flag in text


@pytest.mark.parametrize("status", ["SUCCEDED", "", "done"])
def test_a_job_status_that_ray_does_not_know_is_wrong_use(status: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(EFA, "--job-status", status) == 2
    said = capsys.readouterr().err
    assert "PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED" in said and repr(status) in said
