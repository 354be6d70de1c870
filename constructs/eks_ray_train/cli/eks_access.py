"""The way to an EKS cluster's API: where it is (EKS API) and a token for it (a presigned question to STS who is calling)."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from eks_ray_train.errors import ClusterNotReadyError

# EKS accepts a token for 15 minutes (https://docs.aws.amazon.com/eks/latest/best-practices/identity-and-access-management.html).
RENEW_AFTER_S = 10 * 60
_PRESIGNED_S = 60
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_INVALID = frozenset({"InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSignatureException"})


class NoAnswer(ClusterNotReadyError):
    """The cluster's API gives no answer, or says itself that it is in trouble; it may come back."""


class OddAnswer(NoAnswer):
    """Something answers, but not as the API would (a proxy's page of HTML, say): nothing is known of what was asked about."""

    def __init__(self, what: str, error: BaseException) -> None:
        said = " ".join(str(error).split())[:160]
        super().__init__(
            f"{what}: the answer is not one of that API ({type(error).__name__}: {said}); see whether a proxy answers in its "
            "place (HTTPS_PROXY, NO_PROXY), and try again"
        )


@dataclass(frozen=True, kw_only=True)
class EksCluster:
    """One cluster as the EKS API describes it. ``ca``: its certificate authority, PEM; ``public_cidrs`` empty: private only."""

    name: str
    region: str
    endpoint: str
    ca: bytes
    public: bool
    public_cidrs: tuple[str, ...]
    status: str = "ACTIVE"

    @property
    def host(self) -> str:
        """Name of the endpoint, as its certificate has it."""
        return urlsplit(self.endpoint).hostname or self.endpoint

    def unreachable(self, reason: str) -> NoAnswer:
        """The endpoint does not answer: what to change, and the way without changing it."""
        if self.public:
            why = f"it lets in {', '.join(self.public_cidrs)}" if self.public_cidrs else "it is public"
        else:
            why = "it is private: only the VPC reaches it"
        return NoAnswer(
            f"the API of cluster {self.name} cannot be reached from here ({why}; {reason}). Either put your address into "
            "public_access_cidrs in cdk.json (eks-ray-train init finds it) and deploy, or open a tunnel through one of its nodes:\n"
            f"  aws ssm start-session --region {self.region} --target INSTANCE_ID --document-name "
            f"AWS-StartPortForwardingSessionToRemoteHost --parameters host={self.host},portNumber=443,localPortNumber=8443\n"
            "  EKS_RAY_TRAIN_ENDPOINT=https://127.0.0.1:8443 eks-ray-train …\n"
            f"  (INSTANCE_ID: aws ec2 describe-instances --region {self.region} --filters "
            f"Name=tag:eks:cluster-name,Values={self.name} Name=instance-state-name,Values=running "
            "--query 'Reservations[].Instances[].InstanceId')"
        )


def make_session(region: str | None) -> tuple[Any, str]:
    """(boto3 session, region). Raises UsageError where neither settings nor environment name a region."""
    from .aws_session import home_region, profile_session

    session = profile_session()
    chosen = home_region(session, region)
    return session, chosen


def client_config() -> Any:
    """Short time limits: a command must say within 10 s that nobody answers."""
    from botocore.config import Config

    return Config(connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 2, "mode": "standard"})


def describe_cluster(session: Any, *, name: str, region: str) -> EksCluster:
    """Where the cluster is. Raises ClusterNotReadyError: no credentials, expired ones, no such cluster, not active."""
    client = session.client("eks", region_name=region, config=client_config())

    def describe() -> EksCluster:
        data = client.describe_cluster(name=name)["cluster"]
        if data["status"] not in ("ACTIVE", "UPDATING"):  # its API answers while EKS updates it
            raise ClusterNotReadyError(
                f"cluster {name} in {region} is {data['status']}, not ACTIVE; wait for the deploy (or the deletion) to end"
            )
        vpc = data.get("resourcesVpcConfig") or {}
        return EksCluster(
            name=name,
            region=region,
            endpoint=data["endpoint"],
            ca=base64.b64decode(data["certificateAuthority"]["data"]),
            public=bool(vpc.get("endpointPublicAccess")),
            public_cidrs=tuple(vpc.get("publicAccessCidrs") or ()),
            status=data["status"],
        )

    found: EksCluster = _ask(describe, what="eks:DescribeCluster", name=name, region=region)
    return found


