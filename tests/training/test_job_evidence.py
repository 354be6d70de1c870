"""What the job says of itself: event lines, transport evidence, speed, who failed first, who is missing."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eks_ray_train.gate.events import evidence_of_events
from fsdp_job import events, transport
from fsdp_job.driver import first_cause
from fsdp_job.events import LocalSink, SinkState
from fsdp_job.metrics import Speed, attention_shape, flops_per_token, peak_tflops
from fsdp_job.watch import Watch, who_is_behind
from fsdp_job.worker import NOISE


def test_an_event_is_one_line_of_strict_json() -> None:
    line = events.render("step", step=1, loss=float("nan"), path=Path("/a"), nested={"x": [float("inf"), 1]})
    assert "\n" not in line
    assert json.loads(line) == {"event": "step", "step": 1, "loss": None, "path": "/a", "nested": {"x": [None, 1]}}
    with pytest.raises(ValueError, match="unknown event 'steps'"):
        events.render("steps")


def test_the_sink_gives_lines_once_and_the_evidence_of_ranks_that_fell_silent() -> None:
    sink = SinkState()
    sink.stash(events.render("transport", rank=0, final=False))
    sink.stash(events.render("transport", rank=1, final=False))
    sink.add(events.render("step", step=3, loss=2.5))
    sink.add(events.render("transport", rank=0, final=True))
    assert [json.loads(line)["event"] for line in sink.drain()] == ["step", "transport"]
    assert sink.drain() == []
    assert [json.loads(line)["rank"] for line in sink.leftover()] == [1]
    assert (sink.state()["last_step"], sink.state()["final_loss"]) == (3, 2.5)


def test_what_a_lost_rank_had_stashed_belongs_to_its_own_attempt() -> None:
    """Three ranks, one node lost, two go on: the third's evidence must not look like a third node of the attempt that ended."""
    sink = SinkState()
    sink.begin_attempt()
    for rank in range(3):
        sink.stash(events.render("transport", rank=rank, node="abc"[rank], world_size=3, final=False))
    sink.add(events.render("transport", rank=0, node="a", world_size=3, final=True))
    sink.begin_attempt()
    sink.add(events.render("restart", attempt=2, step=5))
    sink.stash(events.render("transport", rank=1, node="b", world_size=2, final=False))
    sink.add(events.render("transport", rank=0, node="a", world_size=2, final=True))
    lines = [json.loads(line) for line in [*sink.drain(), *sink.leftover()]]
    assert [(line["event"], line.get("node"), line.get("world_size")) for line in lines] == [
        ("transport", "a", 3), ("transport", "b", 3), ("transport", "c", 3), ("restart", None, None), ("transport", "a", 2), ("transport", "b", 2),
    ]  # fmt: skip
    judged = evidence_of_events(lines)
    assert (set(judged.counters), judged.world_size, len(judged.earlier)) == ({"a", "b"}, 2, 1)


# Lines as NCCL 2.29 and aws-ofi-nccl 1.20 print them (their sources).
NCCL = [
    "ip-10-0-1-5:71:71 [0] NCCL INFO Bootstrap: Using eth0:10.0.1.5<0>",
    "ip-10-0-1-5:71:90 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 1 nics)",
    "ip-10-0-1-5:71:90 [0] NCCL INFO Using network Libfabric",
    *[f"ip-10-0-1-5:71:90 [0] NCCL INFO Channel {n:02d}/0 : 0[0] -> 4[0] [send] via NET/Libfabric/0" for n in range(8)],
    *[f"ip-10-0-1-5:71:90 [0] NCCL INFO Channel {n:02d}/0 : 0[0] -> 1[1] via SHM/direct/direct" for n in range(8)],
]


def test_the_lines_that_show_the_transport_are_kept_verbatim_and_channels_counted() -> None:
    lines, channels = transport.matter(NCCL)
    assert channels == {"NET/Libfabric/0": 8, "SHM/direct/direct": 8}
    assert NCCL[1] in lines
    assert NCCL[2] in lines
    assert lines == [NCCL[1], NCCL[2], NCCL[3], *NCCL[11:14]]  # one channel a neighbour, and three of those within the node


def test_a_flood_of_lines_never_cuts_the_channels_off() -> None:
    flood = [f"h:1:1 [0] NCCL INFO NET/OFI line {number}" for number in range(500)]
    lines, _ = transport.matter(flood + NCCL)
    assert len(lines) == transport.MAX_LINES
    assert any("via NET/Libfabric" in line for line in lines)


