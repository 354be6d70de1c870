"""Left in EC2: nodes, reservations, gateways, addresses, volumes, endpoints; and what blocks a VPC's deletion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from eks_ray_train.capacity.model import TAG_STACK, Reservation, format_time
from eks_ray_train.errors import SettingsError
from eks_ray_train.plan.cost import NAT_USD_PER_HOUR, SYSTEM_NODE_USD_PER_HOUR

from .leftovers import HOURS_A_MONTH, NETWORK, STACK_TAG, Finder, Leftover, Place, is_kept, tags_of

# us-east-1 list prices (https://aws.amazon.com/ec2/pricing, /vpc/pricing, /ebs/pricing; not confirmed lately, not read
# at run time).
ADDRESS_USD_PER_HOUR = 0.005
ENDPOINT_USD_PER_HOUR = 0.01
VOLUME_USD_PER_GB_MONTH = {
    "gp3": 0.08,
    "gp2": 0.10,
    "io1": 0.125,
    "io2": 0.125,
    "st1": 0.045,
    "sc1": 0.015,
    "standard": 0.05,
}
_SYSTEM_PRICES = {"m7i.xlarge": SYSTEM_NODE_USD_PER_HOUR}
_LIVE = ("pending", "active", "assessing", "scheduled")
_CLI_OWNER = "eks-ray-train-cli/"


def vpcs_of(place: Place) -> tuple[str, ...]:
    """The VPCs that the network stack made."""
    query = [{"Name": f"tag:{STACK_TAG}", "Values": [NETWORK]}]
    return tuple(v["VpcId"] for v in place.pages("ec2", "describe_vpcs", "Vpcs", Filters=query))


def _monthly(usd_per_hour: float | None, count: int = 1) -> float | None:
    return None if usd_per_hour is None else usd_per_hour * count * HOURS_A_MONTH


def _price(instance_type: str) -> float | None:
    from eks_ray_train.instances import get_instance_type

    try:
        return get_instance_type(instance_type, accept_unverified_layout=True).usd_per_hour
    except SettingsError:  # not a GPU type of the catalogue
        return _SYSTEM_PRICES.get(instance_type)


def _instances(place: Place) -> Iterable[Leftover]:
    for group in place.ec2("describe_instances", "Reservations", "ReservationId", by_vpc=True):
        for instance in group["Instances"]:
            if instance["State"]["Name"] in ("pending", "running", "stopping", "stopped"):
                stopped = instance["State"]["Name"].startswith("stop")
                kind = instance["InstanceType"]
                yield Leftover(
                    kind="instance",
                    id=instance["InstanceId"],
                    usd_per_month=0.0 if stopped else _monthly(_price(kind)),
                    remove=f"aws ec2 terminate-instances --instance-ids {instance['InstanceId']}",
                    note=f"{kind}, {instance['State']['Name']}",
                    keep=is_kept(tags_of(instance)),
                )


def _reservations(place: Place) -> Iterable[Leftover]:
    for data in place.pages("ec2", "describe_capacity_reservations", "CapacityReservations"):
        held = Reservation.from_ec2(data)
        owner = held.tags.get(TAG_STACK, "")
        ours = ":stack/EksRayTrain" in owner or owner.startswith(_CLI_OWNER)
        if held.state not in _LIVE or not (ours or place.is_ours(held.tags)):
            continue
        end = f", ends by itself at {format_time(held.end)} UTC" if held.end else ", has no end"
        yield Leftover(
            kind="capacity reservation",
            id=held.id,
            # Slots in use are paid as instances.
            usd_per_month=_monthly(_price(held.instance_type), held.available),
            remove=f"aws ec2 cancel-capacity-reservation --capacity-reservation-id {held.id}",
            note=f"{held.available} unused slots of {held.instance_type} in {held.zone}{end}",
            keep=is_kept(held.tags),
        )


def _nat_gateways(place: Place) -> Iterable[Leftover]:
    # Its operation names the parameter Filter, unlike all others.
    found: dict[str, dict[str, Any]] = {}
    for query in place.queries(by_vpc=True):
        for thing in place.pages("ec2", "describe_nat_gateways", "NatGateways", Filter=query):
            found[thing["NatGatewayId"]] = thing
    for gateway in found.values():
        if gateway["State"] in ("pending", "available"):
            yield Leftover(
                kind="NAT gateway",
                id=gateway["NatGatewayId"],
                usd_per_month=_monthly(NAT_USD_PER_HOUR),
                remove=f"aws ec2 delete-nat-gateway --nat-gateway-id {gateway['NatGatewayId']}",
                note=f"in {gateway.get('VpcId', '?')}",
                keep=is_kept(tags_of(gateway)),
            )


def _addresses(place: Place) -> Iterable[Leftover]:
    seen: set[str] = set()
    for query in place.queries():
        for address in place.client("ec2").describe_addresses(Filters=query)["Addresses"]:
            id_ = address.get("AllocationId", address["PublicIp"])
            if id_ not in seen:
                seen.add(id_)
                yield Leftover(
                    kind="Elastic IP address",
                    id=id_,
                    usd_per_month=_monthly(ADDRESS_USD_PER_HOUR),
                    remove=f"aws ec2 release-address --allocation-id {id_}",
                    note=address["PublicIp"],
                    keep=is_kept(tags_of(address)),
                )


def _volumes(place: Place) -> Iterable[Leftover]:
    for volume in place.ec2("describe_volumes", "Volumes", "VolumeId"):
        if volume["State"] not in ("deleting", "deleted"):
            price = VOLUME_USD_PER_GB_MONTH.get(volume.get("VolumeType", ""))
            yield Leftover(
                kind="EBS volume",
                id=volume["VolumeId"],
                usd_per_month=None if price is None else price * volume["Size"],
                remove=f"aws ec2 delete-volume --volume-id {volume['VolumeId']}",
                note=f"{volume['Size']} GiB {volume.get('VolumeType', '')}, {volume['State']}",
                keep=is_kept(tags_of(volume)),
            )


def _endpoints(place: Place) -> Iterable[Leftover]:
    for endpoint in place.ec2("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", by_vpc=True):
        if str(endpoint["State"]).lower() not in ("deleting", "deleted", "rejected", "failed"):
            gateway = endpoint["VpcEndpointType"] == "Gateway"
            zones = max(1, len(endpoint.get("SubnetIds", ())))
            yield Leftover(
                kind="VPC endpoint",
                id=endpoint["VpcEndpointId"],
                usd_per_month=0.0 if gateway else _monthly(ENDPOINT_USD_PER_HOUR, zones),
                remove=f"aws ec2 delete-vpc-endpoints --vpc-endpoint-ids {endpoint['VpcEndpointId']}",
                note=endpoint.get("ServiceName", ""),
                keep=is_kept(tags_of(endpoint)),
            )


def _interfaces(place: Place) -> Iterable[Leftover]:
    for interface in place.ec2("describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId", by_vpc=True):
        text = interface.get("Description") or interface.get("InterfaceType", "")
        by_lambda = "Lambda" in text or interface.get("InterfaceType") == "lambda"
        yield Leftover(
            kind="network interface",
            id=interface["NetworkInterfaceId"],
            usd_per_month=0.0,
            remove=f"aws ec2 delete-network-interface --network-interface-id {interface['NetworkInterfaceId']}",
            note=f"{text}; {'Lambda frees it within 20 to 40 minutes' if by_lambda else interface['Status']}",
            keep=is_kept({t["Key"]: t["Value"] for t in interface.get("TagSet", ())}),
        )


def _security_groups(place: Place) -> Iterable[Leftover]:
    for group in place.ec2("describe_security_groups", "SecurityGroups", "GroupId", by_vpc=True):
        if group["GroupName"] != "default":
            yield Leftover(
                kind="security group",
                id=group["GroupId"],
                usd_per_month=0.0,
                remove=f"aws ec2 delete-security-group --group-id {group['GroupId']}",
                note=group["GroupName"],
                keep=is_kept(tags_of(group)),
            )


def _vpcs(place: Place) -> Iterable[Leftover]:
    for vpc in place.vpcs:
        yield Leftover(kind="VPC", id=vpc, usd_per_month=0.0, remove="eks-ray-train down", note="of the network stack")


EC2_FINDERS = (
    Finder(kind="instance", action="ec2:DescribeInstances", costs=True, find=_instances),
    Finder(kind="capacity reservation", action="ec2:DescribeCapacityReservations", costs=True, find=_reservations),
    Finder(kind="NAT gateway", action="ec2:DescribeNatGateways", costs=True, find=_nat_gateways),
    Finder(kind="Elastic IP address", action="ec2:DescribeAddresses", costs=True, find=_addresses),
    Finder(kind="EBS volume", action="ec2:DescribeVolumes", costs=True, find=_volumes),
    Finder(kind="VPC endpoint", action="ec2:DescribeVpcEndpoints", costs=True, find=_endpoints),
    Finder(kind="network interface", action="ec2:DescribeNetworkInterfaces", costs=False, find=_interfaces),
    Finder(kind="security group", action="ec2:DescribeSecurityGroups", costs=False, find=_security_groups),
    Finder(kind="VPC", action="ec2:DescribeVpcs", costs=False, find=_vpcs),
)
