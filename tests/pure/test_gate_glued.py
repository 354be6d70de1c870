"""Lines of several writers in one: what speaks against EFA counts wherever it stands, and no name is made up."""

from __future__ import annotations

import pytest

from eks_ray_train.gate import Expected, LogParser, Verdict, judge

A, B, C = "gpu-a:100:110 [0] NCCL INFO ", "gpu-b:200:210 [0] NCCL INFO ", "gpu-b:201:211 [1] NCCL INFO "
PROVIDER = "NET/OFI Selected provider is efa, fabric is efa (found 1 nics)"
NETWORK = "Using network Libfabric"
SEND = "Channel 00/0 : 0[0] -> 2[0] [send] via NET/Libfabric/0"
RECEIVE = "Channel 00/0 : 0[0] -> 2[0] [receive] via NET/Libfabric/0"
LOCAL = "Channel 00/0 : 2[0] -> 3[1] via P2P/CUMEM"
GOOD = [A + PROVIDER, A + NETWORK, A + SEND, B + PROVIDER, B + NETWORK, B + RECEIVE]
FOR = [
    A + "Connected all rings",
    A + PROVIDER,
    A + NETWORK,
    A + SEND,
    B + LOCAL,
    A + "comm 0x1 rank 0 nRanks 3 nNodes 2",
]
AGAINST = [
    "Using network Socket",
    "Using network IB",
    "Assigned NET plugin Socket to comm",
    "NET/OFI Selected provider is tcp",
    "NET/OFI Selected provider is tcp;ofi_rxm, fabric is 10.0.0.0/8 (found 1 nics)",
    "Channel 01/0 : 2[0] -> 0[0] [send] via NET/Socket/0",
    "Channel 01 : 2[0] -> 0[0] [receive] via NET/IB/0",
]


def verdict(lines: list[str], *, chunks: bool = False, nodes: int = 2, expected: Expected = "efa") -> Verdict:
    parser = LogParser()
    if chunks:
        parser.feed_chunk("\n".join(lines).encode())
    else:
        for line in lines:
            parser.feed(line)
    return judge(parser.evidence(), job_status="SUCCEEDED", nodes_expected=nodes, expected=expected)


@pytest.mark.parametrize("against", AGAINST)
@pytest.mark.parametrize("other", FOR)
@pytest.mark.parametrize("head", [C, B])
def test_a_statement_behind_another_line_counts(against: str, other: str, head: str) -> None:
    for line in (
        other + head + against,
        head + against + other,
        other + head + against + other,
        other + other + head + against,
    ):
        for chunks in (False, True):
            answer = verdict([*GOOD * 2, line], chunks=chunks)
            assert answer.outcome == "fail", line
            assert answer.nodes_seen == 2
            assert not any("CUMEM" in node.node or "rings" in node.node for node in answer.nodes)


@pytest.mark.parametrize("against", AGAINST)
@pytest.mark.parametrize("other", FOR)
def test_a_statement_that_another_line_was_written_into_is_no_pass(against: str, other: str) -> None:
    line = C + against
    for at in range(len(C) - len("NCCL INFO ") - 2, len(line) + 1):
        assert verdict([*GOOD, line[:at] + other + line[at:]]).outcome == "fail", (at, line[:at], other)


@pytest.mark.parametrize("against", AGAINST)
def test_a_statement_written_into_a_known_line_counts(against: str) -> None:
    """Channel lines that were seen are passed over by their head and tail: not where something stands between."""
    line = B + LOCAL
    for at in range(len(line) + 1):
        mixed = line[:at] + C + against + line[at:]
        assert verdict([*GOOD, line, line, mixed], chunks=True).outcome == "fail", mixed


@pytest.mark.parametrize("against", ["Using network Socket", "Using network IB", "NET/OFI Selected provider is tcp"])
def test_a_statement_whose_head_broke_within_nccl_s_mark_counts(against: str) -> None:
    line = C + against
    for at in range(line.index("[1]"), line.index(against) + 1):
        assert verdict([*GOOD, line[at:]]).outcome == "fail", line[at:]


@pytest.mark.parametrize(
    "line",
    [
        B + LOCAL + A + SEND,
        B + RECEIVE + A + "Connected all rings",
        A + "Connected all rings" + B + LOCAL,
        A + NETWORK + B + NETWORK,
        A + PROVIDER + B + PROVIDER,
        A + "Using netw" + B + NETWORK + "ork Libfabric",
    ],
)
def test_lines_that_ran_together_and_say_nothing_else_do_no_harm(line: str) -> None:
    answer = verdict([*GOOD, line])
    assert (answer.outcome, answer.nodes_seen, answer.ranks_seen) == ("pass", 2, 2)


@pytest.mark.parametrize(
    "line",
    [
        "the config says Using network Socket when EFA is missing",
        "see NET/Socket in the docs",
        "provider is tcp or efa",
    ],
)
def test_prose_is_no_statement_against_efa(line: str) -> None:
    assert verdict([*GOOD, line]).outcome == "pass"


def test_a_glued_name_makes_up_no_node_of_the_tcp_run() -> None:
    tcp = [A + "Using network Socket", B + "Using network Socket"]
    assert verdict(tcp, expected="tcp").outcome == "pass"
    answer = verdict([*tcp, A + "Connected all rings" + C + "Using network Socket"], expected="tcp", nodes=3)
    assert (answer.outcome, answer.nodes_seen) == ("fail", 2)
