"""One snapshot a stack, for drift: asset hashes are masked, and long texts (job files, code) stand as their length's class.

After a change that is meant: ``UPDATE_SNAPSHOTS=1 pytest tests/synth/test_snapshots.py``, and read the diff.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

_HASH = re.compile(r"[0-9a-f]{64}")
_JOB_ITEMS = re.compile(r'"items":\[\{"key"[^]]*\]')
_LONG = 20_000


def masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: masked(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [masked(inner) for inner in value]
    if isinstance(value, str):
        if len(value) > _LONG:
            return "<long text>"
        return _JOB_ITEMS.sub('"items":"<job files>"', _HASH.sub("<hash>", value))
    return value


@pytest.mark.parametrize("stack", ["network", "eks", "training"])
def test_the_default_template_is_the_recorded_one(stack: str, default_app: dict[str, Any], repo: Path) -> None:
    path = repo / "tests" / "synth" / "snapshots" / f"{stack}.json"
    template = default_app[stack]
    # The job's files change with the job; its own tests look after them.
    for name, resource in template["Resources"].items():
        if "JobFiles" in name:
            template = {
                **template,
                "Resources": {**template["Resources"], name: {**resource, "Properties": "<job files>"}},
            }
    text = json.dumps(masked(template), indent=1, sort_keys=True) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text)
    assert path.exists(), f"no {path.name}; record it with UPDATE_SNAPSHOTS=1"
    assert json.loads(text) == json.loads(path.read_text()), (
        "the template drifted; if meant: UPDATE_SNAPSHOTS=1 pytest this file"
    )


def test_masking_hides_hashes_and_long_texts_only() -> None:
    assert masked({"a": ["x" * 30_000, "ab" * 32, "kept", 7]}) == {"a": ["<long text>", "<hash>", "kept", 7]}
