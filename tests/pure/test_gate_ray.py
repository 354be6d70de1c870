"""Under Ray every process of a class that uses NCCL must show its network, whatever the class is called."""

from __future__ import annotations

import pytest

from eks_ray_train.gate import LogParser, RunJudge, Verdict, judge

PROVIDER = "NET/OFI Selected provider is efa, fabric is efa (found 1 nics)"
NETWORK = "Using network Libfabric"


def worker(name: str, node: int, *, pid: int = 0, address: bool = True, first: int = 0, second: int = 1) -> list[str]:
    """What a worker on EFA prints."""
    pid = pid or 100 * node + 1
    head = f"({name} pid={pid}, ip=10.0.0.{node}) " if address else f"({name} pid={pid}) "
    head += f"gpu-{node}:{pid}:{pid + 1} [0] NCCL INFO "
    channel = f"Channel 00/0 : {first}[0] -> {second}[0] [send] via NET/Libfabric/0"
    return [head + PROVIDER, head + NETWORK, head + channel]


def verdict(lines: list[str], *, nodes: int | None = 2) -> Verdict:
    run = RunJudge(nodes_expected=nodes, expected="efa")
    for line in lines:
        run.feed_line(line)
    return run.verdict("SUCCEEDED")


NAMES = ["RayTrainWorker", "WorkerDict", "RayWorkerWrapper", "Trainer", "my_task", "Worker(rank=0)"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nodes", [None, 2, 3])
def test_a_node_that_prints_only_losses_does_not_pass(name: str, nodes: int | None) -> None:
    other = name.replace("0", "1")
    answer = verdict([*worker(name, 1), f"({other} pid=201, ip=10.0.0.2) step 1 loss 3.2"], nodes=nodes)
    assert answer.outcome == "fail"
    assert "10.0.0.2" in " ".join(answer.reasons)


@pytest.mark.parametrize("name", NAMES)
def test_a_third_node_that_prints_only_losses_does_not_pass(name: str) -> None:
    lines = [*worker(name, 1), *worker(name, 2, first=1, second=0)]
    assert verdict(lines, nodes=None).outcome == "pass"
    answer = verdict([*lines, f"\x1b[36m({name} pid=301, ip=10.0.0.3)\x1b[0m step 1"], nodes=None)
    assert answer.outcome == "fail"
    assert "10.0.0.3" in " ".join(answer.reasons)


@pytest.mark.parametrize("name", ["RayTrainWorker", "WorkerDict"])
def test_a_silent_worker_on_the_driver_s_node_does_not_pass(name: str) -> None:
    lines = [*worker(name, 1), *worker(name, 2, first=1, second=0)]
    answer = verdict([*lines, f"({name} pid=5) step 1"])
    assert answer.outcome == "fail"
    assert "process 5 on the driver's node" in " ".join(answer.reasons)
    beside = [*worker(name, 1, address=False), *worker(name, 2, first=1, second=0), f"({name} pid=101) step 1"]
    assert verdict(beside).outcome == "pass"


def test_a_node_of_another_class_does_not_stand_for_the_missing_end() -> None:
    answer = verdict([*worker("Rank0", 1), "(Follower pid=201, ip=10.0.0.2) step 1"])
    assert answer.outcome == "fail"
    assert "evidence from 1 of 2 nodes" in " ".join(answer.reasons)


HELPERS = [
    "(TrainController pid=7) Started training",
    "(TrainController pid=7, ip=10.0.0.9) Started training",
    "(SplitCoordinator pid=8, ip=10.0.0.9) Registered dataset",
    "(MapWorker(MapBatches(tokenize)) pid=9, ip=10.0.0.9) 500 rows",
    "(MapBatches(f)->Write pid=9, ip=10.0.0.9) 500 rows",
    "(raylet, ip=10.0.0.9) spilled 5 MiB",
    "(pid=77, ip=10.0.0.9) imported",
]


@pytest.mark.parametrize("helper", HELPERS)
@pytest.mark.parametrize("name", ["RayTrainWorker", "WorkerDict"])
def test_helpers_have_no_network_to_show(helper: str, name: str) -> None:
    lines = [*worker(name, 1), helper, *worker(name, 2, first=1, second=0)]
    answer = verdict(lines, nodes=None)
    assert (answer.outcome, answer.nodes_seen, answer.reasons) == ("pass", 2, ())


def test_an_actor_s_own_name_with_brackets_is_a_known_prefix() -> None:
    lines = [*worker("Worker(rank=0)", 1), *worker("Worker(rank=1)", 2, first=1, second=0)]
    assert verdict(lines).outcome == "pass"


def test_a_worker_whose_child_process_uses_nccl_is_not_silent() -> None:
    lines = [*worker("WorkerDict", 1), *worker("WorkerDict", 2, first=1, second=0)]
    lines = [line.replace("pid=201", "pid=7") for line in lines]
    assert verdict([*lines, "(WorkerDict pid=7, ip=10.0.0.2) step 1"]).outcome == "pass"


def test_lines_and_chunks_find_the_same_speakers() -> None:
    lines = [*worker("WorkerDict", 1), "(WorkerDict pid=201, ip=10.0.0.2) step 1"] * 2
    by_chunk = LogParser()
    by_chunk.feed_chunk("\n".join(lines).encode())
    answer = judge(by_chunk.evidence(), job_status="SUCCEEDED", nodes_expected=2, expected="efa")
    assert answer == verdict(lines)
