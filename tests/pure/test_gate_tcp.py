"""Where TCP is expected, the reasons say what the log lacks and never how to make EFA work."""

from __future__ import annotations

from pathlib import Path

import pytest

from eks_ray_train.gate import RunJudge, Verdict, read_log

DATA = Path(__file__).resolve().parent.parent / "data" / "nccl"
EFA_REMEDIES = (
    "vpc.amazonaws.com/efa",
    "NCCL_NET_PLUGIN=ofi",
    "fi_info",
    "FI_PROVIDER",
    "EFA device plugin",
    "security group",
)


def judged(path: Path) -> Verdict:
    run = RunJudge(nodes_expected=None, expected="tcp")
    read_log(run, str(path))
    return run.verdict("SUCCEEDED")


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.log")), ids=lambda path: path.name)
def test_no_remedy_tells_to_make_efa_work(path: Path) -> None:
    reasons = " ".join(reason.rpartition("; ")[2] for reason in judged(path).reasons)
    assert not [word for word in EFA_REMEDIES if word in reasons]


def test_the_same_for_every_shared_case(shared_dir: Path) -> None:
    for path in sorted((shared_dir / "cases" / "nccl").glob("*.log")):
        test_no_remedy_tells_to_make_efa_work(path)


def test_sockets_that_are_only_announced_are_told_as_that(tmp_path: Path) -> None:
    path = tmp_path / "tcp.log"
    announced = "NET/Socket : Using [0]ens3:10.0.0.110<0>"
    path.write_text("".join(f"{host}:1:1 [0] NCCL INFO {announced}\n" for host in ("a", "b")), encoding="utf-8")
    answer = judged(path)
    assert (answer.outcome, answer.transport.json_value) == ("fail", "socket")
    reasons = " ".join(answer.reasons)
    assert "shows no TCP sockets" not in reasons
    assert "announces TCP sockets, and no line shows that it used them" in reasons
    assert announced in reasons
    path.write_text(
        path.read_text() + "".join(f"{host}:1:1 [0] NCCL INFO Using network Socket\n" for host in ("a", "b"))
    )
    assert judged(path).outcome == "pass"
