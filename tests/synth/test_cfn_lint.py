"""cfn-lint on every template of every variant: clean, but for W3005 on resources that the CDK itself makes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "hold on p5 with Lustre": {"gpu_instance_type": "p5.48xlarge", "capacity": "hold", "storage": "fsx"},
    "Capacity Block, nothing kept": {
        "gpu_instance_type": "p5en.48xlarge",
        "capacity": "block",
        "capacity_reservation_id": "cr-0123456789abcdef0",
        "keep_storage": False,
    },
    "Bottlerocket, CloudWatch, open endpoint": {
        "ami_family": "bottlerocket",
        "observability": "cloudwatch",
        "public_access_cidrs": ("203.0.113.7/32",),
        "admin_principals": ("arn:aws:iam::123456789012:role/Admin",),
        "storage": "none",
        "max_hours": 0,
    },
}
CDKS_OWN = ("Provider", "Function", "KubectlProvider", "CustomResourceProvider")


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_templates_are_clean(variant: str, synth: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    from cfnlint import lint_file
    from cfnlint.config import ManualArgs
    from cfnlint.match import Match

    found: list[Match] = []
    for name, template in synth(**VARIANTS[variant]).items():
        path = tmp_path / f"{name}.template.json"
        path.write_text(json.dumps(template))
        found += lint_file(path, config=ManualArgs(regions=["us-east-2"]))
    assert "W3005" in {m.rule.id for m in found}  # the linter did look: the CDK's own resources always have one
    ours = [m for m in found if m.rule.id != "W3005" or not any(mark in str(m) for mark in CDKS_OWN)]
    assert [str(m) for m in ours] == []
