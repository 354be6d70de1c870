"""Dimensions of common models, so that ``plan`` answers with no network (figures of their published config.json)."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

from eks_ray_train.errors import UsageError

from .model_shapes import ModelShape, shape_from_config

# id, model type, vocab, hidden, layers, heads, key/value heads, intermediate, head width (0 = hidden/heads), tied, published parameters
_ROWS: tuple[tuple[str, str, int, int, int, int, int, int, int, bool, int], ...] = (
    ("Qwen/Qwen2.5-0.5B", "qwen2", 151936, 896, 24, 14, 2, 4864, 0, True, 494_032_768),
    ("Qwen/Qwen2.5-1.5B", "qwen2", 151936, 1536, 28, 12, 2, 8960, 0, True, 1_543_714_304),
    ("Qwen/Qwen2.5-3B", "qwen2", 151936, 2048, 36, 16, 2, 11008, 0, True, 3_085_938_688),
    ("Qwen/Qwen2.5-7B", "qwen2", 152064, 3584, 28, 28, 4, 18944, 0, False, 7_615_616_512),
    ("Qwen/Qwen2.5-14B", "qwen2", 152064, 5120, 48, 40, 8, 13824, 0, False, 14_770_033_664),
    ("Qwen/Qwen2.5-32B", "qwen2", 152064, 5120, 64, 40, 8, 27648, 0, False, 32_763_876_352),
    ("Qwen/Qwen2.5-72B", "qwen2", 152064, 8192, 80, 64, 8, 29568, 0, False, 72_706_203_648),
    ("Qwen/Qwen3-0.6B", "qwen3", 151936, 1024, 28, 16, 8, 3072, 128, True, 596_049_920),
    ("Qwen/Qwen3-1.7B", "qwen3", 151936, 2048, 28, 16, 8, 6144, 128, True, 1_720_574_976),
    ("Qwen/Qwen3-4B", "qwen3", 151936, 2560, 36, 32, 8, 9728, 128, True, 4_022_468_096),
    ("Qwen/Qwen3-8B", "qwen3", 151936, 4096, 36, 32, 8, 12288, 128, False, 8_190_735_360),
    ("Qwen/Qwen3-14B", "qwen3", 151936, 5120, 40, 40, 8, 17408, 128, False, 14_768_307_200),
    ("Qwen/Qwen3-32B", "qwen3", 151936, 5120, 64, 64, 8, 25600, 128, False, 32_762_123_264),
    ("meta-llama/Llama-3.2-1B", "llama", 128256, 2048, 16, 32, 8, 8192, 64, True, 1_235_814_400),
    ("meta-llama/Llama-3.2-3B", "llama", 128256, 3072, 28, 24, 8, 8192, 128, True, 3_212_749_824),
    ("meta-llama/Llama-3.1-8B", "llama", 128256, 4096, 32, 32, 8, 14336, 128, False, 8_030_261_248),
    ("meta-llama/Llama-3.1-70B", "llama", 128256, 8192, 80, 64, 8, 28672, 128, False, 70_553_706_496),
    ("meta-llama/Llama-2-7b-hf", "llama", 32000, 4096, 32, 32, 32, 11008, 128, False, 6_738_415_616),
    ("mistralai/Mistral-7B-v0.1", "mistral", 32000, 4096, 32, 32, 8, 14336, 128, False, 7_241_732_096),
    ("mistralai/Mistral-7B-v0.3", "mistral", 32768, 4096, 32, 32, 8, 14336, 128, False, 7_248_023_552),
    ("mistralai/Mixtral-8x7B-v0.1", "mixtral", 32000, 4096, 32, 32, 8, 14336, 128, False, 46_702_792_704),
    ("google/gemma-2-2b", "gemma2", 256000, 2304, 26, 8, 4, 9216, 256, True, 2_614_341_888),
    ("google/gemma-2-9b", "gemma2", 256000, 3584, 42, 16, 8, 14336, 256, True, 9_241_705_984),
    ("microsoft/Phi-3-mini-4k-instruct", "phi3", 32064, 3072, 32, 32, 32, 8192, 96, False, 3_821_079_552),
    ("TinyLlama/TinyLlama_v1.1", "llama", 32000, 2048, 22, 32, 4, 5632, 64, False, 1_100_048_384),
    ("HuggingFaceTB/SmolLM2-135M", "llama", 49152, 576, 30, 9, 3, 1536, 64, True, 134_515_008),
    ("HuggingFaceTB/SmolLM2-360M", "llama", 49152, 960, 32, 15, 5, 2560, 64, True, 361_821_120),
    ("HuggingFaceTB/SmolLM2-1.7B", "llama", 49152, 2048, 24, 32, 32, 8192, 64, True, 1_711_376_384),
    ("openai-community/gpt2", "gpt2", 50257, 768, 12, 12, 12, 3072, 64, True, 124_439_808),
    ("openai-community/gpt2-medium", "gpt2", 50257, 1024, 24, 16, 16, 4096, 64, True, 354_823_168),
    ("openai-community/gpt2-large", "gpt2", 50257, 1280, 36, 20, 20, 5120, 64, True, 774_030_080),
    ("openai-community/gpt2-xl", "gpt2", 50257, 1600, 48, 25, 25, 6400, 64, True, 1_557_611_200),
    ("facebook/opt-125m", "opt", 50272, 768, 12, 12, 12, 3072, 64, True, 125_239_296),
)  # fmt: skip

# Contexts that the models were published with, in tokens, where they are shorter than what people train on.
_CONTEXT = {"gpt2": 1024, "opt": 2048}

PUBLISHED_PARAMETERS: dict[str, int] = {row[0]: row[-1] for row in _ROWS}
"""Parameters of each model as counted from its published weights; the formula must give the same."""


def known_models() -> list[str]:
    """Ids of the models whose shape is shipped."""
    return [row[0] for row in _ROWS]


def known_config(model_id: str) -> dict[str, object]:
    """The shipped dimensions as a Hugging Face config (keys of Llama's, whatever the type)."""
    row = next(row for row in _ROWS if row[0] == model_id)
    _, kind, vocab, hidden, layers, heads, kv, inner, head_dim, tied, _ = row
    out: dict[str, object] = {
        "model_type": kind, "vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": inner, "tie_word_embeddings": tied,
    }  # fmt: skip
    if head_dim:
        out["head_dim"] = head_dim
    if kind in _CONTEXT:
        out["max_position_embeddings"] = out["n_positions"] = _CONTEXT[kind]
    return out


def find_model(text: str) -> ModelShape:
    """The shape of a shipped model (id, or its last part, any case), of a config.json, or of a folder that has one.

    Raises UsageError that names the nearest shipped model and how to give any other.
    """
    path = Path(text).expanduser()
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if path.is_file():
        return shape_from_config(_read(path), name=str(text))
    wanted = text.strip().lower()
    by_name = {name.lower(): name for name in known_models()} | {
        name.split("/")[1].lower(): name for name in known_models()
    }
    if wanted in by_name:
        name = by_name[wanted]
        return shape_from_config(known_config(name), name=name)
    if text.endswith(".json") or path.exists():
        raise UsageError(
            f"--model {text}: no such config.json; give a file or folder that exists, or one of: {_list()}"
        )
    close = difflib.get_close_matches(wanted, by_name, n=1, cutoff=0.5)
    hint = f"; the nearest is {by_name[close[0]]}" if close else ""
    raise UsageError(
        f"--model {text}: its shape is not shipped{hint}; download its config.json and give the path, or use one of: {_list()}"
    )


def _read(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--model {path}: cannot be read as JSON: {error}; give a Hugging Face config.json") from error
    if not isinstance(value, dict):
        raise UsageError(
            f"--model {path}: expected a JSON object (a Hugging Face config.json), got {type(value).__name__}; give the model's own file"
        )
    return value


def _list() -> str:
    return ", ".join(known_models())
