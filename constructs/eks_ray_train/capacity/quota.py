"""On-Demand vCPU quota: what applies, what is used, what is left. Units are vCPUs, per region."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .aws import AWS_ERRORS, Aws, error_code, explain
from .model import Need, Reservation

#: Family letters that share one quota. https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "L-DB2E81BA": ("g", "gr", "vt"),
    "L-417A185B": ("p",),
    "L-1216C47A": ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"),
}
_OTHER_MARKETS = ("spot", "capacity-block")


@dataclass(frozen=True, kw_only=True)
class Quota:
    """``limit`` and ``used`` in vCPUs; None where they could not be read, with the reason in ``unknown``."""

    code: str
    limit: int | None
    used: int | None
    unknown: str = ""

    @property
    def free(self) -> int | None:
        return None if self.limit is None or self.used is None else self.limit - self.used

    def covers(self, vcpus: int) -> bool | None:
        """None when it is not known: not the same as yes."""
        if self.limit is not None and vcpus > self.limit:
            return False
        return None if self.free is None else self.free >= vcpus

    def __str__(self) -> str:
        def show(value: int | None) -> str:
            return "unknown" if value is None else str(value)

        text = f"quota {self.code}: limit {show(self.limit)}, used {show(self.used)}, free {show(self.free)} vCPUs"
        return f"{text} ({self.unknown})" if self.unknown else text


def increase_command(need: Need, quota: Quota | None, region: str) -> str:
    """The command that asks AWS for enough, on top of what is in use."""
    wanted = need.vcpus + ((quota.used or 0) if quota else 0)
    return (
        f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {need.quota_code} "
        f"--desired-value {wanted} --region {region}"
    )


def family(instance_type: str) -> str:
    """Leading letters of a type: ``gr6.4xlarge`` -> ``gr``, ``p6-b200.48xlarge`` -> ``p``."""
    found = re.match(r"[a-z]+", instance_type)
    return found.group() if found else ""


def used_vcpus(
    quota_code: str,
    instances: Iterable[Mapping[str, Any]],
    reservations: Iterable[Reservation],
    vcpus_of: Callable[[str], int | None],
    account: str = "",
) -> int:
    """vCPUs that count against the quota: pending and running On-Demand instances and unused reservation slots.

    Spot and Capacity Block instances and those on Dedicated Hosts have other limits. ``vcpus_of`` gives a type's
    default vCPUs; where it does not know, the instance's own CPU options decide. Reservations of other owners
    (shared with ``account``) count against the owner.
    """
    families = FAMILIES.get(quota_code, ())
    used = 0
    for instance in instances:
        kind = instance["InstanceType"]
        if (
            family(kind) not in families
            or instance.get("State", {}).get("Name") not in ("pending", "running")
            or instance.get("InstanceLifecycle") in _OTHER_MARKETS
            or instance.get("Placement", {}).get("Tenancy") == "host"
        ):
            continue
        options = instance.get("CpuOptions", {})
        used += vcpus_of(kind) or options.get("CoreCount", 0) * options.get("ThreadsPerCore", 1)
    for held in reservations:
        if family(held.instance_type) not in families or held.state != "active" or held.kind != "default":
            continue
        if account and held.owner and held.owner != account:
            continue
        used += held.available * (vcpus_of(held.instance_type) or 0)
    return used


def read_quota(aws: Aws, need: Need, account: str = "") -> Quota:
    """Applied limit and use. A missing permission makes a value unknown and names the action; it never raises."""
    problems: list[str] = []
    limit: int | None = None
    used: int | None = None
    try:
        limit = _limit(aws, need.quota_code)
    except AWS_ERRORS as error:
        problems.append(explain("servicequotas:GetServiceQuota", error))
    try:
        used = _used(aws, need, account)
    except AWS_ERRORS as error:
        problems.append(explain("ec2:DescribeInstances or ec2:DescribeCapacityReservations", error))
    return Quota(code=need.quota_code, limit=limit, used=used, unknown="; ".join(problems))


def _limit(aws: Aws, code: str) -> int:
    if aws.quotas is None:
        raise ValueError("no Service Quotas client was given")
    try:
        answer = aws.call(aws.quotas.get_service_quota, ServiceCode="ec2", QuotaCode=code)
    except AWS_ERRORS as error:
        # An account that never had its own value has none: the AWS default applies.
        if error_code(error) != "NoSuchResourceException":
            raise
        answer = aws.call(aws.quotas.get_aws_default_service_quota, ServiceCode="ec2", QuotaCode=code)
    return int(answer["Quota"]["Value"])


def _used(aws: Aws, need: Need, account: str) -> int:
    families = FAMILIES.get(need.quota_code, (family(need.instance_type),))
    filters = [
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
        {"Name": "instance-type", "Values": [f"{letters}*" for letters in families]},
    ]
    pages = aws.pages(aws.ec2.describe_instances, "Reservations", Filters=filters)
    instances = [instance for group in pages for instance in group["Instances"]]
    active = aws.pages(
        aws.ec2.describe_capacity_reservations,
        "CapacityReservations",
        Filters=[{"Name": "state", "Values": ["active"]}],
    )
    reservations = [r for r in map(Reservation.from_ec2, active) if family(r.instance_type) in families]
    kinds = {i["InstanceType"] for i in instances} | {r.instance_type for r in reservations}
    sizes = _default_vcpus(aws, kinds - {need.instance_type}) | {need.instance_type: need.vcpus_per_node}
    return used_vcpus(need.quota_code, instances, reservations, sizes.get, account)


def _default_vcpus(aws: Aws, kinds: set[str]) -> dict[str, int]:
    if not kinds:
        return {}
    # InstanceTypes takes at most 100 names a call.
    names = sorted(kinds)
    sizes: dict[str, int] = {}
    for start in range(0, len(names), 100):
        batch = names[start : start + 100]
        for info in aws.pages(aws.ec2.describe_instance_types, "InstanceTypes", InstanceTypes=batch):
            sizes[info["InstanceType"]] = int(info["VCpuInfo"]["DefaultVCpus"])
    return sizes
