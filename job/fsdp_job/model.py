"""Any causal language model of transformers, built without memory, with its blocks found and its loss at hand."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fsdp_job import attention
from fsdp_job.architecture import WHICH_MODELS, no_sdpa, not_causal, read_architecture
from fsdp_job.config import JobConfig
from fsdp_job.errors import ModelError
from fsdp_job.loss import CHUNK_LOGITS, linear_cross_entropy

LAYER_COUNT_NAMES = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


class CausalLMLoss(nn.Module):
    """A causal language model whose forward pass gives the loss: what is sharded as the root and trained.

    forward(input_ids, labels, position_ids), each int64 [batch, seq_len], returns (loss sum × ``loss_scale``, loss sum),
    fp32 scalars; labels are shifted already. ``documents`` is what ``attention.boundaries`` gave, used where ``packs``.
    ``loss_scale`` is an attribute since FSDP casts floating inputs to bf16.
    """

    def __init__(self, model: nn.Module, *, compiled: bool = False, chunk_logits: int = CHUNK_LOGITS) -> None:
        super().__init__()
        self.model = model
        self.compiled = compiled
        self.chunk_logits = chunk_logits
        self.loss_scale: torch.Tensor | None = None
        self.packs = model.config._attn_implementation == attention.NAME  # type: ignore[union-attr, operator]
        self.softcap, self.factor = logits_transform(model.config)

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        position_ids: torch.Tensor,
        documents: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        backbone: Any = self.model.base_model
        mask = documents if self.packs else None
        hidden = backbone(input_ids=input_ids, position_ids=position_ids, attention_mask=mask, use_cache=False)[0]
        head: Any = self.model.get_output_embeddings()  # type: ignore[operator]
        return linear_cross_entropy(
            hidden, head.weight, labels, scale=self.loss_scale, bias=getattr(head, "bias", None), softcap=self.softcap,
            factor=self.factor, compiled=self.compiled, chunk_logits=self.chunk_logits,
        )  # fmt: skip


def logits_transform(config: Any) -> tuple[float | None, float]:
    """(soft cap, factor) that the architecture applies to its logits: Gemma 2 caps, Cohere multiplies, Granite divides."""
    softcap = getattr(config, "final_logit_softcapping", None)
    factor = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    return (float(softcap) if softcap else None), factor


@dataclass(frozen=True)
class BuiltModel:
    """A model on the meta device with the values its buffers must have; ``source`` is where weights come from, if any."""

    model: nn.Module
    blocks: list[nn.Module]
    buffers: dict[str, torch.Tensor]
    source: str | None


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules made inside have parameters without memory but real buffers (rotary frequencies are computed at once)."""
    original = nn.Module.register_parameter

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            param = nn.Parameter(param.data.to("meta"), requires_grad=param.requires_grad)
        original(self, name, param)

    nn.Module.register_parameter = register  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


def load_config(cfg: JobConfig, architecture: dict[str, Any] | None = None) -> Any:
    """The transformers configuration that a run asks for; errors name the file or id and the remedy.

    Raises ModelError too where its learned positions are fewer than ``seq_len``. ``architecture``: what ``read_architecture`` gave; absent, the file is read here.
    """
    config = _read_config(cfg, architecture)
    limit = getattr(config, "max_position_embeddings", None)
    if isinstance(limit, int) and cfg.seq_len > limit and _learns_positions(config, limit):
        raise ModelError(
            f"--seq_len must be at most {limit} for {_flag(cfg)}, got {cfg.seq_len}: {config.model_type!r} has a learned table "
            f"of {limit} positions; give --seq_len {limit} or less, or a model with rotary positions, such as llama or qwen2"
        )
    return config


def _flag(cfg: JobConfig) -> str:
    return f"--model-config {cfg.model_config}" if cfg.model_config else f"--model-id {cfg.effective_model_id}"


def _learns_positions(config: Any, limit: int) -> bool:
    """Whether positions are looked up in a table with a row each (two more in OPT); rotary ones are computed.

    Asked of the model, since no field of the configuration tells; where none can be made, ``build`` says why.
    """
    from transformers import AutoModelForCausalLM

    try:
        with parameters_on_meta():
            model = AutoModelForCausalLM.from_config(copy.deepcopy(config))
    except (KeyError, ValueError):
        return False
    tables = ((n.rpartition(".")[2], m) for n, m in model.named_modules() if isinstance(m, nn.Embedding))
    return any(re.search("pos|wpe", name) and limit <= table.num_embeddings <= limit + 2 for name, table in tables)


def _read_config(cfg: JobConfig, architecture: dict[str, Any] | None) -> Any:
    from transformers import AutoConfig

    source = cfg.model_config or cfg.effective_model_id or ""
    if cfg.model_config:
        values = dict(architecture or read_architecture(cfg.model_config))
        try:
            return AutoConfig.for_model(values.pop("model_type"), **values)
        except (ValueError, TypeError, KeyError) as error:
            raise ModelError(f"--model-config {cfg.model_config}: {_first_line(error)}; correct that file, a Hugging Face config.json") from error
    try:
        return AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"--model-id {source}: {_first_line(error)} Give a Hugging Face id that this cluster can reach, a local folder, "
            "or --model-config to train from scratch"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def build(cfg: JobConfig, device_type: str = "cpu", architecture: dict[str, Any] | None = None) -> BuiltModel:
    """The run's model on the meta device, its blocks, and its buffers' true values (kept on the CPU)."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    config = load_config(cfg, architecture)
    config.use_cache = False
    flag = _flag(cfg)
    try:
        kind = attention.choose(config, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], device_type)
        with parameters_on_meta():
            model = AutoModelForCausalLM.from_config(config, attn_implementation=kind, dtype=torch.float32)
    except KeyError as error:
        raise not_causal(flag, config.model_type) from error
    except ValueError as error:
        raise no_sdpa(flag, config.model_type, _first_line(error)) from error
    if model.get_output_embeddings() is None:
        raise ModelError(
            f"{flag}: model type {config.model_type!r} shows no output embedding (get_output_embeddings); {WHICH_MODELS}"
        )
    model.train()
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    return BuiltModel(model=model, blocks=find_blocks(model), buffers=buffers, source=cfg.effective_model_id)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The transformer blocks: the one ModuleList as long as the configuration's layer count.

    Raises ModelError where none or several of that length exist (an encoder-decoder, say).
    """
    config: Any = model.config
    counts = {name: getattr(config, name) for name in LAYER_COUNT_NAMES if isinstance(getattr(config, name, None), int)}
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    found = {name: m for name, m in lists.items() if len(m) in counts.values()}
    outer = {n: m for n, m in found.items() if not any(n.startswith(other + ".") for other in found if other != n)}
    if len(outer) != 1:
        have = ", ".join(f"{name} ({len(module)})" for name, module in lists.items()) or "none"
        want = ", ".join(f"{name}={count}" for name, count in counts.items()) or "no layer count"
        raise ModelError(
            f"cannot tell the blocks of {type(model).__name__}: the configuration says {want}, module lists are: {have}; "
            f"exactly one list must have that length; {WHICH_MODELS}"
        )
    return list(next(iter(outer.values())))


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """(all parameters, parameters in matrix products per token: without input embeddings that are not the head too)."""
    total = sum(p.numel() for p in model.parameters())
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    tied = head is not None and head.weight is embedding.weight
    return total, total if tied else total - embedding.weight.numel()
