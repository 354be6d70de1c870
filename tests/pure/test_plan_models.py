"""Model shapes: parameter counts equal the published ones and transformers' own, bad configs are named errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eks_ray_train.errors import UsageError
from eks_ray_train.plan.known_models import PUBLISHED_PARAMETERS, find_model, known_models
from eks_ray_train.plan.model_shapes import shape_from_config

ARCHITECTURES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt2", "gpt_neox", "opt", "olmo2",
    "starcoder2", "mixtral", "qwen3_moe", "qwen2_moe", "granite", "smollm3", "cohere", "stablelm", "gptj", "gpt_bigcode",
)  # fmt: skip


@pytest.mark.parametrize("name", known_models())
def test_shipped_shape_has_the_published_number_of_parameters(name: str) -> None:
    assert find_model(name).parameters == PUBLISHED_PARAMETERS[name]


def test_a_model_is_found_by_the_last_part_of_its_id_in_any_case() -> None:
    assert find_model("qwen2.5-1.5b") == find_model("Qwen/Qwen2.5-1.5B")


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_parameters_equal_those_of_the_model_that_transformers_builds(kind: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind)
    for key in ("num_hidden_layers", "n_layer"):
        if key in config.to_dict():
            setattr(config, key, 2)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:2]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert shape_from_config(config.to_dict(), name=kind).parameters == sum(p.numel() for p in model.parameters())


def test_any_config_json_is_accepted_by_file_and_by_folder(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    by_file, by_folder = find_model(str(tmp_path / "config.json")), find_model(str(tmp_path))
    assert by_file.parameters == by_folder.parameters == 2 * 256 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64


def test_a_model_type_that_is_not_known_is_counted_like_llama_and_says_so() -> None:
    config = {
        "model_type": "newthing",
        "vocab_size": 256,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    shape = shape_from_config(config, name="x")
    assert "newthing" in shape.note
    assert shape.gated


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "hidden_size is missing"),
        (
            {"hidden_size": 64, "num_hidden_layers": 0, "num_attention_heads": 4, "vocab_size": 8},
            "num_hidden_layers must be",
        ),
        (
            {"hidden_size": "64", "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 8},
            "hidden_size must be",
        ),
        ({"hidden_size": 65, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 8}, "no multiple"),
        (
            {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": 8,
                "intermediate_size": -1,
            },
            "intermediate_size",
        ),
    ],
)
def test_an_unusable_config_is_an_error_that_names_the_key(config: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        shape_from_config(config, name="x")


@pytest.mark.parametrize("text", ["Qwen/Qwen2.5-1.6B", "nothing-like-it", "/nowhere/config.json"])
def test_a_model_that_is_not_shipped_is_an_error_with_the_way_out(text: str) -> None:
    with pytest.raises(UsageError, match=r"config\.json"):
        find_model(text)


@pytest.mark.parametrize("content", ["[]", "{", "\x00"])
def test_a_broken_config_file_is_a_usage_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(UsageError):
        find_model(str(path))


def test_flops_of_a_token_agree_with_the_known_figure_of_qwen_1_5b() -> None:
    # 6 × 1.5437e9 matrix parameters (tied head once) and 6·28·1536·2048 of causal attention: 9.79e9.
    assert find_model("qwen2.5-1.5b").flops_per_token(2048) == pytest.approx(9.79e9, rel=0.002)
