"""``eks-ray-train scale N``: the number of GPU nodes; capacity is claimed and the spending limit armed again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eks_ray_train.errors import ClusterNotReadyError, EksRayTrainError, ExitCode, UsageError

if TYPE_CHECKING:
    from eks_ray_train.cli.deployment import Deployment
    from eks_ray_train.cli.stack_state import StackState
    from eks_ray_train.settings import Settings

MAX_NODES = 450  # of one managed node group: https://docs.aws.amazon.com/eks/latest/userguide/service-quotas.html

EPILOG = """\
scale N (N > 0) deploys the training stack with N nodes: the capacity claim asks EC2 again (only for the nodes it
lacks, in the zone where nodes run), the spending limit counts anew from now, and the node group gets N nodes,
also after the limit or `scale 0` took them away. cdk.json then says N (and H). Where EC2 has no capacity,
everything stays as it was: exit code 5. scale 0 tells EKS directly to drain and stop the GPU nodes, whatever state
the stack is in, which takes seconds to start and needs no deploy; a reservation of the stack's own (capacity hold)
is cancelled at once. Network and cluster stay (about $0.35 an hour); `eks-ray-train down` takes them away. cdk.json
keeps its number of nodes.

examples:
  eks-ray-train scale 4               four nodes; limit counted anew with the same max_hours
  eks-ray-train scale 2 --hours 6     two nodes for six hours
  eks-ray-train scale 0               stop paying for the GPU nodes

exit codes: 0 good, 5 no capacity or quota, 6 nothing is deployed, 2 wrong use or nobody agreed, 1 another
failure, 130 interrupted
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``scale``."""
    parser = subparsers.add_parser(
        "scale",
        help="set the number of GPU nodes, claim capacity again",
        description="Sets the GPU node group to N nodes.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("nodes", metavar="N", type=int, help=f"GPU nodes, 0 to {MAX_NODES}")
    parser.add_argument(
        "--hours", metavar="H", type=int, help="spending limit from now on, in hours (0: none; default: cdk.json's)"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before it costs money")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, human text on stderr")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code; raises the errors of errors.py with what to do."""
    from eks_ray_train.cli.aws_session import open_session
    from eks_ray_train.cli.cdk_runner import find_cdk
    from eks_ray_train.cli.deployment import Deployment
    from eks_ray_train.settings import load_settings
    from eks_ray_train.settings_rules import MAX_HOURS

    if not 0 <= args.nodes <= MAX_NODES:
        raise UsageError(f"N must be 0 to {MAX_NODES} (nodes of one managed node group), got {args.nodes}")
    if args.hours is not None and not 0 <= args.hours <= MAX_HOURS:
        raise UsageError(f"--hours must be 0 (no spending limit) to {MAX_HOURS} (a year), got {args.hours}")
    if args.nodes == 0 and args.hours is not None:
        raise UsageError("--hours has no use with 0 nodes; leave it out")
    settings = load_settings(Path("cdk.json"))
    cdk = find_cdk(quiet_stdout=args.json)
    session = open_session(settings.region)
    session.caller()
    with Deployment.open(cdk, session, again=f"eks-ray-train scale {args.nodes}") as deployment:
        return scale(args, settings, deployment, now=lambda: datetime.now(UTC))


def scale(args: argparse.Namespace, settings: Settings, deployment: Deployment, *, now: Callable[[], datetime]) -> int:
    """The command with its clients given. Raises ClusterNotReadyError (exit code 6) where no training stack stands."""
    from eks_ray_train.cli.cdk_json import check_changeable
    from eks_ray_train.cli.stack_state import TRAINING

    region = deployment.session.home
    if args.nodes == 0:
        return _to_zero(args, settings, deployment, region)
    check_changeable(Path("cdk.json"), "the folder of cdk.json")
    deployment.settle(region)
    if not deployment.training_stands(region):
        raise ClusterNotReadyError(f"no training stack stands in {region}; deploy with `eks-ray-train up`")
    outputs = deployment.states(region)[TRAINING].outputs
    names = outputs.get("ClusterName", ""), outputs.get("NodeGroupName", "")
    if not all(names):
        raise ClusterNotReadyError(
            f"{TRAINING} has no outputs ClusterName and NodeGroupName; run `cdk deploy {TRAINING}` once"
        )
    return _up_to(args, settings, deployment, region, names, now)


