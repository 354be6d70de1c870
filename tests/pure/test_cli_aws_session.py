"""Region and errors of the session that the deploying commands share."""

from __future__ import annotations

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError, TokenRetrievalError

from eks_ray_train.cli.aws_session import BotoSession, aws_errors, is_absent
from eks_ray_train.errors import EksRayTrainError, ExitCode, UsageError
from tests.fake_ec2 import client_error


@pytest.fixture(autouse=True)
def _no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")


def test_region_is_the_given_one_then_either_variable_and_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no region"):
        BotoSession()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert BotoSession().home == "us-east-1"
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    assert BotoSession().home == "us-east-2" and BotoSession("us-west-2").home == "us-west-2"


def test_clients_are_made_once_a_service_and_region() -> None:
    session = BotoSession("us-west-2")
    assert session.client("sts") is session.client("sts") is not session.client("sts", "us-east-1")


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (NoCredentialsError(), ExitCode.USAGE, "log in"),
        (
            TokenRetrievalError(provider="sso", error_msg="Token has expired and refresh failed"),
            ExitCode.USAGE,
            "log in",
        ),
        (client_error("ExpiredToken", "expired"), ExitCode.USAGE, "ExpiredToken"),
        (client_error("RequestExpired", "expired"), ExitCode.USAGE, "RequestExpired"),
        (
            client_error("AccessDenied", "no"),
            ExitCode.UNEXPECTED,
            "no permission for x:Y; allow it, or use a role that may; do z",
        ),
        (EndpointConnectionError(endpoint_url="https://x"), ExitCode.UNEXPECTED, "Could not connect"),
        (client_error("Throttling", "slow down"), ExitCode.UNEXPECTED, "slow down"),
    ],
)
def test_every_aws_error_is_one_of_ours_with_a_remedy(error: Exception, code: ExitCode, says: str) -> None:
    with pytest.raises(EksRayTrainError, match=says) as caught, aws_errors("x:Y", "do z"):
        raise error
    assert caught.value.exit_code is code


def test_errors_that_are_not_awss_pass_unchanged() -> None:
    with pytest.raises(KeyError), aws_errors("x:Y"):
        raise KeyError("bug")


def test_absence_has_many_names() -> None:
    codes = (
        "ResourceNotFoundException",
        "NotFoundException",
        "LoadBalancerNotFound",
        "InvalidVolume.NotFound",
        "ParameterNotFound",
    )
    assert all(is_absent(client_error(code)) for code in codes) and not is_absent(client_error("AccessDenied"))
