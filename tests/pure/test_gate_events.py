"""A run is judged by its ranks' own answers where it has them: transport events and EFA counters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eks_ray_train.gate import Expected, ExpectedFabric, RunJudge, Verdict, judge_events

PROVIDER = "NET/OFI Selected provider is efa, fabric is efa (found 1 nics)"


def counters(sent: int = 10**9, received: int = 10**9) -> dict[str, Any]:
    before = {"rdmap0s6": {"tx_bytes": 5, "rx_bytes": 7, "send_bytes": 5, "recv_bytes": 7, "rx_drops": 0}}
    after = {
        "rdmap0s6": {"tx_bytes": 5 + sent, "rx_bytes": 7 + received, "send_bytes": 5 + sent, "recv_bytes": 7 + received}
    }
    return {"before": before, "after": after}


def event(
    rank: int, world: int = 4, *, net: str = "Libfabric", per_node: int = 2, efa_counters: Any = None, **more: Any
) -> dict[str, Any]:
    """A rank's answer: even local ranks have channels between nodes, odd ones only within their node."""
    node, gpu = rank // per_node, rank % per_node
    head = f"worker-{node}:{100 + rank}:{200 + rank} [{gpu}] NCCL INFO "
    lines = [head + PROVIDER] if net == "Libfabric" else []
    lines += [
        head + f"Using network {net}",
        head + f"Channel 00/0 : {rank}[{gpu}] -> {rank ^ 1}[{gpu ^ 1}] via SHM/direct/direct",
    ]
    if gpu == 0:
        peer = (rank + per_node) % world
        lines.append(head + f"Channel 00/0 : {peer}[0] -> {rank}[0] [receive] via NET/{net}/0")
    return {
        "event": "transport", "rank": rank, "node": f"10.0.0.{node + 1}", "world_size": world, "nccl_lines": lines,
        "efa_counters": counters() if efa_counters is None else efa_counters, **more,
    }  # fmt: skip


def judged(
    events: list[dict[str, Any]], *, nodes: int = 2, expected: Expected = "efa", instance: ExpectedFabric | None = None
) -> Verdict:
    direct = judge_events(events, job_status="SUCCEEDED", nodes_expected=nodes, expected=expected, instance=instance)
    stream = RunJudge(nodes_expected=nodes, expected=expected, instance=instance)
    for entry in events:
        stream.feed_line("step 1\n")
        stream.feed_line(json.dumps(entry) + "\n")
    assert not events or stream.verdict("SUCCEEDED") == direct
    return direct


def run(**more: Any) -> list[dict[str, Any]]:
    return [event(rank, **more) for rank in range(4)]


TCP = {"net": "Socket", "efa_counters": counters(0, 0)}


def test_four_ranks_on_two_nodes_over_efa_pass() -> None:
    answer = judged(run())
    assert (answer.outcome, answer.reasons) == ("pass", ())
    assert (answer.nodes_seen, answer.ranks_seen) == (2, 4)
    assert [node.to_json()["efa_bytes"] for node in answer.nodes] == [{"sent": 10**9, "received": 10**9}] * 2
    assert [node.ranks for node in answer.nodes] == [(0, 1), (2, 3)]


def moved(**change: Any) -> list[dict[str, Any]]:
    return [{**entry, **change} if entry["rank"] == 2 else entry for entry in run()]


