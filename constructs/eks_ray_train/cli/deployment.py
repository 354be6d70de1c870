"""What ``up``, ``down`` and ``scale`` do to the stacks: deploy, destroy, wait, tell why something failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eks_ray_train.errors import EksRayTrainError, NoCapacityError

from .aws_session import Session, aws_errors
from .cdk_runner import Cdk
from .consent import note
from .stack_failure import Failure, Kind, destroy_hint, failures_since, remember, show, verdict
from .stack_state import CLUSTER, NETWORK, STACKS, TRAINING, StackState, is_bootstrapped, read_stacks, settle

if TYPE_CHECKING:
    from eks_ray_train.settings import Settings


@dataclass
class Deployment:
    """The app's stacks in one account. ``again``: the command that goes on after an interruption."""

    cdk: Cdk
    session: Session
    again: str
    sleep: Callable[[float], None] = time.sleep
    region: str = ""  # where cdk worked last
    _bootstrapped: set[str] = field(default_factory=set)

    @classmethod
    @contextmanager
    def open(cls, cdk: Cdk, session: Session, *, again: str) -> Iterator[Deployment]:
        """Inside, an interruption tells what stands before it goes on upwards."""
        deployment = cls(cdk=cdk, session=session, again=again)
        try:
            yield deployment
        except KeyboardInterrupt:
            deployment.tell_state()
            raise

    # -- what stands ------------------------------------------------------------------------------------------------
    def cloudformation(self, region: str) -> Any:
        return self.session.client("cloudformation", region)

    def states(self, region: str) -> dict[str, StackState]:
        return read_stacks(self.cloudformation(region))

    def settle(self, region: str) -> dict[str, StackState]:
        """Waits for what CloudFormation still does (after an interruption) and returns the stacks."""
        self.region = region
        return settle(self.cloudformation(region), say=note, sleep=self.sleep)

    def network_stands(self, region: str) -> bool:
        states = self.states(region)
        return any(name in states and states[name].stands for name in (NETWORK, CLUSTER))

    def training_stands(self, region: str) -> bool:
        """Whether the training stack can be updated in place; one that is broken is an error that says the way out."""
        state = self.states(region).get(TRAINING)
        if state is None or not state.stands:
            return False
        if state.whole:
            return True
        if state.status == "UPDATE_ROLLBACK_FAILED":
            raise EksRayTrainError(
                f"{state} in {region}: {state.reason or 'its last update could not be undone'}; run `aws "
                "cloudformation "
                f"continue-update-rollback --stack-name {TRAINING} --region {region}`, then `{self.again}` again"
            )
        raise EksRayTrainError(
            f"{state} in {region}: {state.reason or 'it is neither whole nor gone'}; run `cdk destroy {TRAINING} "
            "--exclusively` and "
            f"then `{self.again}` again, or `eks-ray-train down`"
        )

    def allowed_zones(self, settings: Settings) -> dict[str, tuple[str, ...]]:
        """Zones to which a network limits the nodes, by region: of one that stands, or is given, or the zones set."""
        home = self.session.home
        if settings.existing_cluster:
            return {home: tuple(settings.existing_cluster["availability_zones"])}
        ec2 = self.session.client("ec2", home)
        if settings.existing_vpc_id:
            found = _zones(ec2, Filters=[{"Name": "vpc-id", "Values": [settings.existing_vpc_id]}])
        else:
            found = self.standing_zones(home)
        zones = found or settings.availability_zones
        return {home: zones} if zones else {}

    def standing_zones(self, region: str) -> tuple[str, ...]:
        """Zones of the network stack's subnets; empty where it does not stand."""
        state = self.states(region).get(NETWORK)
        if state is None or not state.stands:
            return ()
        with aws_errors("cloudformation:DescribeStackResources"):
            found = self.cloudformation(region).describe_stack_resources(StackName=NETWORK)["StackResources"]
        ids = [
            r["PhysicalResourceId"]
            for r in found
            if r["ResourceType"] == "AWS::EC2::Subnet"
            and r.get("PhysicalResourceId")
            and r["ResourceStatus"] != "DELETE_COMPLETE"
        ]
        return _zones(self.session.client("ec2", region), SubnetIds=ids) if ids else ()

    # -- what is done -----------------------------------------------------------------------------------------------
    def bootstrap(self, region: str) -> None:
        """``cdk bootstrap`` where it was never run. Raises EksRayTrainError where it fails."""
        if region in self._bootstrapped or is_bootstrapped(self.session, region):
            self._bootstrapped.add(region)
            return
        account = self.session.caller().account
        note(f"cdk bootstrap aws://{account}/{region} (once per account and region)")
        code = self.cdk.bootstrap(account, region)
        if code:
            raise EksRayTrainError(
                f"cdk bootstrap of {account}/{region} ended with code {code}, its message is above; it needs a role "
                "that may create "
                "IAM roles, an S3 bucket and an ECR repository"
            )
        self._bootstrapped.add(region)

    def deploy(
        self, region: str, settings: Mapping[str, Any], stacks: Sequence[str] = ("--all",), **kwargs: Any
    ) -> list[Failure] | None:
        """Runs ``cdk deploy``; None where it worked, else the failures (empty where CloudFormation shows none)."""
        self.region = region
        seen = remember(self.cloudformation(region))
        code = self.cdk.deploy(stacks, settings, **kwargs)
        if code == 0:
            return None
        self.settle(region)
        return failures_since(self.cloudformation(region), seen)

    def deploy_in_place(
        self, region: str, settings: Mapping[str, Any], stacks: Sequence[str] = ("--all",), **kwargs: Any
    ) -> None:
        """A deploy over standing stacks. Raises NoCapacityError (exit code 5) or EksRayTrainError with the reason."""
        failures = self.deploy(region, settings, stacks, **kwargs)
        if failures is not None:
            raise self.explained(
                f"cdk deploy failed in {region}; CloudFormation restored what was there before", failures
            )

    def destroy(
        self, region: str, settings: Mapping[str, Any], stacks: Sequence[str] = ("--all",), *, exclusively: bool = False
    ) -> None:
        """Runs ``cdk destroy``. Raises EksRayTrainError that names stack, resource, reason and the way on."""
        self.region = region
        seen = remember(self.cloudformation(region))
        code = self.cdk.destroy(stacks, settings, exclusively=exclusively)
        if code == 0:
            return
        states = self.settle(region)
        failures = failures_since(self.cloudformation(region), seen, tuple(reversed(STACKS)))
        wanted = STACKS if stacks == ("--all",) else stacks
        left = ", ".join(str(states[name]) for name in reversed(STACKS) if name in states and name in wanted)
        if failures:
            reason = f"\n{show(failures)}\nWhat to do: {destroy_hint(failures)}"
        else:
            reason = f" (code {code}); its message is above, and CloudFormation shows no failure"
        raise EksRayTrainError(f"cdk destroy stopped half-way in {region}{reason}\nstill there: {left or 'no stack'}")

    def explained(self, head: str, failures: Sequence[Failure]) -> EksRayTrainError:
        """The error for a deploy that failed: exit code 5 for capacity, quota and reservations, 1 for anything else."""
        if not failures:
            return EksRayTrainError(f"{head}.\nCloudFormation shows no failed resource: cdk's own message is above")
        kind = verdict(failures)
        kinds = (Kind.CAPACITY, Kind.QUOTA, Kind.RESERVATION)
        error = NoCapacityError if kind in kinds else EksRayTrainError
        return error(f"{head} ({kind}).\n{show(failures)}")

    def tell_state(self) -> None:
        """What stands in the region where cdk worked, on stderr; never raises."""
        if not self.region:
            note("nothing had been started")
            return
        try:
            states = self.states(self.region)
        except EksRayTrainError as error:
            note(f"interrupted; the state of the stacks in {self.region} could not be read: {error}")
            return
        lines = ", ".join(map(str, states.values())) or "no stack"
        moving = " CloudFormation goes on by itself." if any(s.moving for s in states.values()) else ""
        note(
            f"interrupted in {self.region}: {lines}.{moving} Run `{self.again}` to go on, or `eks-ray-train down` to "
            "take everything "
            "away; what stands costs money until then"
        )


def _zones(ec2: Any, **query: Any) -> tuple[str, ...]:
    with aws_errors("ec2:DescribeSubnets"):
        subnets = ec2.describe_subnets(**query)["Subnets"]
    return tuple(sorted({s["AvailabilityZone"] for s in subnets}))
