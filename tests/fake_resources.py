"""The account behind the stand-in for EC2: what it has, what time it is there, and what its reservations have cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

ACCOUNT = "111122223333"
START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
VCPUS = {"g6.12xlarge": 48, "g5.12xlarge": 48, "p5.48xlarge": 192, "m7i.xlarge": 4, "g6.xlarge": 4}
CODES = {"g": "L-DB2E81BA", "p": "L-417A185B", "m": "L-1216C47A"}


@dataclass
class Resources:
    """What the account has: zones, capacity, quota, reservations, instances, stacks; the clock, and the bill."""

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
    unknown_seconds: float = 0.0  # how long EC2 does not know the id of a reservation that it has just given
    becomes: str = "active"
    create_error: dict[str, tuple[str, str]] = field(default_factory=dict)  # zone id -> (code, message)
    now: datetime = START
    reservations: list[dict[str, Any]] = field(default_factory=list)
    instances: list[dict[str, Any]] = field(default_factory=list)
    stacks: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    bill: float = 0.0  # slot-seconds of reservations
    _tokens: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    _made: int = 0

    def pass_time(self, seconds: float) -> None:
        """Moves the clock in steps at which reservations end, and bills every live slot."""
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