def _to_zero(args: argparse.Namespace, settings: Settings, deployment: Deployment, region: str) -> int:
    """Neither waits for CloudFormation nor asks for a whole stack: nodes run, and cost, in its broken states too."""
    from eks_ray_train.cli.consent import note
    from eks_ray_train.cli.stack_state import TRAINING, read_stack

    deployment.region = region
    state = read_stack(deployment.cloudformation(region), TRAINING)
    if state is None or not state.stands:
        raise ClusterNotReadyError(f"no training stack stands in {region}; deploy with `eks-ray-train up`")
    names = state.outputs.get("ClusterName", ""), state.outputs.get("NodeGroupName", "")
    _set_nodes(deployment, names if all(names) else _names_of_resource(deployment, state), 0)
    if state.moving:
        # Without its hold the update that goes on could fail.
        note(
            f"{state}: CloudFormation goes on and may start nodes again, and a reservation (capacity hold) stays and costs "
            "until it ends by itself within two hours; run `eks-ray-train scale 0` once more when CloudFormation is done"
        )
    else:
        _end_holds(settings, deployment, region, state)
    return _finish(args, deployment, region, state.outputs)


def _names_of_resource(deployment: Deployment, state: StackState) -> tuple[str, str]:
    """Cluster and node group of a stack that never came to have outputs. Raises ClusterNotReadyError without a group."""
    from eks_ray_train.cli.aws_session import aws_errors

    cloudformation = deployment.cloudformation(deployment.region)
    with aws_errors("cloudformation:DescribeStackResources"):
        found = cloudformation.describe_stack_resources(StackName=state.name)["StackResources"]
    for resource in found:
        # "cluster/group": https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-eks-nodegroup.html
        cluster, _, group = resource.get("PhysicalResourceId", "").partition("/")
        if resource["ResourceType"] == "AWS::EKS::Nodegroup" and group:
            return cluster, group
    raise ClusterNotReadyError(f"{state} has no node group, so no GPU node; `eks-ray-train down` takes the stack away")


def _end_holds(settings: Settings, deployment: Deployment, region: str, state: StackState) -> None:
    """Cancels the stack's own reservations at once: EC2 lets the nodes in them run on until EKS has drained them.

    Raises EksRayTrainError that says what goes on costing, and until when, where one cannot be cancelled.
    """
    from eks_ray_train.capacity.aws import AWS_ERRORS, Aws, explain
    from eks_ray_train.capacity.model import TAG_STACK, format_time
    from eks_ray_train.capacity.reservations import cancel, live
    from eks_ray_train.cli.consent import note

    aws = Aws(ec2=deployment.session.client("ec2", region), sleep=deployment.sleep)
    told = "EKS drains the GPU nodes, but"
    try:
        found = [held for held in live(aws) if held.tags.get(TAG_STACK) == state.stack_id]
    except AWS_ERRORS as error:
        if settings.capacity != "hold":
            return  # no hold is expected, so there is nothing that this identity would have to see
        raise EksRayTrainError(
            f"{told} whether a reservation (capacity hold) is left is not known "
            f"({explain('ec2:DescribeCapacityReservations', error)}); its empty slots cost the nodes' price until it "
            "ends by itself, at most two hours after the last node; allow the action and run `eks-ray-train scale 0` again"
        ) from None
    for held in found:
        try:
            cancel(aws, held.id)
        except AWS_ERRORS as error:
            raise EksRayTrainError(
                f"{told} reservation {held.id} could not be cancelled ({explain('ec2:CancelCapacityReservation', error)})"
                f": its {held.total} x {held.instance_type} cost their price, used or not, until it ends by itself (end "
                f"date {format_time(held.end)} UTC now; at most two hours after the last node); run `aws ec2 "
                f"cancel-capacity-reservation --capacity-reservation-id {held.id} --region {region}`"
            ) from None
        note(f"EC2: reservation {held.id} ({held.total} x {held.instance_type}) is cancelled")


