"""Which availability zones a region has, and which of them offer an instance type. Free; no capacity is proven."""

from __future__ import annotations

from .aws import Aws
from .model import Zone


def availability_zones(aws: Aws) -> list[Zone]:
    """Availability zones that the account may use, by name; never Local or Wavelength Zones."""
    answer = aws.call(
        aws.ec2.describe_availability_zones, Filters=[{"Name": "zone-type", "Values": ["availability-zone"]}]
    )
    zones = [
        Zone(name=z["ZoneName"], zone_id=z["ZoneId"])
        for z in answer["AvailabilityZones"]
        # Filtered here again: a filter that an endpoint ignores would let a Local Zone through.
        if z.get("ZoneType", "availability-zone") == "availability-zone" and z.get("State", "available") == "available"
    ]
    return sorted(zones, key=lambda zone: zone.name)


def offering_zone_ids(aws: Aws, instance_type: str) -> set[str]:
    """Zone ids that offer the type, from all pages. A catalogue fact, not current capacity."""
    found = aws.pages(
        aws.ec2.describe_instance_type_offerings,
        "InstanceTypeOfferings",
        LocationType="availability-zone-id",
        Filters=[{"Name": "instance-type", "Values": [instance_type]}],
    )
    return {offer["Location"] for offer in found if offer["InstanceType"] == instance_type}