@pytest.mark.parametrize(
    ("name", "events", "words"),
    [
        ("no event", [], "no transport event"),
        ("one rank's event missing", run()[:3], "rank 3 of 4"),
        ("one node's events missing", run()[:2], "rank 2, 3 of 4"),
        ("one rank without lines", moved(nccl_lines=[]), "rank 2 reports no NCCL line"),
        ("one rank over sockets", [*run()[:2], event(2, net="Socket"), event(3)], "via NET/Socket/0"),
        ("all over sockets", run(**TCP), "uses TCP sockets"),
        ("counters still on one node", [*run()[:2], *[event(r, efa_counters=counters(0, 0)) for r in (2, 3)]], "0 bytes sent"),
        ("only sent", run(efa_counters=counters(5, 0)), "0 received"),
        ("counters absent", run(efa_counters={"before": None, "after": None, "absent": "no device"}), "no EFA counters"),
        ("counters unreadable", run(efa_counters="?"), "no EFA counters"),
        ("no counters at all", run(efa_counters=[]), "no EFA counters"),
        ("a device that appears during the run", run(efa_counters={"before": {"a": {"tx_bytes": 1}}, "after": {"b": {"tx_bytes": 9}}}), "0 bytes sent"),
        ("a counter that was reset", run(efa_counters={"before": {"tx_bytes": 9, "rx_bytes": 9}, "after": {"tx_bytes": 1, "rx_bytes": 1}}), "0 bytes sent"),
        ("a counter without a finite value", run(efa_counters={"before": {"tx_bytes": 0, "rx_bytes": 0}, "after": {"tx_bytes": float("inf"), "rx_bytes": float("nan")}}), "0 bytes sent"),
        ("no rank without world size", [{k: v for k, v in e.items() if k != "world_size"} for e in run()], "world's size"),
        ("a malformed event", [*run(), {"event": "transport", "rank": "0", "nccl_lines": []}], "without a usable rank"),
        ("a rank without a node", [*run(), {"event": "transport", "rank": 1, "node": None}], "without a usable rank"),
        ("no channel between nodes", [{**e, "nccl_lines": e["nccl_lines"][:2]} for e in run()], "channel between nodes"),
        ("one node without channel between nodes", [*run()[:2], *[{**e, "nccl_lines": e["nccl_lines"][:3]} for e in run()[2:]]], "stay within"),
        ("a cut line", moved(nccl_lines=[run()[2]["nccl_lines"][0], "worker-1:102:202 [0] NCCL INFO Using netw"]), "broke off"),
        ("restart after which nobody answers", [*run(), {"event": "restart", "attempt": 2}], "no transport event"),
        ("restart after which one rank does not answer", [*run(), {"event": "restart", "attempt": 2}, *run()[:3]], "rank 3"),
        ("EFA before the restart, sockets after", [*run(), {"event": "restart"}, *run(**TCP)], "uses TCP sockets"),
        ("sockets before the restart, EFA after", [*run(**TCP), {"event": "restart"}, *run()], "before the last restart"),
        ("channels before the restart, only selection after", [*run(), {"event": "restart"}, *[{**e, "nccl_lines": e["nccl_lines"][:2]} for e in run()]], "channel between nodes"),
    ],
)  # fmt: skip
def test_it_fails_and_says_why(name: str, events: list[dict[str, Any]], words: str) -> None:
    answer = judged(events)
    assert answer.outcome == "fail", name
    assert words in " ".join(answer.reasons)


def test_more_nodes_expected_than_answer_fail() -> None:
    assert "2 of 3 nodes" in " ".join(judged(run(), nodes=3).reasons)


def test_a_restarted_run_passes_when_every_attempt_used_efa() -> None:
    assert judged([*run(), {"event": "restart", "attempt": 2}, *run()]).outcome == "pass"


@pytest.mark.parametrize(
    "reading",
    [
        {"before": {"tx_bytes": 0, "rx_bytes": 0}, "after": {"tx_bytes": 10, "rx_bytes": 20}},
        {"before": {"send_bytes": 1, "recv_bytes": 1}, "after": {"send_bytes": 11, "recv_bytes": 21}},
        {"before": {"d": {"rdma_write_bytes": 0, "rdma_read_bytes": 0}}, "after": {"d": {"rdma_write_bytes": 10, "rdma_read_bytes": 20}}},
        {"before": {"a": {"tx_bytes": 0, "rx_bytes": 0}, "b": {"tx_bytes": 0, "rx_bytes": 0}}, "after": {"a": {"tx_bytes": 4, "rx_bytes": 8}, "b": {"tx_bytes": 6, "rx_bytes": 12}}},
    ],
)  # fmt: skip
def test_counters_count_in_every_shape(reading: dict[str, Any]) -> None:
    answer = judged(run(efa_counters=reading))
    assert answer.outcome == "pass"
    assert (answer.nodes[0].sent, answer.nodes[0].received) == (10, 20)


