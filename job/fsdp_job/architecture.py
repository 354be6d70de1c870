"""``--model-config``: an architecture without weights, read before anything slow is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fsdp_job.errors import ModelError


def read_architecture(model_config: str) -> dict[str, Any]:
    """The values of a ``--model-config``; read once, in the driver, and handed to the workers, whose nodes may not have it.

    A relative path is looked up in the working folder, then beside the job's code.
    """
    path = Path(model_config)
    if (
        not path.exists()
        and not path.is_absolute()
        and (beside := Path(__file__).resolve().parent.parent / path).exists()
    ):
        path = beside
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ModelError(
            f"--model-config: no such file: {path}; give one that lies in the job's folder or on storage that all nodes share"
        )
    try:
        values = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"--model-config {path} is not JSON: {error}; give a Hugging Face config.json") from error
    if not isinstance(values, dict) or not values.get("model_type"):
        raise ModelError(f'--model-config {path} has no "model_type"; add it, for example "qwen2"')
    return values
