"""``eks-ray-train plan``: memory, traffic, step time and money of a run on one or several instance types, before paying."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eks_ray_train.errors import UsageError

from .numbers import MOST_NODES, MOST_PER_STEP, MOST_SEQ_LEN, MOST_STEPS, MOST_TOKENS, amount, whole

if TYPE_CHECKING:
    from eks_ray_train.plan.run import Cluster

# What a run is compared with where no type is asked for: a cheap pair, and one node of each larger kind.
COMPARED = ("g6.12xlarge:2", "g6e.12xlarge:2", "g6e.48xlarge:1", "p4d.24xlarge:1", "p5.48xlarge:1", "p5en.48xlarge:1")

EXAMPLES = """\
examples:
  eks-ray-train plan --model Qwen/Qwen2.5-1.5B --seq-len 2048 --batch-size 1
  eks-ray-train plan --instance-type g6.12xlarge p5.48xlarge:1 --nodes 2 --model llama-3.1-8b --tokens 1e9
  eks-ray-train plan --model ./config.json --transport tcp --html plan.html
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Define ``plan``'s flags."""
    parser = subparsers.add_parser(
        "plan", help="memory, traffic, step time and price of a run, before it costs anything",
        description="Predict what a run needs and costs, from formulas and measured constants. Asks no network.",
        epilog=EXAMPLES,
    )  # fmt: skip
    parser.add_argument(
        "--instance-type", nargs="+", action="extend", default=None, metavar="T[:NODES]",
        help="GPU instance types to compare; :NODES overrides --nodes (default: cdk.json's, with common types beside it)",
    )  # fmt: skip
    parser.add_argument(
        "--nodes",
        type=whole(1, MOST_NODES),
        default=None,
        metavar="N",
        help="GPU nodes (default: cdk.json's gpu_node_count, else 2)",
    )
    parser.add_argument(
        "--model", default="Qwen/Qwen2.5-1.5B", metavar="ID|FILE", help="a common model's id, or a config.json"
    )
    parser.add_argument(
        "--seq-len",
        "--seq_len",
        type=whole(1, MOST_SEQ_LEN),
        default=2048,
        metavar="N",
        help="tokens a sequence (default: 2048)",
    )
    parser.add_argument(
        "--batch-size",
        "--batch_size",
        type=whole(1, MOST_PER_STEP),
        default=1,
        metavar="N",
        help="sequences a GPU and micro-batch (default: 1)",
    )
    parser.add_argument(
        "--accumulate",
        type=whole(1, MOST_PER_STEP),
        default=1,
        metavar="N",
        help="micro-batches an optimizer step (default: 1)",
    )
    parser.add_argument(
        "--sharding", choices=("full", "hybrid", "auto"), default="auto", help="as the job's flag (default: auto)"
    )
    parser.add_argument(
        "--activation-checkpointing", "--activation_checkpointing", choices=("none", "selective", "full"), default="none",
        help="as the job's flag (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--precision", choices=("bf16", "fp32", "fp8"), default="bf16", help="as the job's flag (default: bf16)"
    )
    parser.add_argument(
        "--transport", choices=("efa", "tcp"), default="efa", help="what carries traffic between nodes (default: efa)"
    )
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument(
        "--tokens",
        type=amount(1, MOST_TOKENS),
        default=None,
        metavar="N",
        help="tokens of the whole run, for example 1e9",
    )
    how_long.add_argument(
        "--steps",
        type=whole(1, MOST_STEPS),
        default=None,
        metavar="N",
        help="optimizer steps of the whole run (default: 1000)",
    )
    parser.add_argument(
        "--html", type=Path, default=None, metavar="FILE", help="write a page with charts, complete in one file"
    )


def run(args: argparse.Namespace) -> int:
    """Print the comparison; raises UsageError for bad input. Returns 0, also where nothing fits: that is the answer."""
    from eks_ray_train.plan import Run, advise, compare, find_model
    from eks_ray_train.plan import report as reports

    planned = Run(
        shape=find_model(args.model), seq_len=args.seq_len, batch_size=args.batch_size, accumulate=args.accumulate,
        sharding=args.sharding, checkpointing=args.activation_checkpointing, precision=args.precision,
    )  # fmt: skip
    clusters = _clusters(args)
    steps = None if args.tokens is not None else (args.steps or 1000)
    predictions = compare(planned, clusters, tokens=args.tokens, steps=steps)
    advice = [advise(prediction, clusters) for prediction in predictions]
    if args.html is not None:
        from eks_ray_train.plan.page import render

        _write(args.html, render(predictions, advice))
    told = sys.stderr if args.json else sys.stdout
    print(reports.text(predictions, advice), file=told)
    if args.html is not None:
        print(f"page: {args.html}", file=told)
    if args.json:
        print(json.dumps(reports.document(predictions, advice), indent=2))
    return 0


def _clusters(args: argparse.Namespace) -> list[Cluster]:
    """The clusters to compare, each once, in the order asked for."""
    from eks_ray_train.instances import get_instance_type
    from eks_ray_train.plan import cluster_of

    own_type, own_nodes = _from_cdk_json()
    nodes = args.nodes or own_nodes
    asked = args.instance_type or [f"{own_type}:{nodes}", *COMPARED]
    out: dict[tuple[str, int], Cluster] = {}
    for word in asked:
        name, colon, count = word.partition(":")
        if colon and not (count.isascii() and count.isdigit() and len(count) < 9 and 1 <= int(count) <= MOST_NODES):
            raise UsageError(
                f"--instance-type {word[:60]}: after the colon comes a number of nodes from 1 to {MOST_NODES}, for example {name}:2"
            )
        number = int(count) if colon else nodes
        # The plan does not depend on the interface layout, so a type whose layout no source confirms can be planned with.
        row = get_instance_type(name, accept_unverified_layout=True, asked_by="--instance-type")
        out.setdefault((name, number), cluster_of(row, number, args.transport))
    return list(out.values())


def _from_cdk_json() -> tuple[str, int]:
    """GPU type and node count of the cdk.json in this folder, or the defaults."""
    from eks_ray_train.settings import Settings, load_settings

    path = Path("cdk.json")
    settings = load_settings(path) if path.is_file() else Settings()
    return settings.gpu_instance_type, settings.gpu_node_count


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--html {path}: cannot be written: {error.strerror or error}; give a file in a folder that exists"
        ) from error
