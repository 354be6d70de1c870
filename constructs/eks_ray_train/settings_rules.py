"""What makes settings valid: one function a rule, each message saying what, got, allowed and remedy.

(Over 300 lines because the rules of all settings stand here, in one place.)
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_origin

from .capacity.model import RESERVATION_ID
from .data_locations import location_problems
from .errors import SettingsError
from .instances import get_instance_type, get_system_instance_type
from .regions import nearest_region
from .system_sizing import required_system_nodes
from .versions import KUBECTL_LAYERS, KUBERNETES_RELEASES, TOKEN_AUTH_MIN_RAY, minor_of, ray_version_tuple

if TYPE_CHECKING:
    from .settings import Settings

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_CLUSTER_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*")
_PRINCIPAL = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:(role|user)/.+")
_RESERVATION_GROUP = re.compile(r"arn:aws[a-z-]*:resource-groups:[^:]+:\d{12}:group/.+")
_ZONE = re.compile(r"[a-z]{2}(-[a-z]+)+-\d[a-z]")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_CHART_KEYS = ("kuberay", "nvidia", "efa")
_EXISTING_CLUSTER_KEYS = {
    "name": "the cluster's name",
    "kubectl_role_arn": "an IAM role that may administer the cluster, assumable by the deploy's handler",
    "security_group_id": "the cluster security group",
    "vpc_id": "the VPC",
    "availability_zones": "zone names of the private subnets",
    "private_subnet_ids": "one private subnet a zone, in the same order",
}

_EXISTING_CLUSTER_LISTS = ("availability_zones", "private_subnet_ids")
# A year: the claim adds the hours to a date, and a limit beyond is none.
MAX_HOURS = 8760
# https://docs.aws.amazon.com/eks/latest/userguide/service-quotas.html: 450 nodes a managed node group.
MAX_SYSTEM_NODES = 449


def _literals(s: Settings) -> Iterator[str]:
    for name, hint in typing.get_type_hints(type(s)).items():
        if get_origin(hint) is typing.Literal and getattr(s, name) not in get_args(hint):
            yield f"{name} must be one of {', '.join(get_args(hint))}, got {getattr(s, name)!r}; set {name} in cdk.json"


def _names(s: Settings) -> Iterator[str]:
    # EKS allows 100 characters (https://docs.aws.amazon.com/eks/latest/APIReference/API_CreateCluster.html); a
    # Kubernetes label value only 63, and the name is one.
    if len(s.cluster_name) > 63 or not _CLUSTER_NAME.fullmatch(s.cluster_name):
        yield (
            f"cluster_name must be 1 to 63 letters, digits, - or _ (EKS allows 100 characters, a Kubernetes label value 63) and begin "
            f"with a letter or digit, got {len(s.cluster_name)} characters: {s.cluster_name!r}; {_rename(s.cluster_name)}"
        )
    for name, limit, why in (
        ("namespace", 63, "a Kubernetes name"),
        ("ray_cluster_name", 53, "KubeRay stops reconciling longer names"),
    ):
        value = getattr(s, name)
        if len(value) > limit or not _DNS_1035.fullmatch(value):
            yield (
                f"{name} must be 1 to {limit} lower-case letters, digits or -, starting with a letter ({why}), "
                f"got {len(value)} characters: {value!r}; set {name} in cdk.json"
            )
    if s.namespace == "default" or s.namespace.startswith("kube-"):
        yield f"namespace must be one of its own (the app makes and deletes it), got {s.namespace!r}; for example ray-train"


def _rename(name: str) -> str:
    """What to do about a cluster_name that is refused."""
    wrong = "".join(dict.fromkeys(re.sub("[0-9A-Za-z_-]", "", name)))
    if wrong:
        return f"remove {' '.join(map(repr, wrong))} from cluster_name"
    return "shorten cluster_name" if len(name) > 63 else "make cluster_name begin with a letter or digit"


def _counts(s: Settings) -> Iterator[str]:
    if s.gpu_node_count < 1:
        yield f"gpu_node_count must be at least 1, got {s.gpu_node_count}; set gpu_node_count in cdk.json (to have none for a while: eks-ray-train scale 0)"
    if s.gpu_node_count > 450:
        yield f"gpu_node_count must be at most 450 (nodes of one managed node group), got {s.gpu_node_count}; lower gpu_node_count in cdk.json"
    if s.system_node_count is not None and s.system_node_count > MAX_SYSTEM_NODES:
        yield (
            f"system_node_count must be at most {MAX_SYSTEM_NODES} (a managed node group holds {MAX_SYSTEM_NODES + 1}, and an update needs "
            f"one more), got {s.system_node_count}; leave it out to get the number that is needed"
        )
    if s.max_hours > MAX_HOURS:
        yield f"max_hours must be at most {MAX_HOURS} (a year), got {s.max_hours}; set max_hours in cdk.json (0 means no spending limit)"
    if s.max_hours < 0:
        yield f"max_hours must be 0 (no spending limit) or more, got {s.max_hours}; set max_hours in cdk.json"


def _instances(s: Settings) -> Iterator[str]:
    try:
        gpu = get_instance_type(s.gpu_instance_type, accept_unverified_layout=s.accept_unverified_layout)
    except SettingsError as error:
        yield from error.problems
    else:
        if s.capacity == "block" and not gpu.capacity_block:
            yield (
                f"capacity block: no Capacity Blocks exist for {gpu.name} (they do for P4d, P4de, P5, P5e, P5en and P6); "
                f"set capacity to probe, hold or reservation"
            )
    try:
        system = get_system_instance_type(s.system_instance_type)
    except SettingsError as error:
        yield from error.problems
        return
    try:
        needed = required_system_nodes(system)
    except SettingsError as error:
        yield from error.problems
        return
    if s.system_node_count is not None and s.system_node_count < needed:
        yield (
            f"system_node_count must be at least {needed} x {system.name} (one Ray head, the KubeRay operator, CoreDNS and a "
            f"job submitter run there), got {s.system_node_count}; raise it, choose a larger system_instance_type, or leave it out"
        )


def _versions(s: Settings) -> Iterator[str]:
    try:
        minor_of(s.kubernetes_version)
    except ValueError as error:
        yield f"kubernetes_version: {error}; set kubernetes_version in cdk.json"
    else:
        release = KUBERNETES_RELEASES.get(s.kubernetes_version)
        newest = max(KUBERNETES_RELEASES, key=minor_of)
        oldest = min(KUBERNETES_RELEASES, key=minor_of)
        if release is None and minor_of(s.kubernetes_version) < minor_of(oldest):
            yield f"kubernetes_version {s.kubernetes_version} can no longer be created on EKS; use {newest}"
        elif release is not None and release.status(dt.date.today()) == "gone":
            yield (
                f"kubernetes_version {s.kubernetes_version} can no longer be created: extended support ended on "
                f"{release.extended_until}; use {newest}"
            )
    try:
        ray = ray_version_tuple(s.ray_version)
    except ValueError as error:
        yield f"{error}; set ray_version in cdk.json to the image's"
    else:
        if ray < TOKEN_AUTH_MIN_RAY:
            yield (
                f"ray_version must be at least {'.'.join(map(str, TOKEN_AUTH_MIN_RAY))} (token authentication), got {s.ray_version}; "
                f"set ray_version and a dlc_image that has it"
            )
    if s.kubectl_layer is not None and not re.fullmatch(r"v\d{2}", s.kubectl_layer):
        yield f"kubectl_layer must look like v36 (or be left out: the cluster's own minor), got {s.kubectl_layer!r}; set kubectl_layer in cdk.json"
    elif s.kubectl_layer is not None and int(s.kubectl_layer[1:]) not in KUBECTL_LAYERS:
        yield (
            f"kubectl_layer must be v{KUBECTL_LAYERS[0]} to v{KUBECTL_LAYERS[-1]} (packages that exist), got {s.kubectl_layer!r}; "
            f"leave it out to get the cluster's own minor"
        )
    for name in ("kuberay_version", "nvidia_device_plugin_version", "efa_device_plugin_version"):
        if not re.fullmatch(r"v?\d+\.\d+\.\d+([-+].+)?", getattr(s, name)):
            yield f"{name} must be a chart version such as 1.7.0, got {getattr(s, name)!r}; set {name} in cdk.json or leave it out"


def _zones(s: Settings) -> Iterator[str]:
    if s.region is not None and not _REGION.fullmatch(s.region):
        yield f"region must look like us-east-2, got {s.region!r}; set region in cdk.json or leave it out"
    zones = s.availability_zones
    if zones and len(zones) < 2:
        yield f"availability_zones must name at least two zones (EKS's control plane needs two), got {list(zones)}; add one"
    if len(set(zones)) != len(zones):
        yield f"availability_zones names a zone twice: {list(zones)}; name each once"
    for zone in (*zones, *([s.gpu_zone] if s.gpu_zone else [])):
        if not _ZONE.fullmatch(zone):
            yield (
                f"availability zone must look like us-east-2a (an availability zone's name), got {zone!r}; "
                "`aws ec2 describe-availability-zones` lists the names, or leave the zones out"
            )
        elif s.region and not zone.startswith(s.region):
            yield f"availability zone {zone} is not in region {s.region}; set region or the zones in cdk.json so that they agree"
    if s.gpu_zone and zones and s.gpu_zone not in zones:
        yield f"gpu_zone {s.gpu_zone} is not among availability_zones {list(zones)}; add it there"
    if s.gpu_zone and not zones and not s.existing_vpc_id and not s.existing_cluster:
        yield f"gpu_zone {s.gpu_zone} needs availability_zones: name it and a second zone there, e.g. with capacity find --write"


def _capacity(s: Settings) -> Iterator[str]:
    rid = s.capacity_reservation_id
    if s.capacity in ("reservation", "block") and not rid:
        yield f"capacity {s.capacity} needs capacity_reservation_id (cr-…); set it, or set capacity to probe"
    if rid and s.capacity not in ("reservation", "block"):
        yield f"capacity_reservation_id {rid} is given but capacity is {s.capacity}; set capacity to reservation or block"
    if rid and _RESERVATION_GROUP.fullmatch(rid):
        yield f"capacity_reservation_id must be one reservation's id (cr-…); resource groups are not supported, got {rid!r}; set the id of a reservation of the group"
    elif rid and not RESERVATION_ID.fullmatch(rid):
        yield f"capacity_reservation_id must look like cr-0123456789abcdef0, got {rid!r}; `eks-ray-train capacity find` lists yours"
    if s.placement_group and s.capacity in ("reservation", "block", "hold"):
        yield (
            f"placement_group with capacity {s.capacity} needs a reservation that was created inside that placement group; "
            f"set placement_group to false"
        )


def _is_network(text: str) -> bool:
    """Whether ``text`` is an IP network with its mask; EKS takes no address without one."""
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return "/" in text


def _access(s: Settings) -> Iterator[str]:
    for arn in s.admin_principals:
        if not _PRINCIPAL.fullmatch(arn):
            yield (
                f"admin_principals must be IAM role or user ARNs (arn:aws:iam::123456789012:role/NAME, with the path of an SSO "
                f"role, never an assumed-role ARN), got {arn!r}; eks-ray-train init writes the right one"
            )
    if len(set(s.admin_principals)) != len(s.admin_principals):
        yield "admin_principals names a principal twice; EKS allows one access entry a principal; name each once"
    for cidr in s.public_access_cidrs:
        if not _is_network(cidr):
            yield f"public_access_cidrs must be IP networks such as 203.0.113.7/32, got {cidr!r}; eks-ray-train init writes yours"
    if s.hf_token_secret_arn and not re.fullmatch(r"arn:aws[a-z-]*:secretsmanager:[^:]+:\d{12}:secret:.+", s.hf_token_secret_arn):
        yield (
            f"hf_token_secret_arn must be a Secrets Manager ARN (the token itself never goes into settings), got {s.hf_token_secret_arn[:60]!r}; "
            "store it with `aws secretsmanager create-secret` and set the ARN that this prints"
        )


def _sources(s: Settings) -> Iterator[str]:
    yield from location_problems(s.data_buckets)
    if not re.fullmatch(r"[^\s@:]+(:\d+)?(/[^\s@:]+)*(:[^\s@/]+)?(@sha256:[0-9a-f]{64})?", s.dlc_image) or "/" not in s.dlc_image:
        yield (
            f"dlc_image must be registry/repository:tag or …@sha256:<64 hex digits>, got {s.dlc_image!r}; "
            "leave dlc_image out to get the published image"
        )
    for key, value in s.chart_repositories.items():
        if key not in _CHART_KEYS:
            yield f"chart_repositories has keys {', '.join(_CHART_KEYS)}, got {key!r}; use one of these"
        elif not isinstance(value, str) or not re.match(r"(https://|oci://).+|.+\.tgz$", value):
            yield f"chart_repositories.{key} must be an https:// or oci:// address or the path of a .tgz, got {value!r}; leave it out to get the public one"
        elif value.endswith(".tgz") and "://" not in value and not Path(value).is_file():
            yield (
                f"chart_repositories.{key} must be the path of a chart archive, got {value!r}, which is no file here; correct the path "
                f"(relative to the application's folder), or fetch it with `helm pull`"
            )
    if s.container_mirror is not None and not re.fullmatch(r"[a-z0-9.-]+\.[a-z]+(/[a-z0-9._/-]+)?", s.container_mirror):
        yield (
            f"container_mirror must be a registry with an optional prefix (no scheme, no trailing /), got {s.container_mirror!r}; "
            "for example 123456789012.dkr.ecr.us-east-2.amazonaws.com/ecr-public"
        )


def _existing(s: Settings) -> Iterator[str]:
    if s.existing_vpc_id is not None and not re.fullmatch(r"vpc-[0-9a-f]{8,17}", s.existing_vpc_id):
        yield f"existing_vpc_id must look like vpc-0123456789abcdef0, got {s.existing_vpc_id!r}; leave it out to get a new VPC"
    given = s.existing_cluster
    if given:
        for key, meaning in _EXISTING_CLUSTER_KEYS.items():
            if not given.get(key):
                yield f"existing_cluster needs {key} ({meaning}); add it in cdk.json"
            elif key in _EXISTING_CLUSTER_LISTS:
                if not isinstance(given[key], list | tuple) or not all(isinstance(item, str) for item in given[key]):
                    yield f"existing_cluster.{key} must be a list of text ({meaning}), got {given[key]!r}; write it in [ ]"
                    return
            elif not isinstance(given[key], str):
                yield f"existing_cluster.{key} must be text ({meaning}), got {given[key]!r}; write it in quotes"
        for key in given:
            if key not in _EXISTING_CLUSTER_KEYS:
                yield f"existing_cluster has no field {key!r}; use one of {', '.join(_EXISTING_CLUSTER_KEYS)}"
        zones, subnets = given.get("availability_zones") or [], given.get("private_subnet_ids") or []
        if len(zones) != len(subnets):
            yield f"existing_cluster names {len(zones)} availability_zones and {len(subnets)} private_subnet_ids; name one subnet a zone"
        if s.existing_vpc_id:
            yield "existing_cluster already says its VPC; leave existing_vpc_id out"
    if s.queue_name is not None and (len(s.queue_name) > 63 or not _DNS_1035.fullmatch(s.queue_name)):
        yield f"queue_name must be a Kueue LocalQueue's name (at most 63 lower-case letters, digits or -), got {s.queue_name!r}; `kubectl get localqueues` lists them"


_RULES: tuple[Callable[[Settings], Iterator[str]], ...] = (
    _literals, _names, _counts, _instances, _versions, _zones, _capacity, _access, _sources, _existing,
)  # fmt: skip


def check(s: Settings) -> list[str]:
    """All problems of ``s``, in the order of the rules; empty when it is valid."""
    return [problem for rule in _RULES for problem in rule(s)]


def warnings_of(s: Settings, today: dt.date) -> list[str]:
    """Legal settings that are worth a warning on ``today``."""
    found = []
    release = KUBERNETES_RELEASES.get(s.kubernetes_version)
    if release is None:
        found.append(f"kubernetes_version {s.kubernetes_version} is newer than this release knows; check that EKS offers it")
    elif release.status(today) == "extended":
        found.append(
            f"kubernetes_version {s.kubernetes_version} is in paid extended support since {release.standard_until} "
            f"(0.60 USD an hour instead of 0.10, until {release.extended_until})"
        )
    skew = abs(s.kubectl_layer_minor - minor_of(s.kubernetes_version))
    if skew > 1:
        found.append(
            f"kubectl_layer v{s.kubectl_layer_minor} is {skew} minor versions away from the cluster's {s.kubernetes_version}; "
            f"Kubernetes supports a skew of one"
        )
    for region in dict.fromkeys([*([s.region] if s.region else []), *(zone[:-1] for zone in s.availability_zones)]):
        if nearest := nearest_region(region):
            found.append(
                f"{'region' if region == s.region else 'availability_zones: region'} {region} is none that this release knows, the nearest is "
                f"{nearest}; correct it in cdk.json, unless it is a new region"
            )
    if any(ipaddress.ip_network(c).prefixlen == 0 for c in s.public_access_cidrs):
        found.append("public_access_cidrs opens the cluster's endpoint to the whole internet; prefer your own address as /32")
    return found
