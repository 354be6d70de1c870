"""Any causal language model of transformers: blocks found, ties kept, the loss that the model itself would give."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fsdp_job import weights
from fsdp_job.architecture import check_architecture
from fsdp_job.config import JobConfig
from fsdp_job.errors import ModelError
from fsdp_job.model import CausalLMLoss, build, count_parameters, find_blocks, load_config
from tests.training.job_ranks import call_on_ranks, run_job, write_inputs

SMALL = {"vocab_size": 96, "max_position_embeddings": 64}
WIDE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen2": {**WIDE, "intermediate_size": 48, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3": {**WIDE, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 16},
    "llama": {**WIDE, "intermediate_size": 48, "num_key_value_heads": 2, "tie_word_embeddings": False},
    "mistral": {**WIDE, "intermediate_size": 48, "num_key_value_heads": 2, "sliding_window": 8},
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64},
    "gpt_neox": {**WIDE, "intermediate_size": 48},
    "phi": {**WIDE, "intermediate_size": 48},
    "gemma2": {
        **WIDE, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8, "final_logit_softcapping": 2.0,
        "sliding_window": 8,
    },
    "opt": {**WIDE, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "falcon": {**WIDE, "new_decoder_architecture": False, "alibi": False},
    "granite": {**WIDE, "intermediate_size": 48, "num_key_value_heads": 2, "logits_scaling": 4.0},
    "cohere": {**WIDE, "intermediate_size": 48, "num_key_value_heads": 2, "logit_scale": 0.25},
}  # fmt: skip


def config_of(folder: Path, name: str) -> JobConfig:
    values = {"model_type": name, **SMALL, **ARCHITECTURES[name], "pad_token_id": 0}
    for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout", "attention_dropout", "hidden_dropout"):
        values[key] = 0.0
    path = folder / f"{name}.json"
    path.write_text(json.dumps(values))
    return JobConfig(model_config=str(path), seq_len=12, seed=3)


def filled(cfg: JobConfig) -> tuple[CausalLMLoss, Any]:
    built = build(cfg)
    root = CausalLMLoss(built.model, chunk_logits=5 * 96)
    weights.materialize(root, built, torch.device("cpu"))
    weights.initialize(built, torch.device("cpu"), seed=3)
    return root, built


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_blocks_are_found_and_the_loss_is_the_models_own(tmp_path: Path, name: str) -> None:
    root, built = filled(config_of(tmp_path, name))
    assert len(built.blocks) == 3
    torch.manual_seed(0)
    tokens = torch.randint(0, 96, (2, 13))
    positions = torch.cat([torch.arange(7), torch.arange(5)])[None].expand(2, -1)  # two documents
    inputs, labels = tokens[:, :-1], tokens[:, 1:].clone()
    labels[:, 6] = -100
    logits = built.model(input_ids=inputs, position_ids=positions, use_cache=False).logits
    expected = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
    scaled, total = root(inputs, labels, positions)
    torch.testing.assert_close(total, expected.detach(), rtol=1e-5, atol=1e-4)
    scaled.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in built.model.parameters())
    flat = [p for p in built.model.parameters() if p.ndim > 1]
    assert all(p.std() > 0 for p in flat), "a matrix was left without initial values"


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "gemma2", "opt"])
def test_weights_are_drawn_as_the_architecture_says(tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM

    _, built = filled(config_of(tmp_path, name))
    usual = AutoModelForCausalLM.from_config(built.model.config)
    for (label, ours), (_, theirs) in zip(built.model.named_parameters(), usual.named_parameters(), strict=True):
        assert ours.shape == theirs.shape, label
        assert ours.std(correction=0).item() == pytest.approx(theirs.std(correction=0).item(), rel=0.35, abs=1e-6), (
            label
        )
        assert ours.mean().item() == pytest.approx(theirs.mean().item(), abs=0.01), label


@pytest.mark.parametrize(("name", "tied"), [("qwen2", True), ("llama", False), ("gpt2", True)])
def test_ties_survive_meta_sharding_and_training(tmp_path: Path, name: str, tied: bool) -> None:
    answers = call_on_ranks(_train_and_look_at_ties, world=2, args=(config_of(tmp_path, name),))
    assert answers == [(tied, tied, True)] * 2


def _train_and_look_at_ties(cfg: JobConfig) -> tuple[bool, bool, bool]:
    from fsdp_job import optim, sharding
    from fsdp_job.ranks import from_environment
    from fsdp_job.step import Stepper

    ranks = from_environment()
    built = build(cfg)
    root = CausalLMLoss(built.model)
    mesh = sharding.make_mesh("full", ranks)
    sharding.apply(root, built.blocks, mesh, checkpointing="none", compiled=False, bf16=False)
    weights.materialize(root, built, ranks.device)
    weights.initialize(built, ranks.device, seed=1)
    head, embedding = built.model.get_output_embeddings(), built.model.get_input_embeddings()  # type: ignore[operator]
    before = head.weight is embedding.weight
    optimizer = optim.ShardedAdamW(list(built.model.parameters()), cfg, ranks.device)
    stepper = Stepper(root, optimizer, mesh, "full", ranks, 1.0)
    torch.manual_seed(ranks.rank)
    tokens = torch.randint(0, 96, (2, 13))
    positions = torch.arange(12)[None].expand(2, -1)
    batch = {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:], "position_ids": positions}
    losses = [stepper.train([batch], 1e-2).read()[0] for _ in range(3)]
    same = bool((head.weight.full_tensor() == embedding.weight.full_tensor()).all())
    return before, same, losses[-1] < losses[0]


def test_tied_weights_count_once_and_untied_input_embeddings_are_no_matrix_product(tmp_path: Path) -> None:
    qwen, llama = (build(config_of(tmp_path, name)).model for name in ("qwen2", "llama"))
    total, products = count_parameters(qwen)
    assert total == products == sum(p.numel() for p in qwen.parameters())
    total, products = count_parameters(llama)
    assert total - products == 96 * 32


def test_a_model_without_telling_blocks_is_an_error_that_shows_what_there_is(tmp_path: Path) -> None:
    model = build(config_of(tmp_path, "llama")).model
    model.config.num_hidden_layers = 5  # type: ignore[union-attr, assignment]
    with pytest.raises(ModelError, match=r"num_hidden_layers=5, module lists are: model\.layers \(3\)"):
        find_blocks(model)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ('{"hidden_size": 4}', "model_type"),
        ('{"model_type": "no-such-model"}', "no-such-model"),
        ('{"model_type": "t5"}', "t5"),
    ],
)
def test_a_wrong_model_config_is_one_clear_error(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ModelError, match=message):
        build(JobConfig(model_config=str(path)))


def test_a_missing_model_config_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no such file.*nowhere\.json"):
        build(JobConfig(model_config=str(tmp_path / "nowhere.json")))


@pytest.mark.parametrize("name", ["gpt2", "opt", "biogpt"])
def test_more_tokens_than_learned_positions_are_refused_before_the_data_is_read(tmp_path: Path, name: str) -> None:
    extra = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    values = {"model_type": name, **SMALL, **ARCHITECTURES.get(name, extra)}
    path = tmp_path / "model.json"
    path.write_text(json.dumps(values))
    assert load_config(JobConfig(model_config=str(path), seq_len=64)).model_type == name
    message = rf"--seq_len must be at most 64 for --model-config .*model\.json, got 65: '{name}' has .*; give --seq_len 64 or less"
    with pytest.raises(ModelError, match=message) as caught:
        load_config(JobConfig(model_config=str(path), seq_len=65))
    assert (caught.value.exit_code, caught.value.retryable) == (2, False)
    (tmp_path / "model").mkdir()
    path.rename(tmp_path / "model" / "config.json")
    with pytest.raises(ModelError, match=r"at most 64 for --model-id .*model, got 65"):
        load_config(JobConfig(model_id=str(tmp_path / "model"), seq_len=65))


@pytest.mark.parametrize("name", ["qwen2", "llama", "gpt_neox", "phi", "gemma2", "falcon"])
def test_a_model_that_computes_its_positions_may_go_beyond_those_it_was_trained_with(tmp_path: Path, name: str) -> None:
    cfg = dataclasses.replace(config_of(tmp_path, name), seq_len=65)
    assert load_config(cfg).max_position_embeddings == 64


def test_a_run_with_too_few_learned_positions_takes_no_step_and_is_not_tried_again(tmp_path: Path) -> None:
    flags = write_inputs(tmp_path)
    values = {"model_type": "gpt2", "vocab_size": 260, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
    Path(flags["model_config"]).write_text(json.dumps(values))
    with pytest.raises(ModelError, match="--seq_len must be at most 16"):  # from the driver, which prepares the data
        run_job(flags, world=1, name="a")
    assert not Path(flags["storage_path"]).exists(), "refused before the data is packed"


NO_MODELS = {"mamba": "that sdpa supports", "rwkv": "that sdpa supports", "t5": "no causal language model", "vit": "no causal language model"}


@pytest.mark.parametrize("kind", NO_MODELS)
@pytest.mark.parametrize("flag", ["--model-config", "--model-id"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_kind_of_model_that_cannot_be_trained_is_refused_before_anything_starts(
    tmp_path: Path, repo: Path, kind: str, flag: str, where: str
) -> None:
    """By the flag check that ``train``, ``submit`` and ``bench`` make, in a moment and with what to do."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": kind}))
    words = [*(["--elsewhere"] if where == "elsewhere" else []), flag, "model"]
    code = "import sys; from fsdp_job.check import main; code = main(sys.argv[1:]); print('transformers' in sys.modules); sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(repo / "job")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "False\n")  # importing transformers takes seconds
    assert f"{flag} model: model type '{kind}'" in done.stderr and NO_MODELS[kind] in done.stderr
    assert "such as llama, qwen2" in done.stderr and done.stderr.count("\n") == 1


