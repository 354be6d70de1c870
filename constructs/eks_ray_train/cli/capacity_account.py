"""The caller's AWS account as the search needs it: who it is, which regions it has, clients by region."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any

from eks_ray_train.capacity.aws import Aws, PricingClient
from eks_ray_train.capacity.market import enabled_regions
from eks_ray_train.errors import UsageError

from .aws_session import home_region, profile_session

# The Price List API has few endpoints; this one answers for all regions.
# https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html
PRICING_REGION = "us-east-1"


class Account:
    """boto3 clients of one session. Raises UsageError where no credentials are found or no region is known."""

    def __init__(self, region: str | None) -> None:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        self._session = profile_session()
        self.home = home = home_region(self._session, region)
        # aws.Aws.call retries; a second layer below it would only multiply the waiting.
        self._config = Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 1, "mode": "standard"})
        self._lock = threading.Lock()
        self._aws: dict[str, Aws] = {}
        try:
            self.id: str = self._client("sts", home).get_caller_identity()["Account"]
        except ClientError:
            self.id = ""  # expired or restricted: each column then says what it lacks
        except BotoCoreError as error:
            raise UsageError(
                f"AWS cannot be asked: {error}; log in (aws sso login, or AWS_PROFILE=…) and try again"
            ) from None

    def _client(self, service: str, region: str) -> Any:
        with self._lock:  # creating clients of one session is not thread-safe; using them is
            return self._session.client(service, region_name=region, config=self._config)

    def aws_of(self, region: str) -> Aws:
        """Clients of one region, made once."""
        if region not in self._aws:
            ec2, quotas = self._client("ec2", region), self._client("service-quotas", region)
            self._aws[region] = Aws(ec2=ec2, quotas=quotas, attempts=4)
        return self._aws[region]

    @cached_property
    def pricing(self) -> PricingClient:
        client: PricingClient = self._client("pricing", PRICING_REGION)
        return client

    def enabled_regions(self) -> list[str]:
        aws = self.aws_of(self.home)
        return enabled_regions(aws, aws.ec2)
