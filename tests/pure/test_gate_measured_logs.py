"""Logs of real NCCL runs on two GPUs of one host (NCCL 2.28.9, bench of 2026-11-29), host name replaced.

``single-host``: P2P between the GPUs. ``forced-socket``: NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_NET=Socket.
``libfabric-missing``: NCCL_NET=Libfabric where no plugin is installed, so that NCCL refuses to start.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from eks_ray_train.gate import RunJudge, Verdict, read_log

REAL = Path(__file__).resolve().parent.parent / "data" / "nccl" / "real"


def judged(path: Path, *, nodes: int, expected: str, job: str = "SUCCEEDED") -> Verdict:
    run = RunJudge(nodes_expected=nodes, expected=expected)  # type: ignore[arg-type]
    read_log(run, str(path))
    return run.verdict(job)


def two_hosts(folder: Path) -> Path:
    """The forced-socket log as two machines print it: each of its two ranks on a host of its own, with its first GPU."""
    text = (REAL / "forced-socket.log").read_text()
    processes = sorted({line.split(":")[1] for line in text.splitlines() if line.startswith("gpu-host:")})
    assert len(processes) == 2
    path = folder / "two-hosts.log"
    path.write_text(text.replace(f"gpu-host:{processes[1]}:", f"gpu-host-b:{processes[1]}:").replace("1[1]", "1[0]"))
    return path


@pytest.mark.parametrize("name", ["single-host", "forced-socket"])
def test_two_ranks_of_one_host_show_no_transport_between_nodes(name: str) -> None:
    verdict = judged(REAL / f"{name}.log", nodes=2, expected="efa")
    assert verdict.to_json()["transport"] == "none"
    assert verdict.outcome == "fail"


def test_forced_sockets_between_two_hosts_pass_as_tcp_and_fail_as_efa(tmp_path: Path) -> None:
    path = two_hosts(tmp_path)
    assert judged(path, nodes=2, expected="tcp").outcome == "pass"
    verdict = judged(path, nodes=2, expected="efa")
    assert (verdict.outcome, verdict.to_json()["transport"]) == ("fail", "socket")


@pytest.mark.parametrize("expected", ["efa", "tcp"])
def test_a_missing_plugin_never_passes(expected: str) -> None:
    for job in ("FAILED", "SUCCEEDED"):
        verdict = judged(REAL / "libfabric-missing.log", nodes=2, expected=expected, job=job)
        assert verdict.outcome == "fail"
        # NCCL was told to use nothing else and did not start, so there was no transport, not even TCP.
        assert verdict.to_json()["transport"] == "none"
        assert "NCCL did not find the plugin" in " ".join(verdict.reasons)