def who_is_calling(session: Any, *, name: str, region: str) -> str:
    """The caller's ARN. Raises ClusterNotReadyError where the credentials are missing, over or wrong."""
    client = session.client("sts", region_name=region, config=client_config())
    return str(_ask(lambda: client.get_caller_identity()["Arn"], what="sts:GetCallerIdentity", name=name, region=region))


def caller_arn(session: Any, region: str) -> str:
    """Who is calling, for a message; ``unknown`` where STS does not say."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        return str(session.client("sts", region_name=region, config=client_config()).get_caller_identity()["Arn"])
    except (BotoCoreError, ClientError, ResponseParserError, KeyError):
        return "unknown"


class TokenSource:
    """Bearer tokens for one cluster, made anew after ten minutes (they end after fifteen). Thread-safe by being idempotent."""

    def __init__(self, session: Any, *, cluster: str, region: str, clock: Callable[[], float] = time.time) -> None:
        self._session = session
        self._cluster = cluster
        self._region = region
        self._clock = clock
        self._token = ""
        self._made = 0.0

    def token(self) -> str:
        """A token that is good for some minutes yet. Raises ClusterNotReadyError where there are no credentials."""
        if not self._token or self._clock() - self._made > RENEW_AFTER_S:
            self._token = _ask(self._make, what="sts:GetCallerIdentity", name=self._cluster, region=self._region)
            self._made = self._clock()
        return self._token

    def _make(self) -> str:
        from botocore.exceptions import NoCredentialsError
        from botocore.signers import RequestSigner

        client = self._session.client("sts", region_name=self._region, config=client_config())
        credentials = self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError()
        signer = RequestSigner(client.meta.service_model.service_id, self._region, "sts", "v4", credentials, self._session.events)
        url = signer.generate_presigned_url(
            {
                "method": "GET",
                "url": f"{client.meta.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
                "body": {},
                "headers": {"x-k8s-aws-id": self._cluster},
                "context": {},
            },
            region_name=self._region,
            expires_in=_PRESIGNED_S,
            operation_name="",
        )
        return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def _ask(call: Callable[[], Any], *, what: str, name: str, region: str) -> Any:
    """Make an AWS call and read its answer; errors of both become messages with a remedy."""
    from botocore import exceptions as aws
    from botocore.parsers import ResponseParserError

    login = "sign in again (aws sso login, or new AWS_ACCESS_KEY_ID and AWS_SESSION_TOKEN)"
    try:
        return call()
    except (aws.NoCredentialsError, aws.PartialCredentialsError):
        raise ClusterNotReadyError("no AWS credentials found; set AWS_PROFILE, or sign in with aws sso login or aws configure") from None
    except (aws.TokenRetrievalError, aws.UnauthorizedSSOTokenError, aws.SSOTokenLoadError, aws.CredentialRetrievalError) as error:
        raise ClusterNotReadyError(f"the AWS credentials cannot be renewed ({error}); {login}") from None
    except aws.ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _EXPIRED:
            raise ClusterNotReadyError(f"the AWS credentials have expired; {login}") from None
        if code in _INVALID:
            raise ClusterNotReadyError(f"AWS does not accept the credentials ({code}); check AWS_PROFILE, or {login}") from None
        if code == "ResourceNotFoundException":
            raise ClusterNotReadyError(
                f"there is no EKS cluster {name} in {region} in this account; deploy it (eks-ray-train up, or cdk deploy --all), "
                "or correct cluster_name and region in cdk.json"
            ) from None
        if code in ("AccessDeniedException", "AccessDenied"):
            raise ClusterNotReadyError(f"this identity may not call {what} ({error.response['Error'].get('Message')}); allow it in its IAM policy, or use another role") from None
        raise ClusterNotReadyError(f"{what} failed: {error}; try again, and see eks-ray-train doctor") from None
    except (ResponseParserError, KeyError, TypeError, AttributeError) as error:
        raise OddAnswer(what, error) from None
    except aws.BotoCoreError as error:
        raise ClusterNotReadyError(f"{what}: AWS cannot be reached ({error}); check the network, a proxy, and the region {region}") from None
