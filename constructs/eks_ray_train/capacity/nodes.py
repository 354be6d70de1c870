"""What stands already when an Update arrives: the zone chosen before, the nodes in it, the hold they were launched into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from .aws import AWS_ERRORS, Aws, error_text
from .model import Reservation, Zone
from .offers import availability_zones
from .request import HOLD_PREFIX, Request, zone_of
from .reservations import log, read


@dataclass(frozen=True, kw_only=True)
class Ground:
    """``zone``: where the node group is, None where that is free to choose. ``nodes``: live instances in it by type."""

    zone: Zone | None = None
    nodes: Mapping[str, int] = field(default_factory=dict)
    held: Reservation | None = None  # only while it is active

    @property
    def live(self) -> int:
        return sum(self.nodes.values())

    def live_of(self, instance_type: str) -> int:
        return self.nodes.get(instance_type, 0)


def read_ground(request: Request, aws: Aws) -> Ground:
    """Empty on Create. The zone comes from the physical id or the hold, else from where the nodes run."""
    if request.old is None:
        return Ground()
    held = read(aws, request.physical_id) if request.physical_id.startswith(HOLD_PREFIX) else None
    zone = held.zone if held is not None else zone_of(request.physical_id)
    live = _live(request, aws, zone)
    if zone is None and live:
        # The hold has ended and EC2 has forgotten it: the nodes themselves tell.
        name = live.most_common(1)[0][0][0]
        zone = next((z for z in availability_zones(aws) if z.name == name), None)
    nodes = {kind: count for (name, kind), count in live.items() if zone is not None and name == zone.name}
    active = held if held is not None and held.state == "active" and request.owner.owns(held) else None
    return Ground(zone=zone, nodes=nodes, held=active)


def _live(request: Request, aws: Aws, zone: Zone | None) -> Counter[tuple[str, str]]:
    """Pending and running instances of the old and the new type in our subnets, by (zone name, type)."""
    assert request.old is not None
    kinds = sorted({request.old.need.instance_type, request.wish.need.instance_type})
    filters = [
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
        {"Name": "instance-type", "Values": kinds},
        {"Name": "subnet-id", "Values": sorted({*request.old.subnets.values(), *request.wish.subnets.values()})},
    ]
    try:
        groups = list(aws.pages(aws.ec2.describe_instances, "Reservations", Filters=filters))
    except AWS_ERRORS as error:
        log("nodes-unknown", error=error_text(error))
        # Told once, long ago: the old properties. Better than asking for nodes that run already.
        return Counter({(zone.name, request.old.need.instance_type): request.old.need.nodes} if zone else {})
    return Counter((i["Placement"]["AvailabilityZone"], i["InstanceType"]) for g in groups for i in g["Instances"])