def _up_to(
    args: argparse.Namespace,
    settings: Settings,
    deployment: Deployment,
    region: str,
    names: tuple[str, str],
    now: Callable[[], datetime],
) -> int:
    from dataclasses import replace

    from eks_ray_train.cli.consent import agree
    from eks_ray_train.cli.stack_state import ARM_PARAMETER, TRAINING
    from eks_ray_train.cli.up import limit_line, price_line

    updates: dict[str, Any] = {"region": region, "gpu_node_count": args.nodes}
    if args.hours is not None:
        updates["max_hours"] = args.hours
    wanted = replace(settings, **updates)
    agree(
        args,
        f"scale sets the GPU nodes to {args.nodes} x {settings.gpu_instance_type}: {price_line(wanted, args.nodes)}. "
        f"{limit_line(wanted)}",
        refused="nothing was changed",
    )
    # Colons and all: the parameter's pattern takes them, and a person can read it in the console.
    armed = now().strftime("%Y-%m-%dT%H:%M:%SZ")
    deployment.deploy_in_place(region, updates, (TRAINING,), parameters={f"{TRAINING}:{ARM_PARAMETER}": armed})
    outputs = deployment.states(region)[TRAINING].outputs
    # A new node group has a new name; and CloudFormation leaves a group alone whose own properties did not change,
    # though the limit or `scale 0` took its nodes away.
    names = outputs.get("ClusterName", names[0]), outputs.get("NodeGroupName", names[1])
    try:
        if not outputs.get("CapacityNote", "").startswith("the Capacity Block starts at"):
            _set_nodes(deployment, names, args.nodes)
    finally:  # the stack has the number already, whatever EKS says
        _write(updates)
    return _finish(args, deployment, region, outputs)


def _write(updates: dict[str, Any]) -> None:
    from eks_ray_train.cli.cdk_json import write_settings
    from eks_ray_train.cli.consent import note

    try:
        changed = write_settings(Path("cdk.json"), updates)
    except (OSError, UsageError) as error:
        text = ", ".join(f"{key} {json.dumps(value)}" for key, value in updates.items())
        raise EksRayTrainError(
            f"{error}. The stack is deployed all the same, with {text}: set that in cdk.json, or the next deploy goes back"
        ) from None
    for key, (old, new) in changed.items():
        note(f"cdk.json: {key}: {json.dumps(old)} -> {json.dumps(new)}")


def _set_nodes(deployment: Deployment, names: tuple[str, str], nodes: int) -> None:
    """Tells EKS, where the group has another number. Raises ClusterNotReadyError where there is no such group."""
    from botocore.exceptions import ClientError

    from eks_ray_train.cli.aws_session import aws_errors, error_code
    from eks_ray_train.cli.consent import note

    eks, (cluster, group) = deployment.session.client("eks"), names
    try:
        with aws_errors("eks:DescribeNodegroup"):
            try:
                found = eks.describe_nodegroup(clusterName=cluster, nodegroupName=group)["nodegroup"]["scalingConfig"]
            except ClientError as error:
                if error_code(error) != "ResourceNotFoundException":
                    raise
                raise ClusterNotReadyError(
                    f"EKS knows no node group {group} in cluster {cluster}; run `cdk deploy`"
                ) from None
        if found.get("desiredSize") == nodes and found.get("minSize", 0) <= nodes:
            return
        # The maximum stays, as the spending limit leaves it: a later `scale` is bounded by the template alone.
        sizes = {"minSize": 0, "desiredSize": nodes, "maxSize": max(int(found.get("maxSize", 1)), nodes, 1)}
        with aws_errors("eks:UpdateNodegroupConfig"):
            eks.update_nodegroup_config(clusterName=cluster, nodegroupName=group, scalingConfig=sizes)
    except EksRayTrainError as error:
        if "ResourceInUseException" in str(error):
            raise ClusterNotReadyError(
                f"EKS still updates node group {group}; run the command again in some minutes"
            ) from None
        raise
    note(f"EKS: node group {group} goes from {found.get('desiredSize')} to {nodes} nodes")


def _finish(args: argparse.Namespace, deployment: Deployment, region: str, outputs: dict[str, str]) -> int:
    from eks_ray_train.cli.consent import out

    limit = outputs.get("SpendingLimitAt", "") if args.nodes else ""
    if args.nodes:
        out(args, f"{args.nodes} GPU nodes in {outputs.get('GpuZone', region)}: {outputs.get('CapacityNote', '')}")
        if limit:
            out(
                args,
                f"they go to zero at {limit} UTC; `eks-ray-train scale {args.nodes}` counts anew, `scale 0` stops "
                "earlier",
            )
    else:
        out(
            args,
            "the GPU nodes are drained and stopped within some minutes; network and cluster stay until `eks-ray-train "
            "down`",
        )
    if args.json:
        print(
            json.dumps(
                {"nodes": args.nodes, "region": region, "limit_at": limit or None, "outputs": outputs, "exit_code": 0}
            )
        )
    return int(ExitCode.OK)