def channel(index: int, a: int, b: int, via: str) -> str:
    return f"h:7:{index} [0] NCCL INFO Channel {index:02d}/0 : {a}[0] -> {b}[0] [send] via {via}"


# What a rank of 32 interfaces and many communicators prints: far more channel lines than an event holds.
CROWD = [channel(i, 0, 8 * (1 + i % 3), f"NET/Libfabric/{i % 32}/GDRDMA") for i in range(600)]
CROWD += [f"h:7:{i} [0] NCCL INFO Channel {i:02d}/0 : 0[0] -> {1 + i % 7}[{1 + i % 7}] via P2P/CUMEM" for i in range(600)]
DECIDES = [
    "h:7:9 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)",
    "h:7:9 [0] NCCL INFO Using network Libfabric",
    "h:7:9 [0] NCCL INFO ncclCommInitRankConfig comm 0x55d7 rank 0 nranks 16 nNodes 2 cudaDev 0 - Init COMPLETE",
]


@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_channels_never_crowd_out_what_names_network_provider_and_nodes(where: str) -> None:
    half = len(CROWD) // 2
    text = {"before": DECIDES + CROWD, "between": CROWD[:half] + DECIDES + CROWD[half:], "after": CROWD + DECIDES}[where]
    many = [f"h:7:{i} [0] NCCL INFO ncclCommSplit comm 0x{i} rank {i} nranks {i + 1} nNodes 1 - Init COMPLETE" for i in range(99)]
    lines, channels = transport.matter([*many, *text])
    assert set(DECIDES) <= set(lines)
    assert len(lines) <= transport.MAX_LINES
    assert sum(channels.values()) == len(CROWD)


def test_every_neighbour_on_another_node_is_shown_once() -> None:
    near = [channel(i, 0, 1 + i % 7, "NET/Libfabric/0") for i in range(400)]
    far = [channel(400 + i, 0, 8, f"NET/Libfabric/{i}") for i in range(32)]
    lines, _ = transport.matter(near + far)
    assert [line.partition(" -> ")[2].partition("[")[0] for line in lines] == [*"1234567", "8"]


def test_a_big_log_is_read_in_little_time() -> None:
    rings = [f"h:7:9 [0] NCCL INFO Channel {i:02d}/16 : " + " ".join(map(str, range(1024))) for i in range(16)]
    began = time.process_time()
    lines, _ = transport.matter([*rings, *CROWD * 40])
    assert time.process_time() - began < 3
    assert not set(rings) & set(lines)


def test_a_statement_against_efa_is_kept_however_late_it_comes() -> None:
    late = [channel(0, 0, 8, "NET/Socket/0"), "h:7:9 [0] NCCL INFO Using network Socket"]
    lines, _ = transport.matter(DECIDES + CROWD + CROWD + late)
    assert set(late) <= set(lines)


def whole_log(rank: int, *, net: str = "Libfabric") -> list[str]:
    """All that a rank of 16 on two p5 nodes prints of its network; ``net``: what its last communicator uses."""
    gpu, other = rank % 8, (rank + 8) % 16
    head = f"worker-{rank // 8}:{70 + gpu}:{90 + gpu} [{gpu}] NCCL INFO "
    said = ["NET/OFI Initializing aws-ofi-nccl 1.21.1", "NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)"]
    for size, nodes in ((8, 1), (16, 2), (2, 2)):
        said += ["Assigned NET plugin Libfabric to comm", "Using network Libfabric"]
        said += [f"ncclCommInitRankConfig comm 0x{size:x} rank {rank % size} nranks {size} nNodes {nodes} - Init COMPLETE"]
        said += [f"Channel {i:02d}/0 : {rank}[{gpu}] -> {rank ^ 1}[{gpu ^ 1}] via P2P/CUMEM" for i in range(24)]
        said += [f"Channel {i:02d}/0 : {rank}[{gpu}] -> {other}[{gpu}] [send] via NET/Libfabric/{i}/GDRDMA" for i in range(24 * (nodes - 1))]
    said += [f"NET/OFI tuning of region {i}" for i in range(400)]
    said += [] if net == "Libfabric" else [f"Using network {net}", f"Channel 00/0 : {rank}[{gpu}] -> {other}[{gpu}] [send] via NET/{net}/0"]
    return [head + line for line in said]


