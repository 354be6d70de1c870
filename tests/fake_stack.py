"""What CloudFormation and CDK's provider framework do around the handler: which event follows which ending.

The framework's rule that matters: a Create that failed gets a marker as physical id, and the Delete of that marker is
answered by the framework itself; the handler never sees it (provider-framework/runtime/cfn-response.js).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eks_ray_train.capacity.handler import answer
from eks_ray_train.capacity.hold import watch
from tests.fake_ec2 import ACCOUNT, Fault, ProcessKilled, World

STACK_ID = f"arn:aws:cloudformation:us-west-2:{ACCOUNT}:stack/training/0a1b2c3d"
_FAILED = "AWSCDK::CustomResourceProviderFramework::CREATE_FAILED"
_CLAIM_ID = "c8a1f"


def properties(world: World, **changes: Any) -> dict[str, Any]:
    """The claim's properties as CloudFormation delivers them: every scalar is a string."""
    names = list(world.zones)
    return {
        "ServiceToken": "arn",
        "Owner": _CLAIM_ID,
        "InstanceType": "g6.12xlarge",
        "VcpusPerNode": "48",
        "QuotaCode": "L-DB2E81BA",
        "NodeCount": "2",
        "Capacity": "probe",
        "ReservationId": "",
        "AccountId": ACCOUNT,
        "Region": world.region,
        "Zones": names,
        "SubnetIds": [f"subnet-{world.zones[name]}" for name in names],
        "PreferredZone": "",
        "LimitAt": "",
        **changes,
    }


@dataclass
class Outcome:
    """One event's ending as CloudFormation sees it."""

    ok: bool
    physical_id: str
    data: dict[str, str]
    reason: str = ""