def test_a_node_s_ranks_see_the_same_devices_so_bytes_are_not_added_up() -> None:
    answer = judged(run(per_node=4, world=4, efa_counters=counters(10, 20)), nodes=1)
    assert (answer.nodes[0].sent, answer.nodes[0].received) == (10, 20)


def test_the_negative_control_passes_over_tcp_only_with_still_counters() -> None:
    assert judged(run(**TCP), expected="tcp").outcome == "pass"
    assert judged(run(net="Socket", efa_counters={"before": None, "after": None}), expected="tcp").outcome == "pass"
    assert "counters moved" in " ".join(judged(run(net="Socket"), expected="tcp").reasons)
    assert judged(run(), expected="tcp").outcome == "fail"


def test_gpudirect_rdma_and_interfaces_are_demanded_of_events_too() -> None:
    answer = judged(run(), instance=ExpectedFabric(nics=4, gpudirect_rdma=True))
    assert answer.outcome == "fail"
    assert {"GPUDirect RDMA" in reason for reason in answer.reasons} == {True, False}
    assert judged(run(), instance=ExpectedFabric(nics=1, gpudirect_rdma=False)).outcome == "pass"


def test_events_outweigh_free_lines() -> None:
    stream = RunJudge(nodes_expected=2)
    stream.feed_line("gpu-a:1:2 [0] NCCL INFO Using network Socket\n")
    for entry in run():
        stream.feed_line("\x1b[36m(RayTrainWorker pid=5, ip=10.0.0.1)\x1b[0m " + json.dumps(entry) + "\r\n")
    assert stream.by_events
    assert stream.verdict("SUCCEEDED").outcome == "pass"


def test_free_lines_decide_where_no_event_came() -> None:
    stream = RunJudge(nodes_expected=2)
    stream.feed_line("gpu-a:1:2 [0] NCCL INFO Using network Socket\n")
    assert not stream.by_events
    assert stream.verdict("SUCCEEDED").to_json()["transport"] == "socket"


def test_a_node_s_name_cannot_move_the_terminal_s_cursor() -> None:
    answer = judged([{**entry, "node": "\x1b[2Jnode\x07\n" + entry["node"]} for entry in run(**TCP)])
    texts = [*answer.reasons, *(node.node for node in answer.nodes)]
    assert all(text.isprintable() for text in texts)
    assert "10.0.0.1" in " ".join(texts)


def test_where_events_are_required_free_lines_cannot_pass() -> None:
    lines = [line for entry in run() for line in entry["nccl_lines"]]
    for required, outcome in ((False, "pass"), (True, "fail")):
        stream = RunJudge(nodes_expected=2, events_required=required)
        for line in lines:
            stream.feed_line(line)
        assert stream.verdict("SUCCEEDED").outcome == outcome
    assert "no transport event" in " ".join(stream.verdict("SUCCEEDED").reasons)


def test_a_quoted_event_is_no_event() -> None:
    stream = RunJudge(nodes_expected=2)
    for entry in run():
        stream.feed_line("expected something like " + json.dumps(entry))
        stream.feed_line(json.dumps({"log": json.dumps(entry)}))
    assert not stream.by_events
    assert stream.verdict("SUCCEEDED").outcome == "fail"


def test_an_event_that_broke_off_forbids_a_pass() -> None:
    stream = RunJudge(nodes_expected=2)
    for entry in run():
        stream.feed_line(json.dumps(entry))
    assert stream.verdict("SUCCEEDED").outcome == "pass"
    stream.feed_line(json.dumps(event(1))[:200])
    assert "broke off" in " ".join(stream.verdict("SUCCEEDED").reasons)


def test_chunks_and_lines_of_a_stream_give_the_same_verdict() -> None:
    text = "\n".join(["step 1", *map(json.dumps, run()), '{"event": "done", "status": "SUCCEEDED"}', ""])
    stream = RunJudge(nodes_expected=2)
    stream.feed_chunk(text.encode())
    assert stream.done_status == "SUCCEEDED"
    assert stream.verdict(stream.done_status) == judged(run())


