"""Memory, traffic, time and money: against figures that were measured, and against hand counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eks_ray_train.errors import UsageError
from eks_ray_train.instances import CATALOGUE
from eks_ray_train.plan import (
    Cluster,
    Run,
    advise,
    cheapest,
    cluster_of,
    compare,
    fastest,
    find_model,
    make_chip,
    predict,
)
from eks_ray_train.plan.memory import activation_elements, peak_memory
from eks_ray_train.plan.report import warnings
from eks_ray_train.plan.traffic import step_traffic

QWEN = find_model("Qwen/Qwen2.5-1.5B")
G6 = CATALOGUE["g6.12xlarge"]


def two_nodes_of_four(**changes: object) -> Cluster:
    chip = make_chip("H200 SXM 141GB", 989, 4800)
    cluster = Cluster(
        name="2 × 4", chip=chip, gpus_per_node=4, nodes=2, gpu_memory_gib=140, intra_gb_s=300, inter_gb_s=5
    )
    return replace(cluster, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("transport", "low", "high"), [("efa", 0.0, 2.0), ("tcp", 2.0, 4.0)])
def test_two_g6_12xlarge_at_the_samples_settings_take_what_the_sample_published(
    transport: str, low: float, high: float
) -> None:
    # Qwen2.5-1.5B, 1 × 128, pure bf16, full sharding: 0.5173 steps/s over EFA and 0.2513 over TCP, waits included.
    run = Run(shape=QWEN, seq_len=128, batch_size=1, sharding="full", precision="pure-bf16")
    seconds = predict(run, cluster_of(G6, 2, transport)).time.total  # type: ignore[arg-type]
    assert low < seconds <= high


@pytest.mark.parametrize(
    ("precision", "backend", "full", "hybrid"),
    [
        # Counted on the interface between two nodes of four ranks, in units of 4 bytes a parameter sent a node and step.
        ("fp32", "gloo", (3.33, 3.51), 1.00),
        ("bf16", "gloo", (2.63, 2.63), 1.00),
        ("pure-bf16", "gloo", (1.76, 1.76), 0.50),
    ],
)
def test_bytes_between_nodes_agree_with_those_counted(
    precision: str, backend: str, full: tuple[float, float], hybrid: float
) -> None:
    # A model without a root to speak of: the counted model's blocks were gathered twice.
    shape = replace(QWEN, vocab=1)
    unit = 4.0 * shape.parameters
    run = Run(shape=shape, precision=precision, backend=backend, sharding="full")  # type: ignore[arg-type]
    cluster = two_nodes_of_four(gpu_memory_gib=22)
    sent = step_traffic(run, cluster).node_bytes / unit
    assert full[0] * 0.95 <= sent <= full[1] * 1.05
    assert step_traffic(replace(run, sharding="hybrid"), cluster).node_bytes / unit == pytest.approx(hybrid, rel=0.05)


def test_one_node_sends_nothing_to_others() -> None:
    assert step_traffic(Run(shape=QWEN), two_nodes_of_four(nodes=1)).node_bytes == 0


def test_one_gpu_sends_nothing_at_all() -> None:
    assert step_traffic(Run(shape=QWEN), two_nodes_of_four(nodes=1, gpus_per_node=1)).gpu_bytes == 0


def test_accumulation_reduces_gradients_across_nodes_once_a_step() -> None:
    cluster = two_nodes_of_four()
    for sharding, kind in (("full", "reduce-scatter"), ("hybrid", "all-reduce")):
        once = step_traffic(Run(shape=QWEN, sharding=sharding), cluster).by_kind()  # type: ignore[arg-type]
        four = step_traffic(Run(shape=QWEN, sharding=sharding, accumulate=4), cluster).by_kind()  # type: ignore[arg-type]
        assert four[kind] == once[kind] > 0


def test_accumulation_across_nodes_keeps_whole_gradients_in_memory() -> None:
    cluster = two_nodes_of_four()
    run = Run(shape=QWEN, sharding="full", batch_size=8, seq_len=2048)
    more = peak_memory(replace(run, accumulate=2), cluster).peak_gib - peak_memory(run, cluster).peak_gib
    assert more == pytest.approx(QWEN.parameters * 4 / 2**30, rel=0.05)


def test_activations_without_checkpointing_are_what_was_measured_on_an_h200() -> None:
    # 16 against 8 sequences of 2048 tokens took 31.55 GiB more: 73.9 kB a token and block.
    kept, _ = activation_elements(Run(shape=QWEN))
    assert kept * 2 == pytest.approx(31.55 * 2**30 / (8 * 2048 * 28), rel=0.02)


@pytest.mark.parametrize(
    ("model", "batch", "seq", "precision", "seconds", "gib"),
    [
        # Two H200s of one host, weights kept gathered; fp8 by torchao. The first three with the job as it is, the others with an
        # earlier one (bench/speed.md).
        ("qwen2.5-1.5b", 8, 2048, "bf16", 0.321, 46.1),
        ("qwen2.5-1.5b", 1, 128, "bf16", 0.0356, 12.9),
        ("qwen2.5-0.5b", 4, 2048, "bf16", 0.0747, 13.5),
        ("qwen2.5-1.5b", 16, 2048, "bf16", 0.630, 78.6),
        ("qwen2.5-1.5b", 24, 2048, "bf16", 0.928, 110.2),
        ("qwen2.5-1.5b", 16, 2048, "fp8", 0.538, 58.1),
        ("qwen2.5-7b", 6, 2048, "bf16", 1.032, 113.8),
        ("qwen2.5-7b", 6, 2048, "fp8", 0.766, 97.0),
    ],
)
def test_the_model_reproduces_the_measurements_that_it_was_fitted_to(
    model: str, batch: int, seq: int, precision: str, seconds: float, gib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "keeps_gathered", lambda *_: True)
    cluster = two_nodes_of_four(nodes=1, gpus_per_node=2, intra_gb_s=270)
    found = predict(Run(shape=find_model(model), batch_size=batch, seq_len=seq, precision=precision), cluster)  # type: ignore[arg-type]
    assert found.time.total == pytest.approx(seconds, rel=0.08)
    assert found.memory.peak_gib == pytest.approx(gib, rel=0.07)


def test_checkpointing_lowers_memory_and_costs_time_in_this_order() -> None:
    cluster = two_nodes_of_four(nodes=1, gpus_per_node=2)
    runs = [Run(shape=QWEN, batch_size=8, seq_len=2048, checkpointing=how) for how in ("none", "selective", "full")]  # type: ignore[arg-type]
    predictions = [predict(run, cluster) for run in runs]
    memory, time = [p.memory.peak_gib for p in predictions], [p.time.total for p in predictions]
    assert memory == sorted(memory, reverse=True)
    assert time == sorted(time)
    assert len(set(memory)) == len(set(time)) == 3


def test_parts_of_the_memory_add_up_to_what_is_compared_with_the_gpu() -> None:
    memory = peak_memory(Run(shape=QWEN, batch_size=8, seq_len=2048), two_nodes_of_four())
    assert memory.needed_gib == pytest.approx(memory.peak_gib + memory.margin + memory.outside)


def test_auto_takes_hybrid_where_a_node_holds_the_state_and_full_where_not() -> None:
    cluster = cluster_of(G6, 2)
    assert cluster.resolve(Run(shape=QWEN)) == "hybrid"
    assert cluster.resolve(Run(shape=find_model("qwen2.5-7b"))) == "full"
    assert replace(cluster, nodes=1).resolve(Run(shape=QWEN)) == "full"


@pytest.mark.parametrize("model", ["qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "llama-3.1-70b"])
@pytest.mark.parametrize("name", ["g6.12xlarge", "g6e.48xlarge", "p4d.24xlarge", "p5en.48xlarge"])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_auto_is_the_same_choice_as_the_jobs(model: str, name: str, nodes: int) -> None:
    torch = pytest.importorskip("torch")
    from fsdp_job.ranks import Ranks
    from fsdp_job.sharding import choose_sharding

    instance, shape = CATALOGUE[name], find_model(model)
    ranks = Ranks(
        rank=0, world_size=nodes * instance.gpus, local_rank=0, local_world_size=instance.gpus, node_rank=0, node="a",
        device=torch.device("cpu"),
    )  # fmt: skip
    memory = instance.gpu_memory_mib * 2**20 * instance.gpus
    job = choose_sharding("auto", parameters=shape.parameters, ranks=ranks, node_memory_bytes=memory)
    assert cluster_of(instance, nodes).resolve(Run(shape=shape)) == job


def test_the_loss_holds_as_many_logits_as_the_jobs() -> None:
    pytest.importorskip("torch")
    from eks_ray_train.plan.memory import CHUNK_LOGITS
    from fsdp_job.loss import CHUNK_LOGITS as JOB

    assert CHUNK_LOGITS == JOB


def test_a_step_is_recorded_and_products_are_in_fp8_where_the_job_does_so() -> None:
    pytest.importorskip("torch")
    from eks_ray_train.plan import run as plan_run
    from eks_ray_train.plan.throughput import NARROW
    from fsdp_job import fuse, precision, step_graph

    assert (plan_run.RECORDED_FLOPS, plan_run.FP8_ELEMENTS) == (step_graph.MOST_FLOPS, precision.FP8_ELEMENTS)
    assert NARROW == fuse.NARROW
    for batch, seq in ((1, 128), (2, 2048), (4, 2048), (8, 2048)):
        run = Run(shape=QWEN, batch_size=batch, seq_len=seq)
        job = step_graph.host_bound(parameters=QWEN.matmul_parameters, blocks=QWEN.layers, tokens=batch * seq)
        assert run.recorded == job
    assert Run(shape=QWEN, seq_len=128).recorded and not Run(shape=QWEN, seq_len=2048, batch_size=8).recorded


def test_a_recorded_step_does_not_wait_for_the_host() -> None:
    found = predict(Run(shape=QWEN, seq_len=128), two_nodes_of_four(nodes=1, gpus_per_node=2, intra_gb_s=270))
    assert found.time.host == 0 and found.time.total < 0.05


def test_weights_are_kept_gathered_where_the_job_keeps_them() -> None:
    pytest.importorskip("torch")
    from fsdp_job.sharding import keeps_gathered

    chosen = set()
    for model in ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b"):
        for name in ("g6.12xlarge", "p4d.24xlarge", "p5en.48xlarge"):
            cluster, run = cluster_of(CATALOGUE[name], 1), Run(shape=find_model(model))
            job = keeps_gathered(
                block_parameters=run.shape.layers * run.shape.block_parameters, compute_bytes=run.bytes.compute,
                gpu_memory_bytes=CATALOGUE[name].gpu_memory_mib * 2**20,
            )  # fmt: skip
            assert cluster.keeps_gathered(run) == job
            chosen.add(job)
    assert chosen == {True, False}


def test_keeping_weights_gathered_takes_the_second_gather_away() -> None:
    small, large = two_nodes_of_four(), two_nodes_of_four(gpu_memory_gib=22)
    run = Run(shape=QWEN, sharding="full")
    assert small.keeps_gathered(run) and not large.keeps_gathered(run)
    more = step_traffic(run, large).by_kind()["all-gather"] - step_traffic(run, small).by_kind()["all-gather"]
    assert more == pytest.approx(QWEN.layers * QWEN.block_parameters * 2 * 7 / 8)


def test_flops_of_a_token_are_the_jobs() -> None:
    pytest.importorskip("torch")
    from fsdp_job.metrics import flops_per_token

    job = flops_per_token(
        parameters=QWEN.parameters, layers=QWEN.layers, attention_width=QWEN.query_width, seq_len=2048
    )
    assert QWEN.flops_per_token(2048) == pytest.approx(job, rel=1e-3)


def test_hybrid_helps_where_the_network_is_slow() -> None:
    cluster = cluster_of(G6, 2, "tcp")
    full = predict(Run(shape=QWEN, sharding="full"), cluster)
    assert full.network_is_limit
    changes = {advice.change: advice.gain for advice in advise(full)}
    assert changes["--sharding hybrid"] > 1.05
    assert list(changes.values()) == sorted(changes.values(), reverse=True)


def test_no_advice_where_the_network_is_not_the_limit() -> None:
    big = Run(shape=QWEN, batch_size=8, seq_len=2048)
    prediction = predict(big, cluster_of(CATALOGUE["p5.48xlarge"], 1))
    assert not prediction.network_is_limit
    assert advise(prediction) == []


def test_advice_names_only_what_fits_memory() -> None:
    full = predict(Run(shape=find_model("qwen2.5-3b"), sharding="full", seq_len=2048), cluster_of(G6, 2, "tcp"))
    assert full.network_is_limit
    assert all(advice.prediction.fits for advice in advise(full))


def test_fp8_is_faster_and_smaller_and_never_fits_a_chip_without_it() -> None:
    p5, p4 = cluster_of(CATALOGUE["p5en.48xlarge"], 1), cluster_of(CATALOGUE["p4d.24xlarge"], 1)
    run = Run(shape=find_model("qwen2.5-7b"), seq_len=2048, batch_size=4)
    fast, plain = predict(replace(run, precision="fp8"), p5), predict(run, p5)
    assert fast.time.total < plain.time.total and fast.memory.peak_gib < plain.memory.peak_gib
    found = compare(replace(run, precision="fp8"), [p4, p5])
    assert not found[0].fits
    assert any("no fp8" in line for line in warnings(found[0], []))
    assert fastest(found) is found[1]


def test_a_small_batch_is_said_to_wait_for_the_host() -> None:
    cluster = cluster_of(CATALOGUE["p6-b200.48xlarge"], 1)
    small = predict(Run(shape=QWEN, seq_len=2048, batch_size=4), cluster)
    large = predict(Run(shape=QWEN, seq_len=2048, batch_size=16), cluster)
    assert small.host_is_limit and not large.host_is_limit
    assert any("waits for the host" in line and "--batch-size" in line for line in warnings(small, []))


def test_money_is_hours_times_rate_and_tokens_decide_the_hours() -> None:
    cluster = cluster_of(G6, 2)
    one, two = (predict(Run(shape=QWEN, seq_len=2048), cluster, tokens=n) for n in (1e9, 2e9))
    assert one.cost.usd is not None and two.cost.usd == pytest.approx(2 * one.cost.usd)
    assert one.cost.usd_per_hour == pytest.approx(9.2032 + 0.10 + 0.045 + 0.2016 + 0.044, abs=1e-3)
    assert one.cost.hours == pytest.approx(1e9 / one.tokens_per_s / 3600)


def test_a_type_without_a_price_has_no_cost_and_is_never_the_cheapest() -> None:
    clusters = [cluster_of(CATALOGUE["p5e.48xlarge"], 1), cluster_of(CATALOGUE["p5.48xlarge"], 1)]
    found = compare(Run(shape=QWEN, seq_len=2048, batch_size=8), clusters, tokens=1e9)
    assert found[0].cost.usd is None
    assert cheapest(found) is found[1]
    assert fastest(found) is not None


def test_a_model_too_large_does_not_fit_and_is_never_the_fastest() -> None:
    found = compare(Run(shape=find_model("llama-3.1-70b"), seq_len=2048), [cluster_of(G6, 2)])
    assert not found[0].fits
    assert fastest(found) is None


def test_tcp_has_one_network_card_and_efa_all() -> None:
    p5 = CATALOGUE["p5.48xlarge"]
    assert cluster_of(p5, 2, "efa").inter_gb_s > 10 * cluster_of(p5, 2, "tcp").inter_gb_s


@pytest.mark.parametrize("changes", [{"seq_len": 0}, {"batch_size": 0}, {"accumulate": -1}])
def test_a_number_out_of_range_is_a_usage_error_that_names_the_flag(changes: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(changes)).replace("_", "-")):
        Run(shape=QWEN, **changes)  # type: ignore[arg-type]


def test_more_tokens_a_gpu_never_take_less_time_or_memory() -> None:
    cluster = cluster_of(CATALOGUE["p5en.48xlarge"], 1)
    found = [predict(Run(shape=QWEN, batch_size=n, seq_len=2048), cluster) for n in (1, 2, 4, 8, 16)]
    times, needed = [round(p.time.total, 9) for p in found], [round(p.memory.needed_gib, 9) for p in found]
    assert times == sorted(times) and times[0] < times[-1]
    assert needed == sorted(needed) and needed[0] < needed[-1]


def test_plan_modules_use_only_the_standard_library_and_the_catalogue(repo: Path) -> None:
    import ast
    import sys

    for path in (repo / "constructs/eks_ray_train/plan").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                assert top in sys.stdlib_module_names or name in ("eks_ray_train.errors", "eks_ray_train.instances"), (
                    path,
                    name,
                )
