"""How the stand-in for AWS answers each call: from the account's resources, with AWS's error codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from tests.fake_resources import CODES, VCPUS, Resources


def client_error(code: str, message: str = "", operation: str = "Call") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message or code}}, operation)


@dataclass
class Calls(Resources):
    """One method a call, named after boto3's; keyword arguments in, the answer out."""

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
        known = {r["CapacityReservationId"]: r for r in self.reservations if self._is_known(r)}
        for wanted in CapacityReservationIds or ():
            if wanted not in known:
                raise client_error("InvalidCapacityReservationId.NotFound", f"{wanted} does not exist")
        names = {"state": "State", "instance-type": "InstanceType"}
        found = [
            _public(r)
            for r in known.values()
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

    def _is_known(self, held: Mapping[str, Any]) -> bool:
        return bool(self.now >= held["CreateDate"] + timedelta(seconds=self.unknown_seconds))

    def _ours(self, reservation_id: str) -> dict[str, Any]:
        for held in self.reservations:
            if held["CapacityReservationId"] == reservation_id and self._is_known(held):
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
