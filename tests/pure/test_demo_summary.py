"""What ``make demo`` says before it trains: zones, price and a predicted step; a refused setting ends it without a traceback."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def demo(repo: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location("demo_of_the_repository", repo / "tools" / "demo.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_it_names_zones_price_and_a_predicted_step(demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    demo.show([])
    told = capsys.readouterr().out
    for part in ("network in the region's first two zones", "2 x g6.12xlarge (4 x L4, 1 EFA)", "USD an hour", "go to zero after 12 h"):
        assert part in told, part
    assert "predicted for Qwen/Qwen2.5-1.5B at 2048 tokens a sequence: " in told and " s a step, " in told


def test_other_settings_change_what_it_says(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = {"max_hours": 0, "availability_zones": ["us-east-2a", "us-east-2b"], "gpu_zone": "us-east-2b", "gpu_instance_type": "p5.48xlarge"}
    (tmp_path / "cdk.json").write_text(json.dumps({"context": {"eks-ray-train": block}}))
    monkeypatch.setattr(demo, "REPO", tmp_path)
    demo.show([])
    told = capsys.readouterr().out
    assert "network in us-east-2a, us-east-2b; GPU nodes in us-east-2b" in told and "no spending limit" in told and "p5.48xlarge" in told


def test_a_refused_setting_ends_it_with_the_apps_code_and_words(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app.py").write_text("import sys\nprint('gpu_node_count must be at least 1', file=sys.stderr)\nsys.exit(2)\n")
    monkeypatch.setattr(demo, "REPO", tmp_path)
    with pytest.raises(SystemExit) as end:
        demo.main([])
    assert end.value.code == 2
    told = capfd.readouterr()
    assert "at least 1" in told.err and "Traceback" not in told.err