def test_one_node_expects_nothing_unless_told_otherwise() -> None:
    stream = RunJudge(nodes_expected=1)
    assert stream.verdict("SUCCEEDED").outcome == "not-judged"
    assert RunJudge(nodes_expected=1, expected="efa").verdict("SUCCEEDED").outcome == "fail"


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, [None, 1, {}], {"before": 3, "after": []}])
@pytest.mark.parametrize("key", ["rank", "node", "world_size", "nccl_lines", "efa_counters"])
def test_malformed_events_never_raise_and_never_pass(key: str, value: Any) -> None:
    good = run()[0][key] == value
    answer = judged([{**entry, key: value} for entry in run()])
    assert good or answer.outcome == "fail" or (key == "node" and value == "x")


def one_gpu_each(nodes: tuple[str, str], gpus: tuple[int, int]) -> list[dict[str, Any]]:
    """Two ranks over sockets, as two pods of one GPU each said it (NCCL 2.28.9, two H200s, CUDA_VISIBLE_DEVICES 0 and 1)."""
    events = []
    for rank in (0, 1):
        head, other = f"vm:34{rank}:38{rank} [0] NCCL INFO ", 1 - rank
        lines = [
            head + "NCCL version 2.28.9+cuda13.0",
            head + "Initialized NET plugin Socket",
            head + "Using network Socket",
            head
            + f"ncclCommInitRankConfig comm 0x30b2d80 rank {rank} nranks 2 cudaDev 0 nvmlDev {gpus[rank]} busId 4000 - Init START",
            head + f"Channel 00/0 : {other}[{gpus[other]}] -> {rank}[{gpus[rank]}] [receive] via NET/Socket/0",
            head + f"Channel 00/0 : {rank}[{gpus[rank]}] -> {other}[{gpus[other]}] [send] via NET/Socket/0",
        ]
        events.append(
            {
                "event": "transport",
                "rank": rank,
                "node": nodes[rank],
                "world_size": 2,
                "nccl_lines": lines,
                "efa_counters": {"before": None, "after": None},
            }
        )
    return events


@pytest.mark.parametrize("gpus", [(0, 1), (1, 0), (0, 0), (3, 4)])
def test_two_nodes_are_told_apart_whatever_their_gpus_numbers(gpus: tuple[int, int]) -> None:
    answer = judged(one_gpu_each(("10.0.0.1", "10.0.0.2"), gpus), expected="tcp")
    assert (answer.outcome, answer.transport.json_value, answer.reasons) == ("pass", "socket", ())


@pytest.mark.parametrize("gpus", [(0, 1), (1, 0)])
def test_ranks_of_one_node_that_use_the_network_among_themselves_do_not_pass_as_two(gpus: tuple[int, int]) -> None:
    answer = judged(one_gpu_each(("10.0.0.1", "10.0.0.1"), gpus), expected="tcp")
    assert answer.outcome == "fail"
    assert answer.transport.json_value == "none"


def test_lines_of_a_rank_that_ran_together_are_still_the_rank_s() -> None:
    events = run()
    lines = events[2]["nccl_lines"]
    events[2] = {**events[2], "nccl_lines": [lines[0] + lines[1], *lines]}
    answer = judged(events)
    assert (answer.outcome, answer.nodes_seen) == ("pass", 2)
    events[2] = {**events[2], "nccl_lines": [*lines, lines[0] + lines[1].replace("Libfabric", "Socket")]}
    assert "10.0.0.2: uses" in " ".join(judged(events).reasons)


def test_nodes_left_out_are_counted_in_the_last_attempt() -> None:
    replaced = [{**entry, "node": entry["node"].replace("10.0.0.2", "10.0.0.3")} for entry in run()]
    stream = RunJudge()
    for entry in [*run(), {"event": "restart", "step": 5}, *replaced]:
        stream.feed_line(json.dumps(entry))
    answer = stream.verdict("SUCCEEDED")
    assert (answer.outcome, answer.nodes_seen, answer.nodes_expected) == ("pass", 2, 2)
    three = RunJudge()
    for entry in run(per_node=2, world=6) + [event(rank, 6) for rank in (4, 5)]:
        three.feed_line(json.dumps(entry))
    assert three.verdict("SUCCEEDED").nodes_expected == 3
