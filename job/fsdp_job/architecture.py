"""What kind of model a run is of, read and checked before anything slow is imported: ``--model-config`` is one without weights."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fsdp_job.errors import ModelError

WHICH_MODELS = "give a decoder-only model whose attention is torch's, such as llama, qwen2, qwen3, mistral, gemma2, phi or gpt2"
"""What to do about a model that this job cannot train."""


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


def local_architecture(model_id: str) -> dict[str, Any] | None:
    """The values of config.json where ``model_id`` is a folder with one that can be read; the job itself says what is wrong else."""
    try:
        values = json.loads((Path(model_id) / "config.json").read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def check_architecture(flag: str, values: dict[str, Any], *, elsewhere: bool = False) -> None:
    """Raises ModelError where this machine's transformers cannot train that kind of model with this job.

    Its files are read as text: importing it takes seconds, and where it is not installed the job alone can tell.
    ``elsewhere``: the job's transformers may know a model type that this machine's does not.
    """
    kind = values.get("model_type")
    found = find_spec("transformers")
    if not isinstance(kind, str) or found is None or not found.submodule_search_locations:
        return
    models = Path(next(iter(found.submodule_search_locations))) / "models"
    classes = _entries(models / "auto" / "modeling_auto.py", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
    if not classes:  # another layout than the one known here
        return
    if kind not in classes:
        if not elsewhere or kind in _entries(models / "auto" / "auto_mappings.py", "CONFIG_MAPPING_NAMES"):
            raise not_causal(flag, kind)
    elif not values.get("attn_logit_softcapping") and _lacks_sdpa(models, kind, classes[kind]):
        raise no_sdpa(flag, kind)


def not_causal(flag: str, kind: str) -> ModelError:
    """The model type has no causal language model in transformers."""
    return ModelError(f"{flag}: model type {kind!r} is no causal language model of transformers; {WHICH_MODELS}")


def no_sdpa(flag: str, kind: str, why: object = None) -> ModelError:
    """It has one, without the attention that this job uses."""
    return ModelError(
        f"{flag}: model type {kind!r} is no causal language model that sdpa supports{f' ({why})' if why else ''}; {WHICH_MODELS}"
    )


def _entries(path: Path, mapping: str) -> dict[str, str]:
    """``("key", "value")`` lines of one of transformers' tables; empty where there is no such table."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    table = re.search(rf"^{mapping} = OrderedDict\($(.*?)^\)$", text, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r'\("([^"]+)", "(\w+)"\)', table[1])) if table else {}


def _lacks_sdpa(models: Path, kind: str, name: str) -> bool:
    """Whether the class is where such classes are, and its module says nowhere that it has that attention."""
    module = kind.replace("-", "_")
    try:
        text = (models / module / f"modeling_{module}.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return f"\nclass {name}(" in text and not re.search(r"_supports_(sdpa|attention_backend) = True", text)
