"""Left in other services: the cluster, load balancers and target groups, logs, buckets, file systems, keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from eks_ray_train.plan.cost import EKS_USD_PER_HOUR

from .aws_session import error_code, is_absent
from .leftovers import HOURS_A_MONTH, STACK_TAG, Finder, Leftover, Place, is_kept, tags_of
from .stack_state import STACKS

# us-east-1 list prices without traffic and requests (the services' pricing pages; not confirmed lately, not read at run
# time).
BALANCER_USD_PER_HOUR = 0.0225
CLASSIC_BALANCER_USD_PER_HOUR = 0.025
LOG_USD_PER_GB_MONTH = 0.03
S3_USD_PER_GB_MONTH = 0.023
KEY_USD_PER_MONTH = 1.0
# FSx for Lustre, persistent SSD, by MB/s per TiB.
LUSTRE_USD_PER_GB_MONTH = {125: 0.145, 250: 0.21, 500: 0.34, 1000: 0.6}
_GB = 1e9


def _cluster(place: Place) -> Iterator[Leftover]:
    from botocore.exceptions import ClientError

    if place.cluster is None:
        return
    try:
        found = place.client("eks").describe_cluster(name=place.cluster)["cluster"]
    except ClientError as error:
        if is_absent(error):
            return
        raise
    if found["status"] != "DELETING":
        yield Leftover(
            kind="EKS cluster",
            id=place.cluster,
            usd_per_month=EKS_USD_PER_HOUR * HOURS_A_MONTH,
            remove=f"aws eks delete-cluster --name {place.cluster}",
            note=f"{found['status']}, Kubernetes {found.get('version', '?')}",
            keep=is_kept(found.get("tags") or {}),
        )


def _chunks(things: list[str], size: int) -> Iterator[list[str]]:
    return (things[start : start + size] for start in range(0, len(things), size))


def _tagged_elb(
    place: Place, operation: str, key: str, arn_key: str
) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """ELBv2 things with their tags (20 a call)."""
    things = {thing[arn_key]: thing for thing in place.pages("elbv2", operation, key)}
    for batch in _chunks(list(things), 20):
        for entry in place.client("elbv2").describe_tags(ResourceArns=batch)["TagDescriptions"]:
            yield things[entry["ResourceArn"]], tags_of(entry)


def _balancers(place: Place) -> Iterator[Leftover]:
    for balancer, tags in _tagged_elb(place, "describe_load_balancers", "LoadBalancers", "LoadBalancerArn"):
        if place.is_ours(tags) or balancer.get("VpcId") in place.vpcs:
            yield Leftover(
                kind="load balancer",
                id=balancer["LoadBalancerName"],
                usd_per_month=BALANCER_USD_PER_HOUR * HOURS_A_MONTH,
                remove=f"aws elbv2 delete-load-balancer --load-balancer-arn {balancer['LoadBalancerArn']}",
                note=f"{balancer.get('Type', '')} in {balancer.get('VpcId', '?')}; made by a Service or Ingress",
                keep=is_kept(tags),
            )


def _classic_balancers(place: Place) -> Iterator[Leftover]:
    found = {
        b["LoadBalancerName"]: b for b in place.pages("elb", "describe_load_balancers", "LoadBalancerDescriptions")
    }
    for batch in _chunks(list(found), 20):
        for entry in place.client("elb").describe_tags(LoadBalancerNames=batch)["TagDescriptions"]:
            name, tags = entry["LoadBalancerName"], tags_of(entry)
            if place.is_ours(tags) or found[name].get("VPCId") in place.vpcs:
                yield Leftover(
                    kind="classic load balancer",
                    id=name,
                    usd_per_month=CLASSIC_BALANCER_USD_PER_HOUR * HOURS_A_MONTH,
                    remove=f"aws elb delete-load-balancer --load-balancer-name {name}",
                    note="made by a Service of type LoadBalancer",
                    keep=is_kept(tags),
                )


def _target_groups(place: Place) -> Iterator[Leftover]:
    for group, tags in _tagged_elb(place, "describe_target_groups", "TargetGroups", "TargetGroupArn"):
        if place.is_ours(tags) or group.get("VpcId") in place.vpcs:
            yield Leftover(
                kind="target group",
                id=group["TargetGroupName"],
                usd_per_month=0.0,
                remove=f"aws elbv2 delete-target-group --target-group-arn {group['TargetGroupArn']}",
                note=f"in {group.get('VpcId', '?')}",
                keep=is_kept(tags),
            )


def _log_groups(place: Place) -> Iterator[Leftover]:
    prefixes = ["/aws/lambda/EksRayTrain", "EksRayTrain"]
    if place.cluster:
        prefixes += [f"/aws/eks/{place.cluster}/", f"/aws/containerinsights/{place.cluster}/"]
    for prefix in prefixes:
        for group in place.pages("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=prefix):
            size = group.get("storedBytes", 0)
            yield Leftover(
                kind="log group",
                id=group["logGroupName"],
                usd_per_month=size / _GB * LOG_USD_PER_GB_MONTH,
                remove=f"aws logs delete-log-group --log-group-name {group['logGroupName']}",
                note=f"{size / 1e6:.1f} MB stored",
            )


def _tagged(place: Place, kind: str) -> Iterator[tuple[str, dict[str, str]]]:
    """ARN and tags of what our stacks made of one kind, by the tagging API (it also remembers the recently deleted)."""
    query = {"ResourceTypeFilters": [kind], "TagFilters": [{"Key": STACK_TAG, "Values": list(STACKS)}]}
    for entry in place.pages("resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", **query):
        yield entry["ResourceARN"], tags_of(entry)


def _buckets(place: Place) -> Iterator[Leftover]:
    from botocore.exceptions import ClientError

    for arn, tags in _tagged(place, "s3"):
        bucket = arn.rpartition(":")[2]
        try:
            place.client("s3").head_bucket(Bucket=bucket)
        except ClientError as error:
            if error_code(error) == "404":
                continue
            if error_code(error) != "403":  # it exists, and is not for us to read
                raise
        size = _bucket_bytes(place, bucket)
        yield Leftover(
            kind="S3 bucket",
            id=bucket,
            usd_per_month=None if size is None else size / _GB * S3_USD_PER_GB_MONTH,
            remove=f"aws s3 rb --force s3://{bucket}",
            note="size not known" if size is None else f"{size / _GB:.2f} GB",
            keep=is_kept(tags),
        )


def _bucket_bytes(place: Place, bucket: str) -> float | None:
    """Newest daily figure of S3's own metric; None where there is none or it may not be read."""
    from botocore.exceptions import BotoCoreError, ClientError

    now = datetime.now(UTC)
    dimensions = {"BucketName": bucket, "StorageType": "StandardStorage"}
    try:
        points = place.client("cloudwatch").get_metric_statistics(
            Namespace="AWS/S3",
            MetricName="BucketSizeBytes",
            Dimensions=[{"Name": name, "Value": value} for name, value in dimensions.items()],
            StartTime=now - timedelta(days=3),
            EndTime=now,
            Period=86_400,
            Statistics=["Average"],
        )["Datapoints"]
    except (ClientError, BotoCoreError):
        return None
    return float(max(points, key=lambda p: p["Timestamp"])["Average"]) if points else None


