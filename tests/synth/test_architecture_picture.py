"""The picture of the architecture is drawn from what is synthesized, and says what the templates say now."""

from __future__ import annotations

import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.scripts import load_script

Templates = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def drawing(repo: Path) -> ModuleType:
    return load_script("docs_architecture", repo / "docs" / "architecture.py")


def by_stack(drawing: ModuleType, app: Templates) -> Templates:
    return dict(zip(drawing.STACKS, (app["network"], app["eks"], app["training"]), strict=True))


def test_both_pictures_are_what_the_templates_say_now(drawing: ModuleType, default_app: Templates) -> None:
    wanted = drawing.pictures(by_stack(drawing, default_app))
    assert len(wanted) == 2
    stale = [path.name for path, text in wanted.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run python docs/architecture.py"


def test_other_settings_give_another_picture(drawing: ModuleType, synth: Any) -> None:
    text = drawing.draw(drawing.facts(by_stack(drawing, synth(gpu_instance_type="p5.48xlarge", gpu_node_count=4, max_hours=3))), "light")
    for part in ("p5.48xlarge", "32 efa-only interfaces", "8 GPU, 32 EFA interfaces", "GPU node 4", "after 3 hours"):
        assert part in text, part


def test_a_part_that_is_no_longer_synthesized_is_an_error(drawing: ModuleType, default_app: Templates) -> None:
    templates = copy.deepcopy(by_stack(drawing, default_app))
    resources = templates[drawing.STACKS[0]]["Resources"]
    templates[drawing.STACKS[0]]["Resources"] = {k: r for k, r in resources.items() if r["Type"] != "Custom::CapacityProbe"}
    with pytest.raises(LookupError, match="CapacityProbe"):
        drawing.facts(templates)
