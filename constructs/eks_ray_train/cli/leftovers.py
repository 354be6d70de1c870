"""What a destroy left behind: found by our tags and by traces that AWS services leave, with what each costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eks_ray_train.errors import ExitCode, UsageError

from .aws_session import Session, aws_errors, explain
from .stack_state import NETWORK, STACKS, read_stacks

if TYPE_CHECKING:
    from eks_ray_train.settings import Settings

HOURS_A_MONTH = 730
# Below this, something is listed but not counted: a log group of a few kilobytes is no reason to fail.
LEAST_USD = 0.01
STACK_TAG = "aws:cloudformation:stack-name"
_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """One thing that exists. ``usd_per_month``: us-east-1 list price, 0 for what is free, None where it costs but how
    much is not known. ``remove``: the command that takes it away. ``keep``: tagged ``keep=true``."""

    kind: str
    id: str
    usd_per_month: float | None
    remove: str = ""
    note: str = ""
    keep: bool = False

    @property
    def counts(self) -> bool:
        """Whether it costs money and nobody asked for it to stay."""
        return not self.keep and (self.usd_per_month is None or self.usd_per_month >= LEAST_USD)


@dataclass(frozen=True, kw_only=True)
class Report:
    """``unknown``: kind -> why it could not be looked at. ``blind``: those of them that can cost money."""

    region: str
    items: tuple[Leftover, ...]
    unknown: Mapping[str, str] = field(default_factory=dict)
    blind: tuple[str, ...] = ()

    @property
    def costing(self) -> list[Leftover]:
        return [item for item in self.items if item.counts]

    @property
    def exit_code(self) -> ExitCode:
        """7 where something costs money; 1 where a kind that can cost money could not be looked at (not the same as
        nothing being left); else 0."""
        if self.costing:
            return ExitCode.LEFT_BEHIND
        return ExitCode.UNEXPECTED if self.blind else ExitCode.OK


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where to look and by what marks: ``cluster`` is None where the cluster is another team's."""

    session: Session
    region: str
    cluster: str | None
    vpcs: tuple[str, ...] = ()

    def client(self, service: str) -> Any:
        return self.session.client(service, self.region)

    def pages(self, service: str, operation: str, key: str, **query: Any) -> Iterable[Any]:
        """All elements under ``key``, over all pages."""
        for page in self.client(service).get_paginator(operation).paginate(**query):
            yield from page.get(key, ())

    def is_ours(self, tags: Mapping[str, str]) -> bool:
        """By CloudFormation's tag, or by what EKS, its controllers and CSI drivers put on what they make."""
        if tags.get(STACK_TAG) in STACKS:
            return True
        return self.cluster is not None and (
            f"kubernetes.io/cluster/{self.cluster}" in tags
            or any(tags.get(key) == self.cluster for key in CLUSTER_TAGS)
        )

    def queries(self, *, by_vpc: bool = False) -> list[list[dict[str, Any]]]:
        """EC2 filters, one list a call: EC2 joins a call's filters with AND, and any one of these marks is enough."""
        found: list[list[dict[str, Any]]] = [[{"Name": f"tag:{STACK_TAG}", "Values": list(STACKS)}]]
        if self.cluster:
            found.append([{"Name": "tag-key", "Values": [f"kubernetes.io/cluster/{self.cluster}"]}])
            found += [[{"Name": f"tag:{key}", "Values": [self.cluster]}] for key in CLUSTER_TAGS]
        if by_vpc and self.vpcs:
            found.append([{"Name": "vpc-id", "Values": list(self.vpcs)}])
        return found

    def ec2(self, operation: str, key: str, id_key: str, *, by_vpc: bool = False) -> list[dict[str, Any]]:
        """EC2 things that carry any of the marks, once each."""
        found: dict[str, dict[str, Any]] = {}
        for query in self.queries(by_vpc=by_vpc):
            for thing in self.pages("ec2", operation, key, Filters=query):
                found[thing[id_key]] = thing
        return list(found.values())


# On interfaces (VPC CNI), load balancers (AWS Load Balancer Controller), security groups and instances (EKS), volumes
# (EBS CSI).
CLUSTER_TAGS = (
    "cluster.k8s.amazonaws.com/name",
    "elbv2.k8s.aws/cluster",
    "aws:eks:cluster-name",
    "eks:cluster-name",
    "KubernetesCluster",
)


@dataclass(frozen=True, kw_only=True)
class Finder:
    """``action``: the permission that a refusal is about. ``costs``: whether its things can cost money."""

    kind: str
    action: str
    costs: bool
    find: Callable[[Place], Iterable[Leftover]]


def look(session: Session, region: str, settings: Settings) -> Report:
    """Looks everywhere at once. A kind that cannot be read is named with its reason; the others are still told.

    Raises UsageError for credentials that are missing or over.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from .leftovers_ec2 import EC2_FINDERS, vpcs_of
    from .leftovers_services import SERVICE_FINDERS

    unknown: dict[str, str] = {}
    cluster = None if settings.existing_cluster else settings.cluster_name
    place = Place(session=session, region=region, cluster=cluster)
    finders = (
        Finder(kind="stack", action="cloudformation:DescribeStacks", costs=False, find=_stacks),
        *EC2_FINDERS,
        *SERVICE_FINDERS,
    )
    try:
        with aws_errors("ec2:DescribeVpcs"):
            place = Place(session=session, region=region, cluster=cluster, vpcs=vpcs_of(place))
    except UsageError:
        raise
    except Exception as error:
        unknown["VPC"] = str(error)

    def one(finder: Finder) -> list[Leftover] | str:
        try:
            return list(finder.find(place))
        except (ClientError, BotoCoreError) as error:
            return explain(finder.action, error)

    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        answers = list(zip(finders, pool.map(one, finders), strict=True))
    items: list[Leftover] = []
    for finder, answer in answers:
        if isinstance(answer, str):
            unknown[finder.kind] = answer
        else:
            items += answer
    items.sort(key=lambda i: (not i.counts, -(i.usd_per_month or 0.0), i.kind, i.id))
    blind = tuple(f.kind for f in finders if f.costs and f.kind in unknown)
    return Report(region=region, items=tuple(items), unknown=unknown, blind=blind)


def _stacks(place: Place) -> Iterable[Leftover]:
    for name, state in read_stacks(place.client("cloudformation")).items():
        reason = f": {state.reason}" if state.reason else ""
        yield Leftover(
            kind="stack",
            id=name,
            usd_per_month=0.0,
            remove="eks-ray-train down",
            note=f"{state.status}{reason}; what in it costs is listed by itself",
        )


def tags_of(thing: Mapping[str, Any]) -> dict[str, str]:
    """EC2's and most services' list of Key and Value as a mapping."""
    return {tag["Key"]: tag.get("Value", "") for tag in thing.get("Tags") or ()}


def is_kept(tags: Mapping[str, str]) -> bool:
    return tags.get("keep", "").lower() == "true"


__all__ = ["CLUSTER_TAGS", "NETWORK", "Finder", "Leftover", "Place", "Report", "is_kept", "look", "tags_of"]
