"""The gate cannot be talked into a pass, and what it says can be acted on."""

from __future__ import annotations

import pytest

from eks_ray_train.gate import Expected, ExpectedFabric, LogParser, Verdict, judge

A, B, C = "gpu-a:100:110 [0] NCCL INFO ", "gpu-b:200:210 [0] NCCL INFO ", "gpu-c:300:310 [0] NCCL INFO "
PROVIDER = "NET/OFI Selected provider is efa, fabric is efa (found 1 nics)"
NETWORK = "Using network Libfabric"
SOCKET = "Using network Socket"
EFA_SEND = "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0"
EFA_RECEIVE = "Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Libfabric/0"
LOCAL = "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read"
GOOD = [A + PROVIDER, A + NETWORK, A + EFA_SEND, B + PROVIDER, B + NETWORK, B + EFA_RECEIVE]


def verdict(
    lines: list[str],
    *,
    nodes: int = 2,
    status: str | None = "SUCCEEDED",
    expected: Expected = "efa",
    instance: ExpectedFabric | None = None,
) -> Verdict:
    parser = LogParser()
    for line in lines:
        parser.feed(line)
    return judge(parser.evidence(), job_status=status, nodes_expected=nodes, expected=expected, instance=instance)


def test_two_nodes_on_efa_pass_without_reservation() -> None:
    assert verdict(GOOD).outcome == "pass"
    assert verdict(GOOD).reasons == ()
    assert verdict(GOOD, status="succeeded").exit_code == 0


