"""``argv`` -> JobConfig. Only the standard library, so that ``--help`` and a wrong flag answer at once.

Every flag is accepted with ``-`` or ``_`` between its words; an unknown flag is an error that names the nearest one.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

from fsdp_job.config import CHOICES, DEFAULT_MODEL, JobConfig
from fsdp_job.errors import JobUsageError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise JobUsageError(f"{message[:300]}; see python {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The parser with every flag of the contract; defaults live in JobConfig alone."""
    parser = _Parser(
        prog="train.py",
        description="Train a causal language model with FSDP2 on a Ray cluster.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )

    def add(name: str, help_text: str, kind: type = str, metavar: str | None = None) -> None:
        choices = CHOICES.get(name)
        default = getattr(JobConfig, name)
        shown = "" if default is None or default == 0 else f" (default: {default})"
        parser.add_argument(
            "--" + name.replace("_", "-"), dest=name, type=kind, choices=choices,
            metavar=metavar or (None if choices else kind.__name__.upper()), help=help_text + shown,
        )  # fmt: skip

    add("model_id", f"Hugging Face id or folder of a causal language model with weights (default: {DEFAULT_MODEL})")
    add("model_config", "config.json: train this architecture from scratch", metavar="FILE")
    add("steps", "optimizer steps of the whole run, resumed parts included", int)
    add("seq_len", "tokens per sequence", int)
    add("batch_size", "sequences per rank and micro-batch at the starting world size", int)
    add("learning_rate", "peak learning rate of AdamW", float)
    add("num_workers", "ranks (default: all GPUs of the cluster; without GPUs one per node)", int)
    add("warmup_steps", "first steps left out of the throughput average", int)
    add("dataset", "file, glob, s3://, hf://name (parquet, jsonl, txt) or 'random'")
    add("tokenizer", "hub id or folder, or 'bytes' (default: the model's)")
    add(
        "sharding", "full: over all ranks; hybrid: within a node, replicated across; auto: hybrid where a node holds it"
    )
    add("activation_checkpointing", "recompute activations in the backward pass")
    parser.add_argument(
        "--compile", dest="compile", action=argparse.BooleanOptionalAction,
        help="torch.compile each block (default: on with CUDA, off on CPU)",
    )  # fmt: skip
    add("precision", "compute precision; weights and optimizer stay fp32 (default: bf16 with CUDA, fp32 on CPU)")
    add("accumulate", "micro-batches per optimizer step", int)
    add("max_grad_norm", "clip the gradient's norm to this", float)
    add("warmup_lr_steps", "steps of linear learning-rate warm-up", int)
    add("schedule", "learning rate after the warm-up")
    add("seed", "of the weights, the data order and dropout", int)
    add("checkpoint_every", "steps between checkpoints (0: only at the end)", int)
    add("keep", "newest checkpoints to keep", int)
    add("storage_path", "s3://bucket/prefix or a folder that all nodes share", metavar="URI")
    add("run_name", "folder of the run under the storage path; the same name continues (default: unique)")
    add("resume", "auto: newest good checkpoint of this run; never: start anew; or a checkpoint's path")
    add("max_failures", "restarts after a failure (default: 3 with --checkpoint-every, else 0)", int)
    add("min_workers", "go on with as few ranks as this after losing nodes", int)
    add("eval_every", "steps between evaluations on held-out sequences", int)
    add("eval_sequences", "held-out sequences (default: chosen when --eval-every is set)", int)
    add("profile", "write a PyTorch trace of this many steps after the warm-up", int, metavar="STEPS")
    add("export", "write a folder at the end that AutoModelForCausalLM.from_pretrained loads")
    add("wait_seconds", "how long to wait for all GPUs to join", float)
    add("collective_timeout_seconds", "a rank that hangs longer than this ends the attempt", float)
    return parser


def parse_args(argv: Sequence[str]) -> JobConfig:
    """JobConfig of a command line; raises JobUsageError with every problem named."""
    parser = build_parser()
    options = [s for a in parser._actions for s in a.option_strings if s.startswith("--")]
    words = [dashed(word) for word in argv]
    known, unknown = parser.parse_known_args(words)
    if unknown:
        # A word after an unknown flag is most likely its value.
        alone = [w for i, w in enumerate(unknown) if w.startswith("-") or not (i and unknown[i - 1].startswith("-"))]
        raise JobUsageError("; ".join(_unknown(word, options) for word in alone) + "; see python train.py --help")
    return JobConfig(**vars(known))


def dashed(word: str) -> str:
    """A flag as the parsers know it: ``--batch_size=4`` -> ``--batch-size=4``."""
    if not word.startswith("--"):
        return word
    name, sep, value = word.partition("=")
    return name.replace("_", "-") + sep + value


def _unknown(word: str, options: list[str]) -> str:
    name = word.partition("=")[0]
    near = difflib.get_close_matches(name, options, n=1)
    kind = "unknown flag" if word.startswith("-") else "unexpected argument"
    return f"{kind} {name}" + (f" (did you mean {near[0]}?)" if near else "")