@dataclass
class FakeStack:
    """A training stack: guard, claim, nodes. ``faults`` hit the events whose name (``Create Claim``) they are under."""

    world: World
    faults: dict[str, Mapping[int, Fault]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)  # event name -> calls it made
    claim: Outcome | None = None
    told: dict[str, Any] = field(default_factory=dict)
    status: str = "CREATE_IN_PROGRESS"
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    def send(
        self, name: str, kind: str, physical_id: str, props: dict[str, Any], old: Any = None, request: str = ""
    ) -> Outcome:
        """Delivers one event to the handler, as a new process, through the framework's rules."""
        self.world.stacks[STACK_ID] = (self.status, self.world.stacks.get(STACK_ID, ("", self.world.now))[1])
        request = request or name.split()[0]
        if request == "Delete" and physical_id == _FAILED:
            return Outcome(ok=True, physical_id=physical_id, data={})
        event = {
            "RequestType": request,
            "ResourceType": f"Custom::{kind}",
            "RequestId": f"request-{next(self._ids)}",
            "StackId": STACK_ID,
            "LogicalResourceId": kind,
            "ResourceProperties": props,
            **({"PhysicalResourceId": physical_id} if physical_id else {}),
            **({"OldResourceProperties": old} if old is not None else {}),
        }
        self.world.run(self.faults.pop(name, None))
        try:
            result = answer(event, self.world.aws())
            outcome = Outcome(ok=True, physical_id=result["PhysicalResourceId"], data=result.get("Data", {}))
        except (Exception, ProcessKilled) as error:
            outcome = Outcome(ok=False, physical_id=physical_id or _FAILED, data={}, reason=str(error))
        self.seen[name] = len(self.world.calls)
        self.world.run()
        return outcome

    def create(self, **changes: Any) -> Outcome:
        self.told = properties(self.world, **changes)
        limit = self.send("Create Limit", "SpendingLimit", "", {"Owner": _CLAIM_ID, "MaxHours": "0"})
        self.claim = self.send("Create Claim", "CapacityClaim", "", self.told)
        if not self.claim.ok:
            self.status = "ROLLBACK_IN_PROGRESS"
            self.send("Delete Claim", "CapacityClaim", self.claim.physical_id, self.told)
            self.send("Delete Limit", "SpendingLimit", limit.physical_id, {"Owner": _CLAIM_ID, "MaxHours": "0"})
            self.status = "ROLLBACK_COMPLETE"
            return self.claim
        self._nodes(self.claim, self.told)
        self.status = "CREATE_COMPLETE"
        return self.claim

    def update(self, *, later_failure: bool = False, **changes: Any) -> Outcome:
        """An update; with ``later_failure`` another resource fails after the claim, and everything rolls back."""
        assert self.claim is not None
        before, old = self.claim, self.told
        new = {**old, **changes}
        self.status = "UPDATE_IN_PROGRESS"
        after = self.send("Update Claim", "CapacityClaim", before.physical_id, new, old)
        if after.ok and not later_failure:
            self.claim, self.told = after, new
            self._nodes(after, new)
            self._clean_up(before, after)
            self.status = "UPDATE_COMPLETE"
            return after
        self.status = "UPDATE_ROLLBACK_IN_PROGRESS"
        current = after if after.ok else before
        back = self.send("Update Claim again", "CapacityClaim", current.physical_id, old, new)
        if not back.ok:  # UPDATE_ROLLBACK_FAILED: the user continues the rollback, CloudFormation sends it once more
            back = self.send("Continue", "CapacityClaim", current.physical_id, old, new, request="Update")
        assert back.ok, f"UPDATE_ROLLBACK_FAILED: {back.reason}"
        self.claim = back
        self.status = "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS"
        self._clean_up(current, back)
        self.status = "UPDATE_ROLLBACK_COMPLETE"
        return after

    def _clean_up(self, before: Outcome, after: Outcome) -> None:
        if before.physical_id != after.physical_id:
            self.send("Delete Claim", "CapacityClaim", before.physical_id, self.told)

    def delete(self) -> bool:
        """False where the stack ends in DELETE_FAILED; then nothing else is sent until the user deletes again."""
        assert self.claim is not None
        self.world.terminate()
        self.status = "DELETE_IN_PROGRESS"
        for name, kind, physical_id in (
            ("Delete Claim", "CapacityClaim", self.claim.physical_id),
            ("Delete Limit", "SpendingLimit", "limit:x:-"),
        ):
            if not self.send(name, kind, physical_id, self.told).ok:
                self.status = "DELETE_FAILED"
                return False
        self.status = "DELETE_COMPLETE"
        return True

    def _nodes(self, claim: Outcome, told: Mapping[str, Any]) -> None:
        """The node group follows the claim: new launches go into the reservation that the claim names."""
        self.world.terminate(0 if self._moved(claim, told) else int(claim.data["DesiredNodes"]))
        missing = int(claim.data["DesiredNodes"]) - len(self.world.instances)
        zone_id, into = claim.data["ZoneId"], claim.data["ReservationId"]
        self.world.launch(zone_id, told["InstanceType"], missing, subnet=claim.data["SubnetId"], into=into)

    def _moved(self, claim: Outcome, told: Mapping[str, Any]) -> bool:
        return any(
            i.get("CapacityReservationId", "") != claim.data["ReservationId"]
            or i["InstanceType"] != told["InstanceType"]
            for i in self.world.instances
        )

    def tick(self) -> dict[str, list[str]]:
        """One run of the renewal schedule."""
        assert self.claim is not None
        self.world.stacks[STACK_ID] = (self.status, self.world.stacks[STACK_ID][1])
        event = {
            "StackId": STACK_ID,
            "Owner": _CLAIM_ID,
            "ReservationId": self.claim.physical_id,
            "NodeCount": self.told["NodeCount"],
            "LimitAt": self.told["LimitAt"],
        }
        self.world.run(self.faults.pop("Tick", None))
        try:
            return watch(event, self.world.aws())
        finally:
            self.seen["Tick"] = len(self.world.calls)
            self.world.run()

    def pass_hours(self, hours: float) -> None:
        """Time goes by with the schedule ticking every ten minutes."""
        for _ in range(int(hours * 6)):
            self.world.pass_time(600)
            if self.told.get("Capacity") == "hold" and self.claim is not None and self.claim.ok:
                self.tick()