@pytest.mark.parametrize(
    ("name", "lines", "nodes", "words"),
    [
        ("nothing at all", [], 2, "no NCCL line at all"),
        ("only warnings, since NCCL_DEBUG is WARN", ["gpu-a:1:2 [0] init.cc:12 NCCL WARN Error"], 2, "NCCL_DEBUG=INFO"),
        ("one node silent", [*GOOD[:3], B + "cudaDriverVersion 12080"], 2, "gpu-b"),
        ("a third node missing", GOOD, 3, "2 of 3 nodes"),
        ("one node of four", GOOD[:3], 4, "2 of 4 nodes"),
        ("selected, but all traffic within nodes", [A + PROVIDER, A + NETWORK, A + LOCAL], 2, "no channel crosses"),
        ("selected, and NCCL saw one node", [A + PROVIDER, A + NETWORK, A + "comm 0x1f rank 0 nRanks 4 nNodes 1"], 2, "no channel crosses"),
        ("one of three nodes stays within", [*GOOD, C + PROVIDER, C + NETWORK, C + LOCAL], 3, "gpu-c: its channels stay within"),
        ("plugin gives up after selection", [*GOOD[:3], B + PROVIDER, B + "NET/OFI aws-ofi-nccl initialization failed"], 2, "gpu-b"),
        ("plugin gives up, then sockets", [*GOOD[:3], B + PROVIDER, B + "Initialized NET plugin Socket"], 2, "gpu-b: uses TCP"),
        ("an earlier attempt used EFA, the last one sockets", [*GOOD, "gpu-a:900:910 [0] NCCL INFO " + SOCKET], 2, "gpu-a"),
        ("one process of many on sockets", [*GOOD, "gpu-b:201:211 [1] NCCL INFO " + SOCKET], 2, "gpu-b"),
        ("a channel over sockets beside EFA", [*GOOD, B + "Channel 01/0 : 1[0] -> 0[0] [send] via NET/Socket/0"], 2, "gpu-b"),
        ("a socket channel whose head is lost", [*GOOD, "0[0] -> 8[0] [receive] via NET/Socket/0"], 2, "via NET/Socket/0"),
        ("a socket line glued to another", [*GOOD, "step 5 loss 2.31" + B + SOCKET], 2, "gpu-b"),
        ("another provider on one node", [*GOOD[:3], B + PROVIDER.replace("efa", "tcp"), B + NETWORK], 2, "another libfabric provider"),
        ("a layered provider", [line.replace("is efa,", "is efa;ofi_rxd,") for line in GOOD], 2, "another libfabric provider"),
        ("a network nobody knows", [*GOOD[:3], B + "Using network FasTrak"], 2, "FasTrak"),
        ("Libfabric without a provider", [A + NETWORK, A + EFA_SEND, B + NETWORK, B + EFA_RECEIVE], 2, "which provider"),
        ("no provider on one node", [*GOOD[:3], B + NETWORK, B + EFA_RECEIVE], 2, "which provider"),
        ("network's name broken off", [*GOOD[:3], B + PROVIDER, B + "Using network "], 2, "broke off"),
        ("line broken off within the prefix", [*GOOD[:3], "gpu-b:200:210 [0] NC"], 2, "gpu-b"),
        ("a process whose only line broke off", [*GOOD, "gpu-b:201:211 [1] NCCL INFO Using net"], 2, "broke off"),
        ("prose about EFA", ["We are Using network Libfabric", "provider is efa", "NET/OFI Selected provider is efa maybe"], 2, "no"),
        ("a quoted log line", ['config: "' + A + NETWORK + '"', "expect " + B + PROVIDER, "expect " + B + EFA_SEND], 2, "no"),
        ("prints of a Ray worker", ["(RayTrainWorker pid=1, ip=10.0.0.1) " + text for text in (PROVIDER, NETWORK, EFA_SEND)], 2, "10.0.0.1"),
        ("a Ray worker that prints but shows nothing", [*GOOD, "(RayTrainWorker pid=7, ip=10.0.0.9) step 1"], 2, "10.0.0.9"),
        ("a process of a good node whose plugin gives up", [*GOOD, "gpu-b:201:211 [1] NCCL INFO " + PROVIDER, "gpu-b:201:211 [1] NCCL INFO NET/OFI aws-ofi-nccl initialization failed"], 2, "gave the plugin up"),
        ("two runs of two nodes instead of one of four", [*GOOD, *[line.replace("gpu-", "gpx-") for line in GOOD], A + "comm 0x1f rank 0 nRanks 2 nNodes 2 localRanks 1"], 4, "spans 2 of 4"),
        ("a line that lost the beginning of its host", [*GOOD, B.removeprefix("gpu-") + PROVIDER, B.removeprefix("gpu-") + NETWORK], 3, "2 of 3 nodes"),
        ("one node that uses EFA within itself", [A + PROVIDER, A + NETWORK, *[f"gpu-a:{100 + r}:9 [{r}] NCCL INFO Channel 01/1 : {r}[{r}] -> {1 - r}[{1 - r}] [{way}] via NET/Libfabric/0/GDRDMA/Shared" for r in (0, 1) for way in ("send",)], *[f"gpu-a:{100 + r}:9 [{r}] NCCL INFO Channel 01/1 : {1 - r}[{1 - r}] -> {r}[{r}] [receive] via NET/Libfabric/0/GDRDMA/Shared" for r in (0, 1)]], 2, "no channel crosses"),
        ("the same without host names", ["NCCL INFO " + PROVIDER, "NCCL INFO Channel 01/1 : 1[1] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA/Shared"], 2, "no channel crosses"),
        ("one of two nodes uses EFA within itself", [*GOOD[:3], B + PROVIDER, B + NETWORK, B + "Channel 01/1 : 2[0] -> 3[1] [send] via NET/Libfabric/0", "gpu-b:201:9 [1] NCCL INFO Channel 01/1 : 2[0] -> 3[1] [receive] via NET/Libfabric/0"], 2, "gpu-b: its channels stay"),
        ("an mpirun rank that shows nothing", ["[1,0]<stdout>:" + line for line in GOOD] + ["[1,7]<stdout>:step 1"], 2, "rank 7"),
    ],
)  # fmt: skip
def test_it_fails_and_says_where(name: str, lines: list[str], nodes: int, words: str) -> None:
    answer = verdict(lines, nodes=nodes)
    assert answer.outcome == "fail", name
    assert answer.exit_code == 3
    assert words in " ".join(answer.reasons)
    assert verdict(lines[::-1], nodes=nodes).outcome == "fail"


def test_reasons_name_node_then_line_then_what_to_check() -> None:
    lines = [*GOOD[:3], B + "NET/Plugin: Could not find: ofi libnccl-net-ofi.so", B + SOCKET]
    (reason,) = verdict(lines).reasons
    assert reason.index("gpu-b") < reason.index(SOCKET) < reason.index("check NCCL_NET_PLUGIN")


def test_an_efa_device_missing_from_the_container_is_named_as_the_cause() -> None:
    lines = [*GOOD[:3], B + "NET/OFI No eligible providers were found", B + SOCKET]
    assert "vpc.amazonaws.com/efa" in " ".join(verdict(lines).reasons)


@pytest.mark.parametrize(("nodes", "outcome"), [(2, "pass"), (3, "fail"), (8, "fail")])
def test_lines_that_name_no_host_speak_for_two_nodes_at_most(nodes: int, outcome: str) -> None:
    parser = LogParser()
    parser.feed("NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 1 nics)")
    answer = judge(parser.evidence(), job_status="SUCCEEDED", nodes_expected=nodes, expected="efa")
    assert answer.outcome == outcome
    assert any(f"evidence from 2 of {nodes} nodes" in reason for reason in answer.reasons) == (outcome == "fail")


