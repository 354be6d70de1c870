"""A stateful stand-in for the AWS calls of the capacity logic, with a clock, faults and a bill.

Every request and every answer is validated against botocore's own service models, so that a wrong parameter name or a
field that AWS never sends is an error here too. Faults hit the n-th call of a run, whichever client makes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import botocore.session
from botocore.exceptions import ClientError, ReadTimeoutError
from botocore.validate import ParamValidator

from eks_ray_train.capacity.aws import Aws
from tests.fake_calls import Calls, client_error
from tests.fake_resources import ACCOUNT, START, VCPUS

__all__ = ["ACCOUNT", "START", "VCPUS", "Client", "FakeAccount", "Fault", "ProcessKilled", "World", "client_error"]


class Fault(StrEnum):
    """What happens at one call. The ``_ON`` kinds last until the end of the run."""

    FAIL = "fail"
    THROTTLE = "throttle"
    TIMEOUT = "timeout"
    LOSE_ANSWER = "lose the answer"
    KILL_BEFORE = "kill before"
    KILL_AFTER = "kill after"
    FAIL_ON = "fail from here on"
    THROTTLE_ON = "throttle from here on"
    TIMEOUT_ON = "time out from here on"
    LOSE_ON = "lose every answer from here on"


class ProcessKilled(BaseException):
    """The process is gone: no handler may catch this, and nothing it calls afterwards has any effect."""


@functools.cache
def service_model(service: str) -> Any:
    return botocore.session.get_session().get_service_model(service)


def validate(shape: Any, value: Mapping[str, Any], where: str) -> None:
    """Types, required and unknown members, by botocore's model."""
    report = ParamValidator().validate(value, shape)
    assert not report.has_errors(), f"{where}: {report.generate_report()}"
    _no_unknown(shape, value, where)


def _no_unknown(shape: Any, value: Any, where: str) -> None:
    if shape.type_name == "structure":
        unknown = set(value) - set(shape.members)
        assert not unknown, f"{where}: {shape.name} has no {sorted(unknown)}"
        for name, inner in value.items():
            _no_unknown(shape.members[name], inner, where)
    elif shape.type_name == "list":
        for inner in value:
            _no_unknown(shape.member, inner, where)


@dataclass
class World(Calls):
    """The account as a client meets it: validated calls that take time and go wrong where a test says so."""

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)
    #: Operation -> an error that it always gives, or errors that it gives once each.
    errors: dict[str, Sequence[BaseException] | ClientError] = field(default_factory=dict)
    seconds_per_call: float = 0.2
    _lasting: Fault | None = None
    _dead: bool = False

    def run(self, faults: Mapping[int, Fault] | None = None) -> None:
        """A new process: the call counter starts at 0, nothing is broken but what ``faults`` says."""
        self.calls, self.faults, self._lasting, self._dead = [], dict(faults or {}), None, False

    def aws(self, **kwargs: Any) -> Aws:
        return Aws(
            ec2=Client(self, "ec2"),
            quotas=Client(self, "service-quotas"),
            cloudformation=Client(self, "cloudformation"),
            now=lambda: self.now,
            sleep=self.pass_time,
            **kwargs,
        )

    def pass_time(self, seconds: float) -> None:
        if self._dead:
            raise ProcessKilled
        super().pass_time(seconds)

    def count(self, operation: str) -> int:
        return sum(1 for name, _ in self.calls if name == operation)

    def perform(self, service: str, method: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        if self._dead:
            raise ProcessKilled
        model = service_model(service)
        operation = model.operation_model(_OPERATIONS[method])
        validate(operation.input_shape, kwargs, f"request {operation.name}")
        index = len(self.calls)
        self.calls.append((operation.name, kwargs))
        self.pass_time(self.seconds_per_call)
        fault = self.faults.get(index) or self._lasting
        if fault in (Fault.FAIL_ON, Fault.THROTTLE_ON, Fault.TIMEOUT_ON, Fault.LOSE_ON):
            self._lasting = fault
        self._before(fault, operation.name)
        planned = self.errors.get(operation.name)
        if isinstance(planned, list) and planned:
            raise planned.pop(0)
        if isinstance(planned, ClientError):
            raise planned
        answer: dict[str, Any] = getattr(self, f"_{method}")(**kwargs)
        validate(operation.output_shape, answer, f"answer {operation.name}")
        if fault is Fault.KILL_AFTER:
            self._dead = True
            raise ProcessKilled
        if fault in (Fault.LOSE_ANSWER, Fault.LOSE_ON):
            raise ReadTimeoutError(endpoint_url="https://ec2.example")
        return answer

    def _before(self, fault: Fault | None, operation: str) -> None:
        if fault is Fault.KILL_BEFORE:
            self._dead = True
            raise ProcessKilled
        if fault in (Fault.FAIL, Fault.FAIL_ON):
            raise client_error("InvalidParameterValue", "injected failure", operation)
        if fault in (Fault.THROTTLE, Fault.THROTTLE_ON):
            raise client_error("RequestLimitExceeded", "Request limit exceeded.", operation)
        if fault in (Fault.TIMEOUT, Fault.TIMEOUT_ON):
            raise ReadTimeoutError(endpoint_url="https://ec2.example")


class Client:
    """Looks like a boto3 client: keyword arguments in, a dict out, ``ClientError`` raised."""

    def __init__(self, world: World, service: str) -> None:
        self._world, self._service = world, service

    def __getattr__(self, method: str) -> Callable[..., dict[str, Any]]:
        if method not in _OPERATIONS:
            raise AttributeError(method)
        return lambda **kwargs: self._world.perform(self._service, method, kwargs)


_OPERATIONS = {
    "describe_availability_zones": "DescribeAvailabilityZones",
    "describe_instance_type_offerings": "DescribeInstanceTypeOfferings",
    "describe_instance_types": "DescribeInstanceTypes",
    "describe_instances": "DescribeInstances",
    "describe_capacity_reservations": "DescribeCapacityReservations",
    "create_capacity_reservation": "CreateCapacityReservation",
    "modify_capacity_reservation": "ModifyCapacityReservation",
    "cancel_capacity_reservation": "CancelCapacityReservation",
    "get_service_quota": "GetServiceQuota",
    "get_aws_default_service_quota": "GetAWSDefaultServiceQuota",
    "describe_regions": "DescribeRegions",
    "get_spot_placement_scores": "GetSpotPlacementScores",
    "describe_capacity_block_offerings": "DescribeCapacityBlockOfferings",
    "get_products": "GetProducts",
    "describe_stacks": "DescribeStacks",
}


class FakeAccount:
    """Stands in for ``cli.capacity_account.Account``: one world a region; prices and scores come from the home region."""

    def __init__(self, worlds: Mapping[str, World], home: str = "") -> None:
        self.worlds = worlds
        self.home = home or next(iter(worlds))
        self.id = ACCOUNT
        worlds[self.home].regions = list(worlds)

    @property
    def pricing(self) -> Client:
        return Client(self.worlds[self.home], "pricing")

    def aws_of(self, region: str) -> Aws:
        return self.worlds[region].aws()

    def enabled_regions(self) -> list[str]:
        return sorted(self.worlds)