def test_a_model_type_that_only_the_clusters_transformers_may_know_is_left_to_the_job() -> None:
    check_architecture("--model-id x", {"model_type": "made-tomorrow"}, elsewhere=True)
    with pytest.raises(ModelError, match="made-tomorrow"):
        check_architecture("--model-id x", {"model_type": "made-tomorrow"})


def test_what_the_check_reads_is_what_transformers_says_of_every_model_type() -> None:
    """It reads transformers' files as text; a release that is laid out in another way must not make it refuse good models."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    refused = set()
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            check_architecture("--model-id x", {"model_type": kind})
        except ModelError:
            refused.add(kind)
    for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        if kind in refused:
            found = getattr(transformers, name)
            assert not found._supports_sdpa and not getattr(found, "_supports_attention_backend", False), kind
    assert {"mamba", "rwkv", "gptj"} <= refused and not refused & set(ARCHITECTURES)


def test_without_transformers_the_check_leaves_the_model_to_the_job(tmp_path: Path, repo: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    done = subprocess.run(
        [sys.executable, "-S", "-m", "fsdp_job.check", "--model-config", str(tmp_path)], cwd=repo / "job", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", NO_MODELS)
def test_where_only_the_worker_can_tell_its_message_says_which_models_work(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ModelError, match=rf"--model-config .*'{kind}'.*such as llama, qwen2"):
        build(JobConfig(model_config=str(tmp_path)))