@pytest.mark.parametrize(("odd", "outcome", "shown"), [(None, "pass", "efa"), (5, "fail", "mixed")])
def test_what_the_job_keeps_is_enough_for_the_gate_and_hides_nothing_from_it(odd: int | None, outcome: str, shown: str) -> None:
    from eks_ray_train.gate import ExpectedFabric, judge_events

    counters = {"before": {"rdmap0": {"tx_bytes": 0, "rx_bytes": 0}}, "after": {"rdmap0": {"tx_bytes": 9, "rx_bytes": 9}}}
    told = []
    for rank in range(16):
        lines, _ = transport.matter(whole_log(rank, net="Socket" if rank == odd else "Libfabric"))
        told.append({"event": "transport", "rank": rank, "node": f"10.0.0.{rank // 8}", "world_size": 16, "nccl_lines": lines, "efa_counters": counters})
    verdict = judge_events(
        told, job_status="SUCCEEDED", nodes_expected=2, expected="efa", instance=ExpectedFabric(nics=32, gpudirect_rdma=True)
    )
    assert (verdict.outcome, verdict.to_json()["transport"]) == (outcome, shown), verdict.reasons


def test_evidence_is_of_this_process_and_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "run7.%h.%p.log"))
    (tmp_path / f"run7.host.{os.getpid()}.log").write_text("\n".join(NCCL))
    (tmp_path / f"run6.host.{os.getpid()}.log").write_text("x NCCL INFO Using network Socket")
    (tmp_path / f"run7.host.{os.getpid()}9.log").write_text("x NCCL INFO Using network Socket")
    evidence = transport.Evidence(rank=3, node="10.0.1.5", local_rank=1, world_size=8)
    fields = evidence.fields()
    assert (fields["rank"], fields["node"], fields["world_size"]) == (3, "10.0.1.5", 8)
    assert fields["nccl_lines"][0] == NCCL[1]
    assert not any("Socket" in line for line in fields["nccl_lines"])
    assert "fi_info" not in fields
    evidence.clean()
    assert len(list(tmp_path.iterdir())) == 2


def test_counters_are_read_by_device_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "rdmap0" / "ports" / "1" / "hw_counters"
    folder.mkdir(parents=True)
    (folder / "tx_bytes").write_text("100\n")
    monkeypatch.setattr(transport.efa_counters, "__defaults__", (tmp_path,))
    evidence = transport.Evidence(rank=0, node="a", local_rank=1, world_size=1)
    (folder / "tx_bytes").write_text("250\n")
    counters = evidence.fields()["efa_counters"]
    assert counters == {"before": {"rdmap0": {"tx_bytes": 100}}, "after": {"rdmap0": {"tx_bytes": 250}}}


def test_absent_tools_and_devices_are_said_to_be_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(transport.efa_counters, "__defaults__", (tmp_path / "none",))
    monkeypatch.setattr("shutil.which", lambda _name: None)
    fields = transport.Evidence(rank=0, node="a", local_rank=0, world_size=1).fields()
    assert fields["fi_info"] == {"absent": "fi_info is not installed"}
    assert fields["efa_counters"]["before"] is None
    assert "no device" in fields["efa_counters"]["absent"]


def test_fi_info_says_what_the_device_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "fi_info"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *FI_RMA*) exit 61;; esac\n'
        "printf 'provider: efa\\n    fabric: efa\\n    domain: rdmap0s31-rdm\\n    type: FI_EP_RDM\\n'\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _name: str(program))
    assert transport.fabric() == {"domains": ["rdmap0s31-rdm"], "FI_EP_RDM": True, "FI_RMA": False}


@pytest.mark.parametrize(
    ("given", "level", "subsystems"),
    [
        ({}, "INFO", "INIT,NET"),
        ({"NCCL_DEBUG": "WARN"}, "INFO", "INIT,NET"),
        ({"NCCL_DEBUG": "trace", "NCCL_DEBUG_SUBSYS": "COLL"}, "TRACE", "COLL,INIT,NET"),
        ({"NCCL_DEBUG_SUBSYS": "ALL"}, "INFO", "ALL"),
    ],
)
def test_the_log_level_that_evidence_needs_is_restored(given: dict[str, str], level: str, subsystems: str) -> None:
    environment = transport.nccl_environment("abc", given)
    assert (environment["NCCL_DEBUG"], environment["NCCL_DEBUG_SUBSYS"]) == (level, subsystems)
    assert "abc" in environment["NCCL_DEBUG_FILE"]