def test_one_host_vouches_for_one_peer_and_no_more() -> None:
    one = [A + PROVIDER, A + NETWORK]
    assert verdict(one).outcome == "pass"
    assert "only gpu-a is named" in " ".join(verdict(one).reasons)
    assert verdict(one, nodes=3).outcome == "fail"


def test_under_ray_every_node_must_speak_for_itself() -> None:
    lines = ["(RayTrainWorker pid=100, ip=10.0.0.1) " + line for line in GOOD[:3]]
    assert verdict([*lines, "(RayTrainWorker pid=100, ip=10.0.0.1) step 1"]).outcome == "fail"


def test_pods_of_one_host_name_are_told_apart_by_address() -> None:
    def lines(ip: str, pid: int) -> list[str]:
        return [
            f"(RayTrainWorker pid={pid}, ip={ip}) worker:{pid}:9 [0] NCCL INFO {text}" for text in (PROVIDER, NETWORK)
        ]

    answer = verdict([*lines("10.0.0.1", 50), *lines("10.0.0.2", 50)])
    assert (answer.outcome, answer.nodes_seen, answer.ranks_seen) == ("pass", 2, 2)


def test_lines_with_and_without_ray_prefix_are_one_node_not_two() -> None:
    lines = ["(RayTrainWorker pid=100, ip=10.0.0.1) " + GOOD[0], *GOOD[1:]]
    lines += ["(RayTrainWorker pid=200, ip=10.0.0.2) " + line for line in GOOD[3:]]
    answer = verdict(lines)
    assert (answer.outcome, len(answer.nodes), answer.nodes_seen, answer.ranks_seen) == ("pass", 2, 2, 2)
    assert verdict(lines, nodes=3).outcome == "fail"


def test_deduplicated_lines_speak_for_as_many_ranks_as_they_say() -> None:
    def worker(node: int, pid: int, text: str) -> str:
        return f"(RayTrainWorker pid={pid}, ip=10.0.0.{node}) h{node}:{pid}:9 [0] NCCL INFO {text}"

    lines = [
        worker(1, 10, PROVIDER), worker(1, 10, NETWORK), worker(1, 10, EFA_SEND),
        worker(2, 20, PROVIDER), worker(2, 20, EFA_RECEIVE),
        worker(2, 20, NETWORK + " [repeated 2x across cluster] (Ray deduplicates logs by default. Set RAY_DEDUP_LOGS=0)"),
        worker(1, 11, "Connected all rings"),
    ]  # fmt: skip
    assert verdict(lines).outcome == "pass"
    silent = [worker(1, pid, "Connected all rings") for pid in (12, 13)]
    assert verdict([*lines, *silent]).outcome == "fail"


def test_gpudirect_rdma_is_demanded_only_where_the_type_has_it() -> None:
    has, has_not = ExpectedFabric(gpudirect_rdma=True), ExpectedFabric(gpudirect_rdma=False)
    assert verdict(GOOD, instance=has_not).outcome == "pass"
    answer = verdict(GOOD, instance=has)
    assert answer.outcome == "fail"
    assert "GPUDirect RDMA" in answer.reasons[0]
    assert EFA_SEND in answer.reasons[0]
    assert verdict([line.replace("Libfabric/0", "Libfabric/0/GDRDMA") for line in GOOD], instance=has).outcome == "pass"
    assert verdict([*GOOD, A + "Connected all rings, use ring PXN 0 GDR 0"], instance=has_not).outcome == "pass"


def test_fewer_efa_interfaces_than_the_type_has_fail() -> None:
    answer = verdict(GOOD, instance=ExpectedFabric(nics=4))
    assert answer.outcome == "fail"
    assert "found 1 of 4 EFA interfaces" in answer.reasons[0]
    assert verdict(GOOD, instance=ExpectedFabric(nics=1)).outcome == "pass"


TCP = [
    A + SOCKET,
    A + EFA_SEND.replace("Libfabric", "Socket"),
    B + SOCKET,
    B + EFA_RECEIVE.replace("Libfabric", "Socket"),
]


@pytest.mark.parametrize(
    "suffix",
    ["/GDRDMA", "/GDRDMA/flush=None", "/GDRDMA(PCI)", "(4)/GDRDMA/Shared", "/Shared", "/GDRDMA comm 0x7f00 nRanks 16"],
)
def test_suffixes_of_channels_are_known(suffix: str) -> None:
    lines = [line.replace("Libfabric/0", "Libfabric/0" + suffix) for line in GOOD]
    assert verdict(lines).outcome == "pass"
    assert "cut" not in " ".join(verdict(lines).reasons)
    assert verdict(lines, instance=ExpectedFabric(gpudirect_rdma=True)).outcome == (
        "pass" if "GDRDMA" in suffix else "fail"
    )


