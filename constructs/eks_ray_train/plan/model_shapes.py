"""The dimensions of a decoder-only language model that decide its size, work and traffic, read from a Hugging Face config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eks_ray_train.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Dimensions of one model. Sizes in elements; ``intermediate`` is of the MLP (of one expert where ``experts`` > 0).

    ``gated``: the MLP has three matrices instead of two. ``norm_width``: parameters of one norm in multiples of ``hidden``
    (1 RMSNorm, 2 LayerNorm with bias, 0 none). ``extra_block_parameters``: what the other fields do not cover in a block.
    """

    name: str
    model_type: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    gated: bool = True
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    norm_width: int = 1
    norms_per_block: int = 2
    extra_block_parameters: int = 0
    positions: int = 0
    max_seq_len: int | None = None
    experts: int = 0
    experts_per_token: int = 0
    shared_expert: int = 0
    note: str = ""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def mlp_matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def active_intermediate(self) -> int:
        """MLP width that one token passes through: ``intermediate``, or all its experts' together."""
        return self.intermediate * max(1, self.experts_per_token) + self.shared_expert

    @property
    def attention_parameters(self) -> int:
        """Weights and biases of one block's attention: h·q + 2·h·kv + q·h."""
        matrices = 2 * self.hidden * self.query_width + 2 * self.hidden * self.kv_width
        biases = (self.query_width + 2 * self.kv_width) * self.qkv_bias + self.hidden * self.out_bias
        return matrices + biases

    @property
    def mlp_parameters(self) -> int:
        """Weights and biases of one block's MLP, all experts and the router included."""
        one = self.mlp_matrices * self.hidden * self.intermediate
        one += (self.intermediate * (self.mlp_matrices - 1) + self.hidden) * self.mlp_bias
        if not self.experts:
            return one
        shared = self.mlp_matrices * self.hidden * self.shared_expert + (self.hidden if self.shared_expert else 0)
        return one * self.experts + self.hidden * self.experts + shared

    @property
    def block_parameters(self) -> int:
        """Parameters of one transformer block."""
        norms = self.norms_per_block * self.norm_width * self.hidden
        return self.attention_parameters + self.mlp_parameters + norms + self.extra_block_parameters

    @property
    def root_parameters(self) -> int:
        """Parameters outside the blocks (embeddings, head, last norm): what FSDP keeps in the root's group."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2) + self.positions * self.hidden
        return embeddings + self.norm_width * self.hidden + (self.vocab if self.head_bias else 0)

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        return self.layers * self.block_parameters + self.root_parameters

    @property
    def matmul_parameters(self) -> int:
        """Parameters that one token is multiplied with: active experts only, the head, no input embedding."""
        attention = 2 * self.hidden * (self.query_width + self.kv_width)
        mlp = self.mlp_matrices * self.hidden * self.active_intermediate
        return self.layers * (attention + mlp) + self.vocab * self.hidden

    def flops_per_token(self, seq_len: int) -> float:
        """Model FLOPs of one trained token, forward and backward, nothing counted twice for recomputation.

        6 per active matrix parameter, and 6·layers·query_width·seq_len for causal attention (half of the square).
        Source: Kaplan et al. 2020 (arXiv:2001.08361) §2.1; Chowdhery et al. 2022 (arXiv:2204.02311) appendix B.
        """
        return 6.0 * self.matmul_parameters + 6.0 * self.layers * self.query_width * seq_len


# What config.json leaves out, by model type: transformers' defaults (transformers 5.13 configuration classes).
# keys: gated, norm width, norms per block, biases (qkv, out, mlp), tied default, q/k norm ("head", "full" or none)
_LLAMA: dict[str, Any] = {}
_GPT: dict[str, Any] = {
    "gated": False,
    "norm_width": 2,
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "tied": True,
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": {"experts": 8, "experts_per_token": 2},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": "head", "head_dim": 128},
    "qwen2_moe": {"qkv_bias": True, "moe": True},
    "qwen3_moe": {"qk_norm": "head", "moe": True},
    "gemma": {"tied": True, "head_dim": 256},
    "gemma2": {"tied": True, "head_dim": 256, "norms_per_block": 4},
    "gemma3_text": {"tied": True, "head_dim": 256, "norms_per_block": 4, "qk_norm": "head"},
    "phi3": {},
    "phi": {**_GPT, "tied": False, "norms_per_block": 1, "head_bias": True},
    "granite": {},
    "smollm3": {"tied": True},
    "olmo": {"norm_width": 0},
    "olmo2": {"qk_norm": "full"},
    "olmo3": {"qk_norm": "full"},
    "starcoder2": {**_GPT},
    "stablelm": {"norm_width": 2},
    "cohere": {"tied": True, "norms_per_block": 1},
    "gpt2": {**_GPT, "positions": "n_positions"},
    "gpt_bigcode": {**_GPT, "positions": "n_positions"},
    "gpt_neox": {**_GPT, "tied": False},
    "gptj": {**_GPT, "qkv_bias": False, "out_bias": False, "tied": False, "norms_per_block": 1, "head_bias": True},
    "opt": {**_GPT, "positions": "max_position_embeddings", "extra_positions": 2},
}

_ALIASES: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab": ("vocab_size",),
}


def shape_from_config(config: Mapping[str, Any], *, name: str) -> ModelShape:
    """The shape of a Hugging Face ``config.json`` (a mapping). Keys that it omits take the architecture's defaults.

    Raises UsageError that names every key that is missing or no positive whole number. A model type that is not known is
    counted like Llama where the keys are there, and ``note`` says so.
    """
    if isinstance(config.get("text_config"), Mapping):
        config = {**config["text_config"], "tie_word_embeddings": config.get("tie_word_embeddings", False)} | (
            {} if "model_type" in config["text_config"] else {"model_type": config.get("model_type")}
        )
    model_type = str(config.get("model_type") or "")
    family = _FAMILIES.get(model_type)
    quirks = family if family is not None else {}
    problems: list[str] = []

    def need(field: str) -> int:
        keys = _ALIASES[field]
        value = next((config[k] for k in keys if config.get(k) is not None), None)
        if value is None:
            problems.append(f"{keys[0]} is missing")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            problems.append(f"{keys[0]} must be a positive whole number, got {value!r}")
        else:
            return value
        return 1

    def maybe(*keys: str, default: int) -> int:
        for key in keys:
            value = config.get(key)
            if value is None:
                continue
            if isinstance(value, list) and value:
                value = value[0]
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                problems.append(f"{key} must be a whole number, got {value!r}")
                return default
            return value
        return default

    hidden, layers, heads, vocab = need("hidden"), need("layers"), need("heads"), need("vocab")
    if not problems and hidden % heads and not config.get("head_dim"):
        problems.append(f"hidden_size {hidden} is no multiple of num_attention_heads {heads}")
    kv_default = 1 if model_type == "gpt_bigcode" and config.get("multi_query", True) else heads
    kv_heads = maybe("num_key_value_heads", "n_head_kv", default=kv_default)
    head_dim = maybe("head_dim", default=int(quirks.get("head_dim", hidden // heads if heads else 1)))
    gated = bool(quirks.get("gated", True))
    inner_default = 4 * hidden
    intermediate = maybe("intermediate_size", "ffn_dim", "n_inner", default=0) or inner_default
    experts, per_token, shared = _experts(config, quirks, maybe)
    if experts and config.get("moe_intermediate_size"):
        intermediate = maybe("moe_intermediate_size", default=intermediate)
    if problems:
        raise UsageError(f"{name} is no usable config.json: {'; '.join(problems)}; give the model's own config.json from Hugging Face")
    qkv_bias, out_bias, mlp_bias = _biases(config, quirks)
    extra = {"head": 2 * head_dim, "full": (heads + kv_heads) * head_dim}.get(str(quirks.get("qk_norm")), 0)
    positions_key = quirks.get("positions")
    positions = maybe(positions_key, default=1024) + int(quirks.get("extra_positions", 0)) if positions_key else 0
    note = "" if family is not None else f"model type {model_type or '(none)'} is not known: counted like Llama"
    return ModelShape(
        name=name,
        model_type=model_type,
        vocab=vocab,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        gated=gated,
        tied=bool(config.get("tie_word_embeddings", quirks.get("tied", False))),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        mlp_bias=mlp_bias,
        head_bias=bool(quirks.get("head_bias", False)),
        norm_width=int(quirks.get("norm_width", 1)),
        norms_per_block=int(quirks.get("norms_per_block", 2)),
        extra_block_parameters=extra,
        positions=positions,
        max_seq_len=maybe("max_position_embeddings", "n_positions", "max_seq_len", default=0) or None,
        experts=experts,
        experts_per_token=per_token,
        shared_expert=shared,
        note=note,
    )


def _biases(config: Mapping[str, Any], quirks: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Biases of (query/key/value, output, MLP) products. ``attention_bias`` means query to output, ``qkv_bias`` not the
    output, ``use_bias`` all; what is not said takes the family's default."""
    everywhere = config.get("use_bias")
    attention = config.get("attention_bias", everywhere)
    qkv = config.get("qkv_bias") if attention is None else attention
    return (
        bool(quirks.get("qkv_bias", False) if qkv is None else qkv),
        bool(quirks.get("out_bias", False) if attention is None else attention),
        bool(config.get("mlp_bias", quirks.get("mlp_bias", False) if everywhere is None else everywhere)),
    )


def _experts(config: Mapping[str, Any], quirks: Mapping[str, Any], maybe: Any) -> tuple[int, int, int]:
    experts = maybe("num_local_experts", "num_experts", "n_routed_experts", default=int(quirks.get("experts", 0)))
    if not experts:
        return 0, 0, 0
    per_token = maybe("num_experts_per_tok", default=int(quirks.get("experts_per_token", 2)))
    return experts, per_token, maybe("shared_expert_intermediate_size", default=0)
