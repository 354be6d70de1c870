"""What the market says about a type: list price, Spot placement score, Capacity Blocks for sale. Nothing is bought."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .aws import Aws, Ec2Client, PricingClient
from .model import Need, as_utc

#: GetSpotPlacementScores takes at most ten regions a call.
_REGIONS_A_CALL = 10
_FILTERS = {
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}


@dataclass(frozen=True, kw_only=True)
class BlockOffer:
    """A Capacity Block for sale: ``fee_usd`` is paid up front and never comes back. Times are UTC."""

    id: str
    zone: str
    nodes: int
    hours: int
    start: datetime | None
    end: datetime | None
    fee_usd: float


def on_demand_prices(aws: Aws, pricing: PricingClient, instance_type: str) -> dict[str, float]:
    """USD per node and hour by region, Linux, shared tenancy. One listing covers all regions."""
    filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in _FILTERS.items()]
    filters.append({"Type": "TERM_MATCH", "Field": "instanceType", "Value": instance_type})
    entries = aws.pages(pricing.get_products, "PriceList", ServiceCode="AmazonEC2", Filters=filters)
    prices: dict[str, float] = {}
    for entry in entries:
        product: dict[str, Any] = json.loads(entry)  # each entry is a JSON document in a string
        region = product["product"]["attributes"].get("regionCode", "")
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                usd = float(dimension["pricePerUnit"].get("USD", 0))
                if usd > 0:
                    prices[region] = usd
    return prices


def spot_scores(aws: Aws, instance_type: str, nodes: int, regions: Sequence[str]) -> dict[str, int]:
    """Score 1 to 10 by zone id. A weak hint: it is about Spot, and for a single type always low (EC2 API reference)."""
    scores: dict[str, int] = {}
    for start in range(0, len(regions), _REGIONS_A_CALL):
        batch = list(regions[start : start + _REGIONS_A_CALL])
        found = aws.pages(
            aws.ec2.get_spot_placement_scores,
            "SpotPlacementScores",
            InstanceTypes=[instance_type],
            TargetCapacity=max(1, nodes),
            SingleAvailabilityZone=True,
            RegionNames=batch,
        )
        scores |= {s["AvailabilityZoneId"]: int(s["Score"]) for s in found if s.get("AvailabilityZoneId")}
    return scores


def block_offers(aws: Aws, need: Need, hours: int) -> list[BlockOffer]:
    """Capacity Blocks for sale in the region for ``hours``, soonest first."""
    found = aws.pages(
        aws.ec2.describe_capacity_block_offerings,
        "CapacityBlockOfferings",
        InstanceType=need.instance_type,
        InstanceCount=need.nodes,
        CapacityDurationHours=hours,
    )
    offers = [
        BlockOffer(
            id=str(offer["CapacityBlockOfferingId"]),
            zone=str(offer.get("AvailabilityZone", "")),
            nodes=int(offer.get("InstanceCount", need.nodes)),
            hours=int(offer.get("CapacityBlockDurationHours", hours)),
            start=as_utc(offer.get("StartDate")),
            end=as_utc(offer.get("EndDate")),
            fee_usd=float(offer.get("UpfrontFee", 0)),
        )
        for offer in found
    ]
    return sorted(offers, key=lambda offer: (offer.start is None, offer.start, offer.fee_usd))


def enabled_regions(aws: Aws, ec2: Ec2Client) -> list[str]:
    """Regions that the account has enabled."""
    found: Iterable[Any] = aws.call(ec2.describe_regions)["Regions"]
    return sorted(region["RegionName"] for region in found if region.get("OptInStatus") != "not-opted-in")
