"""The caller's AWS session for the commands that deploy: clients, who calls, what an AWS error means to a user."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any, Protocol

from eks_ray_train.errors import EksRayTrainError, UsageError

LOG_IN = "log in (aws sso login, or AWS_PROFILE=…) and try again"
# Codes of credentials that are wrong or over, in the words of STS, EC2 and the JSON services.
# https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html
_EXPIRED = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "AuthFailure",
        "SignatureDoesNotMatch",
        "InvalidToken",
    }
)
_DENIED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "UnauthorizedOperation",
        "AuthorizationError",
        "Client.UnauthorizedOperation",
    }
)


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who signs the requests: account id and the ARN as STS gives it."""

    account: str
    arn: str


class Session(Protocol):
    """What the commands need of AWS; tests hand in a stand-in."""

    @property
    def home(self) -> str: ...
    def client(self, service: str, region: str | None = None) -> Any: ...
    def caller(self) -> Caller: ...


def profile_session() -> Any:
    """The boto3 session of the caller's profile. Raises UsageError where the profile does not exist."""
    import boto3
    from botocore.exceptions import ProfileNotFound

    try:
        return boto3.Session()
    except ProfileNotFound as error:
        raise UsageError(f"{error}; set AWS_PROFILE to one that `aws configure list-profiles` shows") from None


def home_region(session: Any, given: str | None) -> str:
    """The region asked for, the environment's or the profile's. Raises UsageError without one, naming ways that every command has.

    boto3 itself reads AWS_DEFAULT_REGION only; the CDK and the other SDKs read AWS_REGION first.
    """
    home = given or os.environ.get("AWS_REGION") or session.region_name
    if not home:
        raise UsageError("no region is known; set region in cdk.json's eks-ray-train block, or set AWS_REGION")
    return str(home)


class BotoSession:
    """boto3 clients of one session, made once each. Raises UsageError where no region or no such profile is known."""

    def __init__(self, region: str | None = None) -> None:
        from botocore.config import Config

        self._session = profile_session()
        self._home = home_region(self._session, region)
        self._config = Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 4, "mode": "standard"})
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], Any] = {}

    @property
    def home(self) -> str:
        return self._home

    def client(self, service: str, region: str | None = None) -> Any:
        key = (service, region or self._home)
        with self._lock:  # creating clients of one session is not thread-safe; using them is
            if key not in self._clients:
                self._clients[key] = self._session.client(service, region_name=key[1], config=self._config)
            return self._clients[key]

    def caller(self) -> Caller:
        """Raises UsageError (exit code 2) where there are no credentials, or they are over."""
        with aws_errors("sts:GetCallerIdentity"):
            answer = self.client("sts").get_caller_identity()
        return Caller(account=str(answer["Account"]), arn=str(answer["Arn"]))


def open_session(region: str | None) -> Session:
    """The caller's session; tests put a stand-in here."""
    return BotoSession(region)


def error_code(error: BaseException) -> str:
    """AWS's error code, or the exception's class name where there was no answer."""
    response = getattr(error, "response", None)
    return str(response["Error"]["Code"]) if response else type(error).__name__


def is_denied(error: BaseException) -> bool:
    return error_code(error) in _DENIED


def is_absent(error: BaseException) -> bool:
    """The thing asked for does not exist."""
    code = error_code(error)
    return code.endswith(("NotFound", "NotFoundException", "NotFoundFault", ".NotFound")) or code in (
        "NoSuchEntity",
        "NoSuchBucket",
        "ParameterNotFound",
    )


def explain(action: str, error: BaseException) -> str:
    """One line: what was asked and why it was not answered."""
    if is_denied(error):
        return f"no permission for {action}"
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"{action}: {text[:300]}"


class aws_errors:
    """Turns botocore's errors into ours: credentials that are missing or over are the user's to fix (exit code 2)."""

    def __init__(self, action: str, remedy: str = "") -> None:
        self._action, self._remedy = action, f"; {remedy}" if remedy else ""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
        from botocore.parsers import ResponseParserError

        if isinstance(error, ResponseParserError):  # a proxy's page, say; botocore counts it to none of its errors
            raise EksRayTrainError(
                f"{explain(self._action, error)}; see whether a proxy answers in AWS's place (HTTPS_PROXY, NO_PROXY), and try again"
            ) from None
        if not isinstance(error, ClientError | BotoCoreError):
            return
        words = type(error).__name__
        if isinstance(error, NoCredentialsError) or "Credential" in words or "Token" in words or "SSO" in words:
            raise UsageError(f"no usable AWS credentials: {error}; {LOG_IN}") from None
        if error_code(error) in _EXPIRED:
            raise UsageError(f"AWS refuses the credentials ({error_code(error)}): {LOG_IN}") from None
        if is_denied(error):
            raise EksRayTrainError(
                f"no permission for {self._action}; allow it, or use a role that may{self._remedy}"
            ) from None
        raise EksRayTrainError(f"{explain(self._action, error)}{self._remedy}") from None
