"""A stateful stand-in for the AWS calls of the capacity logic, with a clock, faults and a bill.

Every request and every answer is validated against botocore's own service models, so that a wrong parameter name or a
field that AWS never sends is an error here too. Faults hit the n-th call of a run, whichever client makes it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import botocore.session
from botocore.exceptions import ClientError, ReadTimeoutError
from botocore.validate import ParamValidator

from eks_ray_train.capacity.aws import Aws

ACCOUNT = "111122223333"
START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
VCPUS = {"g6.12xlarge": 48, "g5.12xlarge": 48, "p5.48xlarge": 192, "m7i.xlarge": 4, "g6.xlarge": 4}
CODES = {"g": "L-DB2E81BA", "p": "L-417A185B", "m": "L-1216C47A"}


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


def client_error(code: str, message: str = "", operation: str = "Call") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message or code}}, operation)


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
class World:
    """The account: zones, capacity, quota, reservations, instances, stacks; and the clock that moves with each call."""

    region: str = "us-west-2"
    zones: dict[str, str] = field(default_factory=lambda: {"us-west-2a": "usw2-az1", "us-west-2b": "usw2-az2"})
    zone_types: dict[str, str] = field(default_factory=dict)
    offers: dict[str, set[str]] = field(default_factory=dict)  # type -> zone ids; absent = everywhere
    free: dict[tuple[str, str], int] = field(default_factory=dict)  # (zone id, type) -> instances; absent = plenty
    quota: dict[str, int] = field(default_factory=lambda: {"L-DB2E81BA": 960, "L-417A185B": 1920})
    scores: dict[str, int] = field(default_factory=dict)  # zone id -> Spot placement score
    blocks: list[dict[str, Any]] = field(default_factory=list)  # Capacity Block offerings
    prices: dict[str, float] = field(default_factory=dict)  # region -> USD an hour
    regions: list[str] = field(default_factory=list)
    default_quota: dict[str, int] = field(default_factory=dict)
    page: int = 100
    pending_seconds: float = 0.0
    becomes: str = "active"
    create_error: dict[str, tuple[str, str]] = field(default_factory=dict)  # zone id -> (code, message)
    errors: dict[str, Sequence[BaseException] | ClientError] = field(
        default_factory=dict
    )  # operation -> always / once each
    now: datetime = START
    reservations: list[dict[str, Any]] = field(default_factory=list)
    instances: list[dict[str, Any]] = field(default_factory=list)
    stacks: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)
    bill: float = 0.0  # slot-seconds of reservations
    seconds_per_call: float = 0.2
    _tokens: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    _lasting: Fault | None = None
    _dead: bool = False
    _made: int = 0

    # -- the run ----------------------------------------------------------------------------------------------------
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
        """Moves the clock in steps at which reservations end, and bills every live slot."""
        if self._dead:
            raise ProcessKilled
        target = self.now + timedelta(seconds=seconds)
        while self.now < target:
            ends = [r["EndDate"] for r in self.reservations if r["State"] == "active" and r.get("EndDate")]
            step = min([target, *(e for e in ends if e > self.now)])
            slots = sum(r["TotalInstanceCount"] for r in self.reservations if r["State"] == "active")
            self.bill += slots * (step - self.now).total_seconds()
            self.now = step
            for r in self.reservations:
                if r["State"] == "active" and r.get("EndDate") and r["EndDate"] <= self.now:
                    r["State"] = "expired"
                if r["State"] == "pending" and r.get("_active_at", target) <= self.now and "_active_at" in r:
                    r["State"] = self.becomes

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

    # -- what a test arranges and asks ------------------------------------------------------------------------------
    def add_reservation(self, **fields: Any) -> dict[str, Any]:
        self._made += 1
        zone_id = fields.pop("zone_id", next(iter(self.zones.values())))
        total = fields.get("TotalInstanceCount", 2)
        made = {
            "CapacityReservationId": f"cr-{self._made:017x}",
            "OwnerId": ACCOUNT,
            "InstanceType": "g6.12xlarge",
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": next((n for n, i in self.zones.items() if i == zone_id), "elsewhere"),
            "AvailabilityZoneId": zone_id,
            "Tenancy": "default",
            "TotalInstanceCount": total,
            "AvailableInstanceCount": total,
            "State": "active",
            "EndDateType": "unlimited",
            "InstanceMatchCriteria": "targeted",
            "ReservationType": "default",
            "CreateDate": self.now,
            "Tags": [],
            **fields,
        }
        self.reservations.append(made)
        return made

    def launch(self, zone_id: str, kind: str, count: int, subnet: str = "", into: str = "", **fields: Any) -> None:
        """Starts instances, in a reservation where ``into`` names one."""
        name = next(n for n, i in self.zones.items() if i == zone_id)
        for _ in range(count):
            self._made += 1
            self.instances.append(
                {
                    "InstanceId": f"i-{self._made:017x}",
                    "InstanceType": kind,
                    "State": {"Name": "running", "Code": 16},
                    "SubnetId": subnet,
                    "Placement": {"AvailabilityZone": name, "Tenancy": "default"},
                    "CpuOptions": {"CoreCount": VCPUS[kind] // 2, "ThreadsPerCore": 2},
                    **({"CapacityReservationId": into} if into else {}),
                    **fields,
                }
            )
        for held in self.reservations:
            if held["CapacityReservationId"] == into:
                held["AvailableInstanceCount"] -= count

    def terminate(self, keep: int = 0) -> None:
        """Ends instances until ``keep`` are left; their slots are free again."""
        while len(self.instances) > keep:
            gone = self.instances.pop()
            for held in self.reservations:
                if held["CapacityReservationId"] == gone.get("CapacityReservationId") and held["State"] == "active":
                    held["AvailableInstanceCount"] += 1

    def active(self, stack_id: str | None = None) -> list[dict[str, Any]]:
        def ours(held: dict[str, Any]) -> bool:
            tags = {t["Key"]: t["Value"] for t in held["Tags"]}
            return stack_id is None or tags.get("eks-ray-train:stack-id") == stack_id

        return [r for r in self.reservations if r["State"] in ("active", "pending") and ours(r)]

    def count(self, operation: str) -> int:
        return sum(1 for name, _ in self.calls if name == operation)

    def used_vcpus(self, letter: str) -> int:
        running = sum(
            VCPUS[i["InstanceType"]]
            for i in self.instances
            if i["InstanceType"].startswith(letter) and i.get("InstanceLifecycle") is None
        )
        slots = sum(
            r["AvailableInstanceCount"] * VCPUS[r["InstanceType"]]
            for r in self.reservations
            if r["State"] in ("active", "pending")
            and r["InstanceType"].startswith(letter)
            and r["ReservationType"] == "default"
        )
        return running + slots

    # -- the calls --------------------------------------------------------------------------------------------------
    def _paged(self, key: str, found: list[Any], token: str | None) -> dict[str, Any]:
        start = int(token or 0)
        more = {"NextToken": str(start + self.page)} if start + self.page < len(found) else {}
        return {key: found[start : start + self.page], **more}

    def _describe_availability_zones(self, Filters: list[Any] | None = None, **_: Any) -> dict[str, Any]:
        wanted = next((f["Values"] for f in Filters or [] if f["Name"] == "zone-type"), None)
        zones = [
            {
                "ZoneName": name,
                "ZoneId": zone_id,
                "State": "available",
                "RegionName": self.region,
                "ZoneType": self.zone_types.get(name, "availability-zone"),
            }
            for name, zone_id in self.zones.items()
        ]
        return {"AvailabilityZones": [z for z in zones if wanted is None or z["ZoneType"] in wanted]}

    def _describe_instance_type_offerings(
        self, LocationType: str, Filters: list[Any], NextToken: str | None = None, **_: Any
    ) -> dict[str, Any]:
        kinds = next(f["Values"] for f in Filters if f["Name"] == "instance-type")
        found = [
            {"InstanceType": kind, "LocationType": LocationType, "Location": zone_id}
            for kind in kinds
            for zone_id in sorted(self.offers.get(kind, set(self.zones.values())))
        ]
        return self._paged("InstanceTypeOfferings", found, NextToken)

    def _describe_instance_types(self, InstanceTypes: list[str], **_: Any) -> dict[str, Any]:
        return {"InstanceTypes": [{"InstanceType": k, "VCpuInfo": {"DefaultVCpus": VCPUS[k]}} for k in InstanceTypes]}

    def _describe_instances(self, Filters: list[Any], NextToken: str | None = None, **_: Any) -> dict[str, Any]:
        wanted = {f["Name"]: f["Values"] for f in Filters}

        def fits(instance: dict[str, Any]) -> bool:
            def matches(pattern: str) -> bool:
                kind = instance["InstanceType"]
                return kind.startswith(pattern[:-1]) if pattern.endswith("*") else kind == pattern

            return (
                instance["State"]["Name"] in wanted.get("instance-state-name", [instance["State"]["Name"]])
                and ("subnet-id" not in wanted or instance["SubnetId"] in wanted["subnet-id"])
                and ("instance-type" not in wanted or any(map(matches, wanted["instance-type"])))
            )

        found = [{"Instances": [i]} for i in self.instances if fits(i)]
        return self._paged("Reservations", found, NextToken)

    def _describe_capacity_reservations(
        self,
        CapacityReservationIds: list[str] | None = None,
        Filters: list[Any] | None = None,
        NextToken: str | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        known = {r["CapacityReservationId"]: r for r in self.reservations}
        for wanted in CapacityReservationIds or ():
            if wanted not in known:
                raise client_error("InvalidCapacityReservationId.NotFound", f"{wanted} does not exist")
        names = {"state": "State", "instance-type": "InstanceType"}
        found = [
            _public(r)
            for r in self.reservations
            if (not CapacityReservationIds or r["CapacityReservationId"] in CapacityReservationIds)
            and all(r[names[f["Name"]]] in f["Values"] for f in Filters or [])
        ]
        return self._paged("CapacityReservations", found, NextToken)

    def _create_capacity_reservation(self, **asked: Any) -> dict[str, Any]:
        assert asked["InstanceMatchCriteria"] == "targeted", "an open reservation is eaten by unrelated launches"
        assert asked["EndDateType"] == "limited", "an unlimited reservation bills for ever when its maker dies"
        assert self.now < asked["EndDate"] <= self.now + timedelta(hours=1)
        assert asked["ClientToken"], "a repeated request would reserve twice"
        token = asked["ClientToken"]
        if token in self._tokens:
            before, made_id = self._tokens[token]
            if before != asked:
                raise client_error("IdempotentParameterMismatch")
            made = next(r for r in self.reservations if r["CapacityReservationId"] == made_id)
            return {"CapacityReservation": _public(made)}
        kind, zone_id, count = asked["InstanceType"], asked["AvailabilityZoneId"], asked["InstanceCount"]
        if zone_id in self.create_error:
            raise client_error(*self.create_error[zone_id])
        if zone_id not in self.offers.get(kind, set(self.zones.values())):
            raise client_error("Unsupported", f"{kind} is not supported in {zone_id}")
        self._take(kind, zone_id, count)
        made = self.add_reservation(
            zone_id=zone_id,
            InstanceType=kind,
            TotalInstanceCount=count,
            AvailableInstanceCount=count,
            EndDateType="limited",
            EndDate=asked["EndDate"],
            Tags=asked["TagSpecifications"][0]["Tags"],
            State="pending" if self.pending_seconds else "active",
        )
        made["_active_at"] = self.now + timedelta(seconds=self.pending_seconds)
        self._tokens[token] = (asked, made["CapacityReservationId"])
        return {"CapacityReservation": _public(made)}

    def _take(self, kind: str, zone_id: str, count: int) -> None:
        if self.used_vcpus(kind[0]) + count * VCPUS[kind] > self.quota.get(CODES[kind[0]], 0):
            raise client_error("VcpuLimitExceeded", "You have requested more vCPU capacity than your current limit")
        taken = sum(
            r["AvailableInstanceCount"]
            for r in self.reservations
            if r["State"] in ("active", "pending") and (r["AvailabilityZoneId"], r["InstanceType"]) == (zone_id, kind)
        ) + sum(
            1
            for i in self.instances
            if i["InstanceType"] == kind and self.zones[i["Placement"]["AvailabilityZone"]] == zone_id
        )
        if taken + count > self.free.get((zone_id, kind), 10_000):
            raise client_error("InsufficientInstanceCapacity", f"Insufficient capacity for {kind} in {zone_id}.")

    def _modify_capacity_reservation(
        self, CapacityReservationId: str, InstanceCount: int, EndDateType: str, EndDate: datetime
    ) -> dict[str, Any]:
        held = self._ours(CapacityReservationId)
        if held["State"] != "active":
            raise client_error("InvalidCapacityReservationState", f"{CapacityReservationId} is {held['State']}")
        assert EndDateType == "limited" and self.now < EndDate <= self.now + timedelta(hours=1)
        more = InstanceCount - held["TotalInstanceCount"]
        if more > 0:
            self._take(held["InstanceType"], held["AvailabilityZoneId"], more)
        if held["AvailableInstanceCount"] + more < 0:
            raise client_error("InvalidParameterValue", "fewer than the instances that run in it")
        held["TotalInstanceCount"] += more
        held["AvailableInstanceCount"] += more
        held["EndDate"] = EndDate
        return {"Return": True}

    def _cancel_capacity_reservation(self, CapacityReservationId: str) -> dict[str, Any]:
        held = self._ours(CapacityReservationId)
        if held["State"] not in ("active", "assessing"):
            raise client_error("InvalidCapacityReservationState", f"{CapacityReservationId} is {held['State']}")
        held["State"] = "cancelled"
        return {"Return": True}

    def _ours(self, reservation_id: str) -> dict[str, Any]:
        for held in self.reservations:
            if held["CapacityReservationId"] == reservation_id:
                assert held["Tags"], f"{reservation_id} is a user's own: it must never be changed"
                return held
        raise client_error("InvalidCapacityReservationId.NotFound", f"{reservation_id} does not exist")

    def _get_service_quota(self, ServiceCode: str, QuotaCode: str) -> dict[str, Any]:
        if QuotaCode not in self.quota:
            raise client_error("NoSuchResourceException")
        return {"Quota": {"ServiceCode": ServiceCode, "QuotaCode": QuotaCode, "Value": float(self.quota[QuotaCode])}}

    def _get_aws_default_service_quota(self, ServiceCode: str, QuotaCode: str) -> dict[str, Any]:
        value = float(self.default_quota.get(QuotaCode, 0))
        return {"Quota": {"ServiceCode": ServiceCode, "QuotaCode": QuotaCode, "Value": value}}

    def _describe_regions(self) -> dict[str, Any]:
        return {"Regions": [{"RegionName": name, "OptInStatus": "opt-in-not-required"} for name in self.regions]}

    def _get_spot_placement_scores(
        self, InstanceTypes: list[str], TargetCapacity: int, SingleAvailabilityZone: bool, RegionNames: list[str]
    ) -> dict[str, Any]:
        assert len(RegionNames) <= 10, "EC2 takes at most ten regions a call"
        scores = [{"Region": "r", "AvailabilityZoneId": zone, "Score": score} for zone, score in self.scores.items()]
        return {"SpotPlacementScores": scores}

    def _describe_capacity_block_offerings(self, **asked: Any) -> dict[str, Any]:
        assert asked["CapacityDurationHours"] % 24 == 0
        return {"CapacityBlockOfferings": self.blocks}

    def _get_products(self, ServiceCode: str, Filters: list[Any], NextToken: str | None = None) -> dict[str, Any]:
        def entry(region: str, usd: float) -> str:
            terms = {"OnDemand": {"t": {"priceDimensions": {"d": {"pricePerUnit": {"USD": f"{usd:.10f}"}}}}}}
            return json.dumps({"product": {"attributes": {"regionCode": region}}, "terms": terms})

        return self._paged("PriceList", [entry(r, p) for r, p in self.prices.items()], NextToken)

    def _describe_stacks(self, StackName: str) -> dict[str, Any]:
        if StackName not in self.stacks:
            raise client_error("ValidationError", f"Stack with id {StackName} does not exist")
        status, created = self.stacks[StackName]
        return {"Stacks": [{"StackName": "s", "StackStatus": status, "CreationTime": created}]}


def _public(held: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in held.items() if not key.startswith("_")}


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
