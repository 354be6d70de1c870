"""What stands before NCCL's text: what launchers and collectors put there is read off, makes up no node, and else is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eks_ray_train.gate import RunJudge, Verdict, read_log

PROVIDER = "NET/OFI Selected provider is efa, fabric is efa (found 1 nics)"
NETWORK = "Using network Libfabric"


def rank_lines(node: int, pid: int, gpu: int = 0, *, comm: bool = False) -> list[str]:
    head = f"gpu-{node}:{pid}:{pid + 1} [{gpu}] NCCL INFO "
    lines = [head + PROVIDER, head + NETWORK]
    lines += (
        [head + f"comm 0x55aa rank {2 * node - 2 + gpu} nRanks 4 nNodes 2 localRanks 2 localRank {gpu} MNNVL 0"]
        if comm
        else []
    )
    own, other = 2 * node - 2 + gpu, 2 * (2 - node) + gpu
    return [*lines, head + f"Channel 00/0 : {own}[{gpu}] -> {other}[{gpu}] [send] via NET/Libfabric/0"]


def log(*, comm: bool = False) -> list[str]:
    """Two nodes of two processes each."""
    return [line for node in (1, 2) for gpu in (0, 1) for line in rank_lines(node, 100 * node + gpu, gpu, comm=comm)]


def judged(data: bytes, folder: Path, *, nodes: int | None = None) -> Verdict:
    path = folder / "train.log"
    path.write_bytes(data)
    run = RunJudge(nodes_expected=nodes)
    read_log(run, str(path))
    return run.verdict("SUCCEEDED")


def passes(data: bytes, folder: Path) -> None:
    answer = judged(data, folder)
    assert (answer.outcome, answer.nodes_seen, answer.reasons) == ("pass", 2, ())
    assert [node.node for node in answer.nodes] == ["gpu-1", "gpu-2"]
    assert judged(data, folder, nodes=3).outcome == "fail"
    assert judged(data.replace(NETWORK.encode(), b"Using network Socket"), folder).outcome == "fail"


PREFIXES = [
    "[default0]:",
    "[default3]: ",
    "[rank12]:",
    "[rank0]: ",
    "[trainer0]:",
    "[0]:",
    "2026-01-01T00:00:00.000000+00:00 ray-worker-abc ",
    "2026-01-01T00:00:00Z ray/worker/3f ",
    "[prterun-gpu-1-4242@1,0]<stdout>: ",
    "[prterun-gpu-1-4242@1,0][gpu-1:99]<stderr>: ",
    "worker-0 ray-worker ",
    "raycluster-gpu-workers-abcde ray-worker 2026-01-01T00:00:00.123456789Z ",
    "2026-01-01T00:00:00.000000+00:00 ray-worker-abc [default0]:",
    "\ufeff",
]


@pytest.mark.parametrize("comm", [False, True])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_known_prefixes_are_read_off(prefix: str, comm: bool, tmp_path: Path) -> None:
    passes("\n".join(prefix + line for line in log(comm=comm)).encode(), tmp_path)


ENTRIES = [
    {"time": "2026-01-01T00:00:00.1Z", "stream": "stdout", "_p": "F", "log": "", "kubernetes": {"pod_name": "w"}},
    {"kubernetes": {"pod_name": "w"}, "log": ""},
    {"log": "", "stream": "stdout", "time": "2026-01-01T00:00:00.1Z"},
    {"timestamp": "2026-01-01T00:00:00.1Z", "message": "", "file": "/var/log/x"},
]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("before", ["", "2026-01-01T00:00:00.000000+00:00 fluent-bit-w0 "])
@pytest.mark.parametrize("inner", ["", "2026-01-01T00:00:00.1Z stdout F ", "(WorkerDict pid=7, ip=10.0.0.1) "])
def test_entries_of_log_collectors_are_opened(
    entry: dict[str, object], before: str, inner: str, tmp_path: Path
) -> None:
    key = "log" if "log" in entry else "message"
    ip = {"gpu-1": "10.0.0.1", "gpu-2": "10.0.0.2"}
    lines = []
    for line in log():
        host, pid, *_ = line.split(":")
        lines.append(inner.replace("10.0.0.1", ip[host]).replace("pid=7", f"pid={pid}") + line)
    text = "\n".join(before + json.dumps({**entry, key: line + "\n"}) for line in lines)
    answer = judged(text.encode(), tmp_path)
    assert (answer.outcome, answer.nodes_seen) == ("pass", 2), answer.reasons
    silent = before + json.dumps({**entry, key: "(WorkerDict pid=9, ip=10.0.0.3) step 1"})
    assert judged((text + "\n" + silent).encode(), tmp_path).outcome == ("fail" if inner.startswith("(") else "pass")


def test_every_line_of_an_entry_counts(tmp_path: Path) -> None:
    lines = [json.dumps({**ENTRIES[1], "log": "\n".join(log())})]
    passes("\n".join(lines).encode(), tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings_of_a_windows_shell_are_read(encoding: str, tmp_path: Path) -> None:
    text = "\r\n".join(log())
    answer = judged(text.encode(encoding), tmp_path)
    assert (answer.outcome, answer.nodes_seen) == ("pass", 2)
    assert judged(text.replace(NETWORK, "Using network Socket").encode(encoding), tmp_path).outcome == "fail"


@pytest.mark.parametrize("glue", ["\ufeff", "...", "....", "32m", "[1;32m", "loss=2.31|", "100%|##|", "\u200b", "--"])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("comm", [False, True])
def test_text_before_a_host_s_name_makes_up_no_node(glue: str, at: int, comm: bool, tmp_path: Path) -> None:
    lines = log(comm=comm)
    lines[at] = glue + lines[at]
    answer = judged("\n".join(lines).encode(), tmp_path)
    assert (answer.outcome, answer.nodes_seen, answer.nodes_expected) == ("pass", 2, 2), answer.reasons
    assert judged("\n".join(lines).encode(), tmp_path, nodes=3).outcome == "fail"


@pytest.mark.parametrize("glue", ["x", "2.31", "ab-", "..."])
def test_where_one_process_has_two_names_most_of_its_lines_tell(glue: str, tmp_path: Path) -> None:
    lines = [*rank_lines(1, 100), *rank_lines(2, 200)]
    lines[1] = glue + lines[1]
    answer = judged("\n".join(lines).encode(), tmp_path)
    assert (answer.outcome, [node.node for node in answer.nodes]) == ("pass", ["gpu-1", "gpu-2"])


def test_every_line_of_one_process_behind_dots_makes_up_no_node(tmp_path: Path) -> None:
    lines = ["..." + line if ":102:" in line or ":101:" in line else line for line in log(comm=True)]
    answer = judged("\n".join(lines).encode(), tmp_path)
    assert (answer.outcome, answer.nodes_seen) == ("pass", 2)


def test_hosts_whose_names_end_alike_stay_apart(tmp_path: Path) -> None:
    lines = [line.replace("gpu-2", "big-gpu-1") for line in log()]
    assert judged("\n".join(lines).encode(), tmp_path).outcome == "pass"
    assert judged("\n".join(lines).encode(), tmp_path).nodes_seen == 2


UNKNOWN = [
    "fancy collector: ",
    "expect ",
    "INFO root - ",
    "2026-01-01T00:00:00Z expect ",
    "2026-01-01T00:00:00Z we expect ",
    "some words ",
    "step five of ",
    "{'log': '",
    'config: "',
]


@pytest.mark.parametrize("prefix", UNKNOWN)
def test_an_unknown_prefix_is_named_and_is_no_evidence(prefix: str, tmp_path: Path) -> None:
    answer = judged("\n".join(prefix + line for line in log()).encode(), tmp_path)
    assert (answer.outcome, answer.transport.json_value) == ("fail", "none")
    (reason,) = answer.reasons
    assert prefix.strip()[:9] in reason
    assert "NCCL_DEBUG_SUBSYS" not in reason


def test_where_some_nodes_lines_have_an_unknown_prefix_it_is_named_too(tmp_path: Path) -> None:
    lines = [line if line.startswith("gpu-1") else "fancy: " + line for line in log()]
    reasons = judged("\n".join(lines).encode(), tmp_path, nodes=3).reasons
    assert 'something unknown, here "fancy:"' in " ".join(reasons)
    assert "unknown" not in " ".join(judged("\n".join([*log(), "I saw: " + log()[0]]).encode(), tmp_path).reasons)


@pytest.mark.parametrize(
    "wrap", ['{{"log": {}}}', '{{"text": {}, "time": "1"}}', 'saw {{"log": {}, "stream": "stdout"}}']
)
def test_a_program_s_own_json_is_no_entry(wrap: str, tmp_path: Path) -> None:
    text = "\n".join(wrap.format(json.dumps(line)) for line in log())
    assert judged(text.encode(), tmp_path).outcome == "fail"
