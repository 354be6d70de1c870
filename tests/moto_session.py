"""A session for the command line whose clients are moto's, but for what moto does not have."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3
import moto  # noqa: F401  hooks into botocore, which must come before the first client

from eks_ray_train.cli.aws_session import Caller
from tests.fake_cdk import CdkWorld, FakeClient
from tests.fake_ec2 import ACCOUNT, Client, World, client_error

_SESSION = boto3.Session(aws_access_key_id="x", aws_secret_access_key="x", region_name="us-west-2")
_MAKING = threading.Lock()


@functools.cache
def moto_client(service: str, region: str = "us-west-2") -> Any:
    """Made once a run: reading EC2's model takes seconds. moto answers it inside ``mock_aws`` (and nobody does outside)."""
    with _MAKING:
        return _SESSION.client(service, region_name=region)  # type: ignore[call-overload]


@dataclass
class MotoSession:
    """CloudFormation is the stand-in's, reservations are the stateful world's, everything else is moto's.

    ``denied``: names of operations that the caller may not use. ``extra``: canned pages of operations that moto lacks.
    """

    stacks: CdkWorld
    ec2: World
    home: str = "us-west-2"
    denied: set[str] = field(default_factory=set)
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    arn: str = f"arn:aws:iam::{ACCOUNT}:user/me"

    def caller(self) -> Caller:
        return Caller(account=ACCOUNT, arn=self.arn)

    def client(self, service: str, region: str | None = None) -> Any:
        if service == "cloudformation":
            return FakeClient(self.stacks, service, region or self.home)
        return _Guarded(self, service, moto_client(service, region or self.home))


@dataclass
class _Guarded:
    """One boto3 client with refusals and replacements in front."""

    session: MotoSession
    service: str
    real: Any

    def __getattr__(self, method: str) -> Any:
        def call(**kwargs: Any) -> Any:
            if method in self.session.denied:
                code = "UnauthorizedOperation" if self.service == "ec2" else "AccessDeniedException"
                raise client_error(code, "not authorized", method)
            if method in self.session.extra:
                return self.session.extra[method]
            if method == "describe_capacity_reservations":
                return getattr(Client(self.session.ec2, "ec2"), method)(**kwargs)
            return getattr(self.real, method)(**kwargs)

        return call

    def get_paginator(self, method: str) -> Any:
        own = (*self.session.denied, *self.session.extra, "describe_capacity_reservations")
        if method not in own:
            return self.real.get_paginator(method)
        client = self

        class Pages:
            def paginate(self, **kwargs: Any) -> Iterator[Any]:
                yield getattr(client, method)(**kwargs)

        return Pages()