def _file_systems(place: Place) -> Iterator[Leftover]:
    for system in place.pages("fsx", "describe_file_systems", "FileSystems"):
        tags = tags_of(system)
        if not place.is_ours(tags) or system.get("Lifecycle") == "DELETING":
            continue
        throughput = (system.get("LustreConfiguration") or {}).get("PerUnitStorageThroughput")
        price = LUSTRE_USD_PER_GB_MONTH.get(throughput or 0)
        yield Leftover(
            kind="FSx file system",
            id=system["FileSystemId"],
            usd_per_month=None if price is None else price * system["StorageCapacity"],
            remove=f"aws fsx delete-file-system --file-system-id {system['FileSystemId']}",
            note=f"{system['StorageCapacity']} GiB {system.get('FileSystemType', '')}",
            keep=is_kept(tags),
        )


def _keys(place: Place) -> Iterable[Leftover]:
    from botocore.exceptions import ClientError

    for arn, tags in _tagged(place, "kms"):
        try:
            state = place.client("kms").describe_key(KeyId=arn)["KeyMetadata"]["KeyState"]
        except ClientError as error:
            if is_absent(error):
                continue
            raise
        if state != "PendingDeletion":  # which is not charged
            yield Leftover(
                kind="KMS key",
                id=arn.rpartition("/")[2],
                usd_per_month=KEY_USD_PER_MONTH,
                remove=f"aws kms schedule-key-deletion --key-id {arn.rpartition('/')[2]}",
                note=state,
                keep=is_kept(tags),
            )


SERVICE_FINDERS = (
    Finder(kind="EKS cluster", action="eks:DescribeCluster", costs=True, find=_cluster),
    Finder(
        kind="load balancer",
        action="elasticloadbalancing:DescribeLoadBalancers and DescribeTags",
        costs=True,
        find=_balancers,
    ),
    Finder(
        kind="classic load balancer",
        action="elasticloadbalancing:DescribeLoadBalancers and DescribeTags",
        costs=True,
        find=_classic_balancers,
    ),
    Finder(
        kind="target group",
        action="elasticloadbalancing:DescribeTargetGroups and DescribeTags",
        costs=False,
        find=_target_groups,
    ),
    Finder(kind="log group", action="logs:DescribeLogGroups", costs=True, find=_log_groups),
    Finder(kind="S3 bucket", action="tag:GetResources and s3:ListBucket", costs=True, find=_buckets),
    Finder(kind="FSx file system", action="fsx:DescribeFileSystems", costs=True, find=_file_systems),
    Finder(kind="KMS key", action="tag:GetResources and kms:DescribeKey", costs=True, find=_keys),
)