def test_channels_between_nodes_need_not_join_gpus_of_one_number() -> None:
    far = "Channel 00/0 : 7[3] -> 0[0] [{}] via NET/Libfabric/0"
    lines = [A + PROVIDER, A + far.format("receive"), B + PROVIDER, B + far.format("send")]
    assert verdict(lines).outcome == "pass"


def test_the_negative_control_passes_over_tcp_and_fails_over_efa() -> None:
    assert verdict(TCP, expected="tcp").outcome == "pass"
    assert verdict(TCP, expected="efa").outcome == "fail"
    answer = verdict(GOOD, expected="tcp")
    assert (answer.outcome, answer.to_json()["transport"]) == ("fail", "efa")
    assert "NCCL_NET=Socket" in " ".join(answer.reasons)


@pytest.mark.parametrize(
    "hint", ["NET/Socket : Using [0]eth0:10.0.0.1<0>", "NET/Plugin : No plugin found (libnccl-net.so)."]
)
def test_hints_of_sockets_are_enough_to_fail_efa_and_not_to_pass_tcp(hint: str) -> None:
    lines = [A + hint, B + hint]
    assert verdict(lines).to_json()["transport"] == "socket"
    assert verdict(lines, expected="tcp").outcome == "fail"


def test_libfabric_over_tcp_is_not_the_tcp_control() -> None:
    lines = [line.replace("provider is efa, fabric is efa", "provider is tcp, fabric is 10.0.0.0/8") for line in GOOD]
    assert verdict(lines, expected="tcp").outcome == "fail"


def test_nothing_expected_is_not_judged_and_follows_the_job() -> None:
    for lines in ([], GOOD, TCP):
        answer = verdict(lines, expected="none", nodes=1)
        assert (answer.outcome, answer.exit_code) == ("not-judged", 0)
        assert verdict(lines, expected="none", status="STOPPED").exit_code == 4
        assert verdict(lines, expected="none", status=None).exit_code == 4


def test_json_has_the_contract_s_fields_and_at_most_five_verbatim_lines() -> None:
    lines = [A + PROVIDER, *[A + f"Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/{n}" for n in range(20)], *GOOD]
    document = verdict(lines).to_json()
    assert list(document) == [
        "verdict", "transport", "expected", "job_status", "nodes_expected", "nodes_seen", "ranks_seen", "reasons", "nodes",
    ]  # fmt: skip
    assert (document["nodes_seen"], document["ranks_seen"]) == (2, 2)
    for node in document["nodes"]:
        assert list(node) == ["node", "ranks", "transport", "evidence", "efa_bytes"]
        assert 1 <= len(node["evidence"]) <= 5
        assert all(line in lines for line in node["evidence"])
        assert node["efa_bytes"] == {"sent": 0, "received": 0}


def test_an_unknown_answer_reads_none_outside() -> None:
    answer = verdict([])
    assert answer.transport.value == "unknown"
    assert answer.to_json()["transport"] == "none"


@pytest.mark.parametrize(("nodes", "expected"), [(0, "efa"), (-1, "efa"), (2, "EFA"), (2, "socket")])
def test_impossible_questions_are_refused(nodes: int, expected: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        judge(LogParser().evidence(), job_status="SUCCEEDED", nodes_expected=nodes, expected=expected)  # type: ignore[arg-type]


def test_a_line_of_a_megabyte_is_read_at_its_head_and_searched_behind() -> None:
    filler = "x" * 1_000_000
    assert verdict([*GOOD, "progress " + filler]).outcome == "pass"
    assert verdict([*GOOD, filler + " Using network Socket"]).outcome == "fail"
    assert verdict([*GOOD, A + filler]).outcome == "pass"


def test_memory_does_not_grow_with_lines() -> None:
    import tracemalloc

    parser = LogParser()
    stamp = "2026-01-15T02:30:{:02d}.{:06d}Z "

    def chunk(number: int) -> bytes:
        lines = [stamp.format(number % 60, n) + line for n, line in enumerate(GOOD * 100)]
        return "\n".join(lines).encode()

    parser.feed_chunk(chunk(0))
    tracemalloc.start()
    parser.feed_chunk(chunk(1))
    before = tracemalloc.get_traced_memory()[0]
    for number in range(2, 12):
        parser.feed_chunk(chunk(number))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 100_000
    assert all(len(rank.lines) <= 5 for rank in parser.evidence().ranks)
