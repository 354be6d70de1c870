"""Every command finds region and profile in the same way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from eks_ray_train.cli.__main__ import main
from eks_ray_train.cli.aws_session import BotoSession
from eks_ray_train.cli.capacity_account import Account
from eks_ray_train.cli.eks_access import make_session
from eks_ray_train.errors import UsageError

WAYS: dict[str, Callable[[str | None], str]] = {
    "deployments": lambda region: BotoSession(region).home,
    "clusters": lambda region: make_session(region)[1],
}


@pytest.fixture(autouse=True)
def no_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


@pytest.mark.parametrize("way", WAYS)
def test_the_region_is_the_settings_then_aws_region_then_aws_default_region(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    with pytest.raises(UsageError, match=r"no region is known; set region .* or set AWS_REGION"):
        WAYS[way](None)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    assert WAYS[way](None) == "us-west-2"
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    assert WAYS[way](None) == "us-east-2"
    assert WAYS[way]("eu-west-1") == "eu-west-1"


@pytest.mark.parametrize("open_", [*WAYS.values(), Account], ids=[*WAYS, "capacity"])
def test_a_profile_that_does_not_exist_is_the_users_mistake(
    monkeypatch: pytest.MonkeyPatch, open_: Callable[[str | None], object]
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nope")
    with pytest.raises(UsageError, match=r"profile \(nope\) could not be found; set AWS_PROFILE"):
        open_("us-east-1")


@pytest.mark.parametrize("words", [["down"], ["scale", "2"], ["capacity", "check", "cr-0123456789abcdef0"], ["capacity", "find"]])
def test_a_missing_region_names_no_flag_that_the_command_lacks(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cdk.json").write_text('{"app": "python3 app.py"}')
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "no region" in said and "AWS_REGION" in said and "--region" not in said
