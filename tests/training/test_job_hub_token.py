"""The Hugging Face token of the deployment's secret reaches the driver, the workers and the tasks; and nobody else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from fsdp_job.data_ray import _run
from fsdp_job.errors import JobUsageError
from fsdp_job.hub_token import load_token, with_token

TOKEN = "hf_abcdefTESTONLY"
ABSENT = "arn:aws:secretsmanager:us-west-2:123456789012:secret:absent-AbCdEf"


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    # Set, then deleted: what the code under test puts there is taken away again.
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.delenv("HF_TOKEN")
    with mock_aws():
        yield


def secret(text: str) -> str:
    """ARN of a new secret in a region that is not the environment's."""
    made = boto3.client("secretsmanager", region_name="us-west-2").create_secret(Name="hub", SecretString=text)
    return str(made["ARN"])


@pytest.mark.parametrize("text", [TOKEN, f"{TOKEN}\n", json.dumps({"HF_TOKEN": TOKEN})])
def test_the_secret_is_plain_text_or_json_in_the_region_of_its_arn(text: str) -> None:
    environment = {"HF_TOKEN_SECRET_ARN": secret(text)}
    load_token(environment)
    assert environment["HF_TOKEN"] == TOKEN


def test_a_token_that_is_set_goes_before_the_secret() -> None:
    environment = {"HF_TOKEN_SECRET_ARN": ABSENT, "HF_TOKEN": "hf_mine"}
    load_token(environment)
    assert environment["HF_TOKEN"] == "hf_mine"


def test_without_a_secret_nothing_is_asked_or_set() -> None:
    environment: dict[str, str] = {}
    load_token(environment)
    assert environment == {}


def test_a_missing_secret_is_named_in_one_line_with_a_remedy() -> None:
    with pytest.raises(JobUsageError, match=r"absent-AbCdEf: .*ResourceNotFound.*correct hf_token_secret_arn") as caught:
        load_token({"HF_TOKEN_SECRET_ARN": ABSENT})
    assert "\n" not in str(caught.value)


def test_a_denied_secret_is_named_in_one_line_with_the_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_self: Any, operation: str, _arguments: Any) -> Any:
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "not authorized"}}, operation)

    arn = secret(TOKEN)
    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", denied)
    with pytest.raises(JobUsageError, match=r"AccessDeniedException.*give the pods' role secretsmanager:GetSecretValue") as caught:
        load_token({"HF_TOKEN_SECRET_ARN": arn})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ['{"other": "hf_abcdefTESTONLY"}', '{"HF_TOKEN": hf_abcdefTESTONLY}', "hf_abcdef TESTONLY"])
def test_a_secret_without_a_token_is_refused_and_its_value_not_shown(text: str) -> None:
    with pytest.raises(JobUsageError, match="holds no token") as caught:
        load_token({"HF_TOKEN_SECRET_ARN": secret(text)})
    assert "TESTONLY" not in str(caught.value)


def test_a_value_that_is_no_arn_is_refused() -> None:
    with pytest.raises(JobUsageError, match="must be the ARN of a Secrets Manager secret, got 'hub'"):
        load_token({"HF_TOKEN_SECRET_ARN": "hub"})


def test_the_driver_ends_in_one_line_before_it_looks_for_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fsdp_job.driver import main

    monkeypatch.setenv("HF_TOKEN_SECRET_ARN", ABSENT)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert main(["--steps", "1"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == "failed"
    assert err.count("\n") == 1 and "absent-AbCdEf" in err


def read_token(_settings: dict[str, Any] | None = None) -> str | None:
    return os.environ.get("HF_TOKEN")


def test_workers_get_the_drivers_token_with_the_function_and_not_in_what_the_dashboard_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray import cloudpickle

    from fsdp_job.config import JobConfig
    from fsdp_job.driver import _trainer

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    settings = {"submission": "s", "run_name": "r"}
    trainer = _trainer(JobConfig(), settings, world=1, on_gpus=False, folder="/nonexistent")
    assert TOKEN not in repr((trainer.train_loop_config, trainer.run_config, trainer.scaling_config, trainer.backend_config))
    sent = cloudpickle.dumps(with_token(read_token, TOKEN))
    monkeypatch.delenv("HF_TOKEN")
    assert cloudpickle.loads(sent)({}) == TOKEN


def test_tasks_on_other_nodes_get_the_drivers_token(monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    import ray.data

    sent: list[dict[str, Any]] = []

    class Rows:
        def map(self, function: Any, **_: Any) -> Rows:
            assert function is _run
            return self

        def take_all(self) -> list[dict[str, Any]]:
            monkeypatch.delenv("HF_TOKEN")  # the other node's process has none
            return [_run(item) for item in sent]

    def from_items(items: list[dict[str, Any]], **_: Any) -> Rows:
        sent.extend(items)
        return Rows()

    from fsdp_job.data_ray import run_with_ray

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(ray.data, "from_items", from_items)
    assert run_with_ray(read_token, [{}]) == [TOKEN]
    assert pickle.loads(sent[0]["task"])[2] == TOKEN