def test_mfu_follows_the_stated_formula() -> None:
    # Qwen2.5-1.5B: 6 × 1,543,714,304 + 6 × 28 layers × (12 × 128) × 2048 = 9.79e9 FLOP a token.
    per_token = flops_per_token(parameters=1_543_714_304, layers=28, attention_width=1536, seq_len=2048)
    assert per_token == pytest.approx(9.7908e9, rel=1e-4)
    speed = Speed(tokens_per_step=32768, world_size=2, flops_per_token=per_token, peak_tflops=989.4)
    fields = speed.fields(0.336)
    assert fields["tokens_per_s"] == pytest.approx(97523.8)
    assert fields["mfu"] == pytest.approx(48761.9 * per_token / 989.4e12, abs=1e-4)
    assert Speed(tokens_per_step=1, world_size=1, flops_per_token=1, peak_tflops=None).fields(1.0)["mfu"] is None


def test_chips_are_known_by_their_names_the_longest_first() -> None:
    assert peak_tflops("NVIDIA H200") == 989.4
    assert peak_tflops("NVIDIA L40S") == 362.0
    assert peak_tflops("NVIDIA L4") == 121.0
    assert peak_tflops("NVIDIA A10G") == 70.0
    assert peak_tflops("NVIDIA H100 PCIe") == 756.0
    assert peak_tflops("Some Other Chip") is None


def test_attention_width_is_heads_times_their_size() -> None:
    shape = SimpleNamespace(num_hidden_layers=3, num_attention_heads=4, hidden_size=32)
    assert attention_shape(shape) == (3, 32)
    shape.head_dim = 16
    assert attention_shape(shape) == (3, 64)


def failure(rank: int, when: float, message: str, *, attempt: int = 1, noise: bool | None = None) -> dict[str, Any]:
    heard = bool(NOISE.search(message)) if noise is None else noise
    return {
        "rank": rank,
        "node": f"n{rank}",
        "time": when,
        "type": "RuntimeError",
        "message": message,
        "attempt": attempt,
        "noise": heard,
    }


def test_the_rank_that_raised_is_named_not_those_that_lost_touch_with_it() -> None:
    echo = failure(0, 1.0, "[/pytorch/gloo/transport/tcp/pair.cc] Connection closed by peer [10.0.0.3]")
    cause = failure(1, 2.0, "index out of range")
    later = failure(2, 3.0, "another trouble")
    assert first_cause([echo, later, cause], None)["rank"] == 1


def test_a_vanished_process_is_named_before_the_ranks_that_lost_touch() -> None:
    class RayActorError(Exception):
        pass

    failed = RuntimeError("x")
    failed.worker_failures = {1: RayActorError("The actor died unexpectedly\nmore")}  # type: ignore[attr-defined]
    found = first_cause([failure(0, 1.0, "Connection closed by peer")], failed)
    assert (found["rank"], found["message"]) == (1, "The actor died unexpectedly")


def test_of_several_attempts_the_last_one_explains_the_end() -> None:
    assert first_cause([failure(0, 1.0, "old", attempt=1), failure(3, 9.0, "new", attempt=2)], None)["rank"] == 3


def test_missing_ranks_are_named_by_what_was_last_heard() -> None:
    assert who_is_behind({0: (7, "step", 0.0)}, 2) == "ranks missing: [1] (never reported)"
    text = who_is_behind({0: (7, "step", 0.0), 1: (6, "data", 0.0), 2: (7, "step", 0.0)}, 3)
    assert text == "ranks missing: [1]: rank 1 at step 6 (data), while others wait at step 7"


def test_a_rank_without_progress_reports_and_ends_itself_in_bounded_time() -> None:
    sink, ended = LocalSink(quiet=True), []
    evidence = transport.Evidence(rank=0, node="n0", local_rank=1, world_size=2)
    watch = Watch(sink, evidence, rank=0, node="n0", world_size=2, limit_s=0.3, period_s=0.05, end=ended.append)
    watch.beat(4, "step")
    began = time.monotonic()
    while not ended and time.monotonic() - began < 5:
        time.sleep(0.02)
    watch.stop()
    assert ended == [70]
    (record,) = sink.held.failures
    assert "rank 0 made no progress for 0 s in step 4 (step), at test_a_rank_without_progress" in record["message"]
    assert "ranks missing: [1]" in record["message"]
    assert not record["noise"]
    assert [event["event"] for event in sink.history] == ["transport"]


def test_a_rank_that_makes_progress_is_left_alone() -> None:
    sink, ended = LocalSink(quiet=True), []
    evidence = transport.Evidence(rank=0, node="n0", local_rank=1, world_size=1)
    watch = Watch(sink, evidence, rank=0, node="n0", world_size=1, limit_s=0.4, period_s=0.02, end=ended.append)
    for step in range(12):
        watch.beat(step, "step")
        time.sleep(0.05)
    watch.stop()
    assert ended == []
    assert not sink.held.failures
