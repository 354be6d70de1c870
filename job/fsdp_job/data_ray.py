"""One function over many arguments as Ray Data tasks, results in order."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

from fsdp_job.data_store import first_line
from fsdp_job.errors import JobError
from fsdp_job.hub_token import TOKEN_ENV, give_token

MAX_BLOCKS = 1024


def run_with_ray(function: Callable[..., Any], arguments: list[dict[str, Any]]) -> list[Any]:
    """`[function(**a) for a in arguments]`, each a task of one CPU wherever the cluster has one.

    The function must be repeatable: Ray runs a task again when its node is lost. A JobError that it raises is raised
    here.
    """
    import ray.data
    import ray.exceptions

    context = ray.data.DataContext.get_current()
    shown, context.enable_progress_bars = context.enable_progress_bars, False
    try:
        token = os.environ.get(TOKEN_ENV)
        items = [
            {"number": number, "task": pickle.dumps((function, each, token))} for number, each in enumerate(arguments)
        ]
        blocks = min(len(items), MAX_BLOCKS)
        rows = ray.data.from_items(items, override_num_blocks=blocks).map(_run, num_cpus=1).take_all()
    except ray.exceptions.RayError as error:
        raise JobError(f"packing the data on the cluster failed: {first_line(error)}") from error
    finally:
        context.enable_progress_bars = shown
    results = [pickle.loads(row["result"]) for row in sorted(rows, key=lambda row: row["number"])]
    for result in results:
        if isinstance(result, JobError):
            raise result
    if len(results) != len(arguments):
        raise JobError(f"Ray Data returned {len(results)} results of {len(arguments)} tasks")
    return results


def _run(row: dict[str, Any]) -> dict[str, Any]:
    # One CPU is what the task asked for; the tokenizer's own threads would take the trainers' as well.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    function, arguments, token = pickle.loads(row["task"])
    give_token(token)
    try:
        result: Any = function(**arguments)
    except JobError as error:
        # As a value: Ray would wrap it into an error of its own with a traceback, and try the task again.
        result = error
    return {"number": row["number"], "result": pickle.dumps(result)}
