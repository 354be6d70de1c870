"""How AWS is called: protocols of the clients, retries, pages, and what an error code means for us."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

Answer = dict[str, Any]
Call = Callable[..., Any]


class Ec2Client(Protocol):
    """The EC2 calls of handler and command line. A boto3 client fits; so does the tests' stand-in."""

    def describe_availability_zones(self, **kwargs: Any) -> Any: ...
    def describe_instance_type_offerings(self, **kwargs: Any) -> Any: ...
    def describe_instance_types(self, **kwargs: Any) -> Any: ...
    def describe_instances(self, **kwargs: Any) -> Any: ...
    def describe_capacity_reservations(self, **kwargs: Any) -> Any: ...
    def create_capacity_reservation(self, **kwargs: Any) -> Any: ...
    def modify_capacity_reservation(self, **kwargs: Any) -> Any: ...
    def cancel_capacity_reservation(self, **kwargs: Any) -> Any: ...
    def describe_regions(self, **kwargs: Any) -> Any: ...
    def get_spot_placement_scores(self, **kwargs: Any) -> Any: ...
    def describe_capacity_block_offerings(self, **kwargs: Any) -> Any: ...


class QuotasClient(Protocol):
    """The Service Quotas calls."""

    def get_service_quota(self, **kwargs: Any) -> Any: ...
    def get_aws_default_service_quota(self, **kwargs: Any) -> Any: ...


class PricingClient(Protocol):
    """The Price List API."""

    def get_products(self, **kwargs: Any) -> Any: ...


class CloudFormationClient(Protocol):
    """Only the state and age of our own stack are asked."""

    def describe_stacks(self, **kwargs: Any) -> Any: ...


class Refusal(StrEnum):
    """Why EC2 said no, by what we do about it."""

    CAPACITY = "no capacity"  # try the next zone
    UNSUPPORTED = "not offered"  # try the next zone
    QUOTA = "quota too small"  # stop: every zone shares the quota
    THROTTLED = "throttled"  # backed off already
    DENIED = "not permitted"
    NOT_ENABLED = "not enabled"
    EXPIRED = "credentials are over"  # log in again; every zone would answer the same
    UNREACHABLE = "no answer"
    INVALID = "refused"


# EC2 models no exceptions; names: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
_REFUSALS = {
    "InsufficientInstanceCapacity": Refusal.CAPACITY,
    "InsufficientCapacity": Refusal.CAPACITY,
    "ReservationCapacityExceeded": Refusal.CAPACITY,
    "Unsupported": Refusal.UNSUPPORTED,
    "UnsupportedOperation": Refusal.UNSUPPORTED,
    "InstanceLimitExceeded": Refusal.QUOTA,
    "VcpuLimitExceeded": Refusal.QUOTA,
    "UnauthorizedOperation": Refusal.DENIED,
    "AccessDenied": Refusal.DENIED,
    "AccessDeniedException": Refusal.DENIED,
    "AuthFailure": Refusal.NOT_ENABLED,
    "OptInRequired": Refusal.NOT_ENABLED,
    "InvalidClientTokenId": Refusal.NOT_ENABLED,
    "UnrecognizedClientException": Refusal.NOT_ENABLED,
    "PendingVerification": Refusal.NOT_ENABLED,
    "ExpiredToken": Refusal.EXPIRED,
    "ExpiredTokenException": Refusal.EXPIRED,
    "RequestExpired": Refusal.EXPIRED,
}
_TRANSIENT = frozenset(
    {
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "RequestThrottled",
        "Unavailable",
        "ServiceUnavailable",
        "InternalError",
        "InternalFailure",
        "ServiceException",
    }
)
#: Less than this before the process is killed, and nothing is tried again: the clean-up needs the time.
_LAST_SECONDS = 45
AWS_ERRORS = (ClientError, BotoCoreError)
# botocore has no common class for credentials that are missing or over: NoCredentialsError, UnauthorizedSSOTokenError, …
_CREDENTIAL_WORDS = ("Credential", "Token", "SSO")


def error_code(error: BaseException) -> str:
    """EC2's error code, or the exception's class name where the request got no answer."""
    response = getattr(error, "response", None)
    return str(response["Error"]["Code"]) if response else type(error).__name__


def refusal_of(error: BaseException) -> Refusal:
    """What the error means for us; unknown codes are INVALID, which stops."""
    code = error_code(error)
    if code in _TRANSIENT:
        return Refusal.THROTTLED
    if isinstance(error, BotoCoreError):
        over = any(word in type(error).__name__ for word in _CREDENTIAL_WORDS)
        return Refusal.EXPIRED if over else Refusal.UNREACHABLE
    return _REFUSALS.get(code, Refusal.INVALID)


def error_text(error: BaseException) -> str:
    """``Code: first line of the message``, at most 200 characters."""
    response = getattr(error, "response", None)
    message = str(response["Error"].get("Message", "")) if response else str(error)
    return f"{error_code(error)}: {message.splitlines()[0] if message else ''}"[:200].rstrip(": ")


def explain(action: str, error: BaseException) -> str:
    """One column's reason for being unknown: a missing permission by its name, anything else as AWS says it."""
    refusal = refusal_of(error)
    if refusal is Refusal.DENIED:
        return f"no permission for {action}"
    if refusal is Refusal.NOT_ENABLED:
        return "region not enabled"
    return f"{action}: {error_text(error)}"


@dataclass(frozen=True, kw_only=True)
class Aws:
    """Clients, clock and patience of one run. ``deadline`` is when the process will be killed (UTC)."""

    ec2: Ec2Client
    quotas: QuotasClient | None = None
    cloudformation: CloudFormationClient | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    sleep: Callable[[float], None] = time.sleep
    deadline: datetime | None = None
    attempts: int = 5

    def seconds_left(self) -> float:
        return float("inf") if self.deadline is None else (self.deadline - self.now()).total_seconds()

    def call(self, method: Call, **kwargs: Any) -> Answer:
        """Calls with full-jitter backoff on throttling and lost answers.

        Every call made here is safe to repeat: reads, absolute changes, and creation under a ``ClientToken``.
        Raises the last ``ClientError`` or ``BotoCoreError``.
        """
        for attempt in range(1, self.attempts + 1):
            try:
                answer: Answer = method(**kwargs)
                return answer
            except AWS_ERRORS as error:
                transient = refusal_of(error) in (Refusal.THROTTLED, Refusal.UNREACHABLE)
                if not transient or attempt == self.attempts or self.seconds_left() < _LAST_SECONDS:
                    raise
            self.sleep(random.uniform(0, min(8.0, 0.4 * 2**attempt)))
        raise AssertionError("unreachable")

    def pages(self, method: Call, key: str, **kwargs: Any) -> Iterator[Any]:
        """All elements under ``key`` over all pages (the answer of page one may be empty and still go on)."""
        token: str | None = None
        while True:
            answer = self.call(method, **kwargs, **({"NextToken": token} if token else {}))
            yield from answer.get(key, ())
            token = answer.get("NextToken")
            if not token:
                return
