"""Stand-ins for the ``cdk`` command (a real subprocess) and for the CloudFormation, SSM and EKS that it changes.

Both share one JSON file, so that what the command does is what the clients see. Requests and answers are validated against
botocore's own models, as in fake_ec2.
"""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eks_ray_train.cli.aws_session import Caller
from tests.fake_ec2 import ACCOUNT, client_error, service_model, validate

STACKS = ("EksRayTrainNetwork", "EksRayTrainCluster", "EksRayTrainTraining")
OUTPUTS = {
    "ClusterName": "eks-ray-train",
    "NodeGroupName": "gpu-1",
    "SpendingLimitAt": "2026-11-30T00:00:00",
    "SubmitCommand": "eks-ray-train submit -- --steps 10",
    "CapacityNote": "capacity was there when asked",
}
NO_CAPACITY = (
    "Received response status [FAILED] from custom resource. Message returned: No capacity for 2 x g6.12xlarge in us-west-2a now.\n"
    "What to do: try again later\n    at invokeUserFunction (/var/task/framework.js:2:6)\n (RequestId: 0a1b)"
)
NODE_GROUP_ICE = (
    "Nodegroup gpu failed to stabilize: [{Code: AsgInstanceLaunchFailures,Message: Could not launch On-Demand Instances. "
    "InsufficientInstanceCapacity - We currently do not have sufficient g6.12xlarge capacity in the Availability Zone you requested "
    "(us-west-2a).,ResourceIds: [eks-gpu]}]"
)
NODE_GROUP_QUOTA = (
    "Nodegroup gpu failed to stabilize: [{Code: AsgInstanceLaunchFailures,Message: Could not launch On-Demand Instances. "
    "VcpuLimitExceeded - You have requested more vCPU capacity than your current vCPU limit of 96 allows.,ResourceIds: [eks-gpu]}]"
)

# The script knows nothing of AWS: it reads who refuses, changes the stacks, writes events, and ends with cdk's code.
_SCRIPT = """#!{python}
import json, os, signal, sys, time
path = {world!r}
words = sys.argv[1:]
world = json.load(open(path))
world["calls"].append(words)
settings = {{}}
for flag, value in zip(words, words[1:]):
    if flag == "-c":
        key, _, text = value.partition("=")
        settings[key.removeprefix("eks-ray-train:")] = text
def save():
    json.dump(world, open(path, "w"))
save()
region = settings.get("region", world["home"])
stacks = world["stacks"].setdefault(region, {{}})
names = {stacks!r}
def put(name, status, **more):
    old = stacks.get(name, {{"events": []}})
    if old.get("status") == "ROLLBACK_COMPLETE" and status != "ROLLBACK_COMPLETE":
        old = {{"events": []}}
    stacks[name] = {{**old, "status": status, **more}}
def event(name, resource, kind, status, reason):
    stacks[name]["events"].insert(0, [f"e{{len(world['calls'])}}-{{len(stacks[name]['events'])}}", resource, kind, status, reason])
print("cdk:", *words, flush=True)
verb = words[0]
hang = world["hang"].pop(verb, None)
if hang:
    count = []
    def stop(number, frame):
        count.append(number)
    signal.signal(signal.SIGINT, stop)
    put(names[-1], "CREATE_IN_PROGRESS", outputs={{}})
    save()
    open(path + ".hanging", "w").close()
    until = time.monotonic() + 30
    while not count and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.3)  # time for a second signal that must not come
    open(path + ".signals", "w").write(str(len(count)))
    sys.exit(130)
code = world["codes"].get(verb, [])
if code and (now := code.pop(0)):
    save()
    print("cdk: failed before CloudFormation", file=sys.stderr)
    sys.exit(now)
if verb == "bootstrap":
    world["bootstrapped"].append(words[1].rpartition("/")[2])
elif verb == "deploy":
    refuse = world["refuse"].get(settings.get("gpu_zone", "in place"))
    for name in names:
        fresh = name not in stacks or stacks[name]["status"] == "ROLLBACK_COMPLETE"
        if refuse and refuse["stack"] == name:
            put(name, "ROLLBACK_COMPLETE" if fresh else "UPDATE_ROLLBACK_COMPLETE")
            event(name, refuse["resource"], refuse["type"], "CREATE_FAILED" if fresh else "UPDATE_FAILED", refuse["reason"])
            event(name, "Victim", "AWS::SNS::Topic", "CREATE_FAILED", "Resource creation cancelled")
            event(name, name, "AWS::CloudFormation::Stack", "ROLLBACK_COMPLETE", "")
            save()
            sys.exit(1)
        put(name, "CREATE_COMPLETE" if fresh else "UPDATE_COMPLETE", outputs={{}})
        event(name, name, "AWS::CloudFormation::Stack", "CREATE_COMPLETE", "")
    put(names[-1], stacks[names[-1]]["status"], outputs={{**{outputs!r}, "GpuZone": settings.get("gpu_zone", "")}})
elif verb == "destroy":
    wanted = [n for n in reversed(names) if "--all" in words or n in words]
    for name in wanted:
        refuse = world["stuck"].get(name)
        if refuse:
            put(name, "DELETE_FAILED")
            event(name, refuse["resource"], refuse["type"], "DELETE_FAILED", refuse["reason"])
            save()
            sys.exit(1)
        stacks.pop(name, None)
save()
"""


@dataclass
class CdkWorld:
    """The stand-in command in ``folder`` and the account it changes."""

    folder: Path
    home: str = "us-west-2"
    node_group: dict[str, int] = field(default_factory=lambda: {"minSize": 0, "desiredSize": 2, "maxSize": 2})
    eks_calls: list[dict[str, Any]] = field(default_factory=list)
    settles: dict[str, str] = field(default_factory=dict)  # stack -> the state that it has at the next look
    subnet_zones: tuple[str, ...] = ()
    denied: set[str] = field(default_factory=set)  # operations without permission
    reservations: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.folder / "world.json"
        self.command = self.folder / "cdk-stand-in"
        self.change(
            home=self.home, calls=[], stacks={}, bootstrapped=[self.home], refuse={}, stuck={}, hang={}, codes={}
        )
        text = _SCRIPT.format(python=sys.executable, world=str(self.path), stacks=STACKS, outputs=OUTPUTS)
        self.command.write_text(text)
        self.command.chmod(self.command.stat().st_mode | stat.S_IXUSR)

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        return found

    def change(self, **fields: Any) -> None:
        self.path.write_text(json.dumps({**self.read(), **fields}))

    def refuse(self, zone: str, stack: str = STACKS[2], reason: str = NO_CAPACITY) -> None:
        """Deploys with this zone fail in ``stack`` (``in place``: deploys that name no zone)."""
        told = {"stack": stack, "resource": "CapacityClaim", "type": "Custom::CapacityClaim", "reason": reason}
        self.change(refuse={**self.read()["refuse"], zone: told})

    def stick(self, stack: str, reason: str) -> None:
        """Destroys fail at ``stack``."""
        told = {"resource": "Group", "type": "AWS::EC2::SecurityGroup", "reason": reason}
        self.change(stuck={**self.read()["stuck"], stack: told})

    def standing(self, *, region: str = "", **statuses: str) -> None:
        """Stacks that exist, by the last word of their names."""
        made = {f"EksRayTrain{name}": {"status": s, "events": [], "outputs": OUTPUTS} for name, s in statuses.items()}
        self.change(stacks={**self.read()["stacks"], region or self.home: made})

    @property
    def calls(self) -> list[list[str]]:
        calls: list[list[str]] = self.read()["calls"]
        return calls

    def verbs(self) -> list[str]:
        return [words[0] for words in self.calls]

    def statuses(self, region: str = "") -> dict[str, str]:
        return {name: s["status"] for name, s in self.read()["stacks"].get(region or self.home, {}).items()}

    def session(self, region: str | None = None) -> FakeSession:
        return FakeSession(self, region or self.home)


def setting(words: list[str], name: str) -> str | None:
    """The value that a call handed over by ``-c eks-ray-train:NAME=…``."""
    prefix = f"eks-ray-train:{name}="
    return next((w.removeprefix(prefix) for w in words if w.startswith(prefix)), None)


@dataclass
class FakeSession:
    """Stands in for ``cli.aws_session.BotoSession``."""

    world: CdkWorld
    home: str
    arn: str = f"arn:aws:sts::{ACCOUNT}:assumed-role/Builder/me"

    def caller(self) -> Caller:
        return Caller(account=ACCOUNT, arn=self.arn)

    def client(self, service: str, region: str | None = None) -> Any:
        return FakeClient(self.world, service, region or self.home)


@dataclass
class FakeClient:
    """One service of one region; only what the commands ask."""

    world: CdkWorld
    service: str
    region: str

    def __getattr__(self, method: str) -> Any:
        name = "".join(part.capitalize() for part in method.split("_"))
        answer = getattr(type(self), f"on_{method}", None)
        if answer is None:
            raise AttributeError(method)
        model = service_model(self.service).operation_model(name)

        def call(**kwargs: Any) -> Any:
            validate(model.input_shape, kwargs, f"request {name}")
            if name in self.world.denied:
                raise client_error("AccessDeniedException", "not authorized", name)
            found = answer(self, **kwargs)
            validate(model.output_shape, found, f"answer {name}")
            return found

        return call

    def get_paginator(self, method: str) -> Any:
        client = self

        class Pages:
            def paginate(self, **kwargs: Any) -> Iterator[Any]:
                yield getattr(client, method)(**kwargs)

        return Pages()

    def _stack(self, name: str) -> dict[str, Any]:
        found = self.world.read()["stacks"].get(self.region, {})
        if name not in found:
            raise client_error("ValidationError", f"Stack with id {name} does not exist")
        stack: dict[str, Any] = found[name]
        return stack

    def on_describe_stacks(self, StackName: str) -> dict[str, Any]:
        stack = self._stack(StackName)
        shown = {
            "StackName": StackName,
            "StackId": f"arn:aws:cloudformation:{self.region}:{ACCOUNT}:stack/{StackName}/0a",
            "StackStatus": stack["status"],
            "CreationTime": datetime(2026, 11, 29, tzinfo=UTC),
            "Outputs": [{"OutputKey": k, "OutputValue": v} for k, v in stack.get("outputs", {}).items()],
        }
        if StackName in self.world.settles:  # CloudFormation goes on by itself between two looks
            world = self.world.read()
            world["stacks"][self.region][StackName]["status"] = self.world.settles.pop(StackName)
            self.world.change(stacks=world["stacks"])
        return {"Stacks": [shown]}

    def on_describe_stack_events(self, StackName: str) -> dict[str, Any]:
        stack_id = f"arn:aws:cloudformation:{self.region}:{ACCOUNT}:stack/{StackName}/0a"
        events = [
            {
                "EventId": id_,
                "StackName": StackName,
                "StackId": stack_id,
                "Timestamp": datetime(2026, 11, 29, tzinfo=UTC),
                "LogicalResourceId": resource,
                "PhysicalResourceId": stack_id if resource == StackName else resource,
                "ResourceType": kind,
                "ResourceStatus": status,
                "ResourceStatusReason": reason,
            }
            for id_, resource, kind, status, reason in self._stack(StackName)["events"]
        ]
        return {"StackEvents": events}

    def on_describe_stack_resources(self, StackName: str) -> dict[str, Any]:
        self._stack(StackName)
        made = [
            {
                "LogicalResourceId": f"S{n}",
                "PhysicalResourceId": f"subnet-{zone}",
                "ResourceType": "AWS::EC2::Subnet",
                "ResourceStatus": "CREATE_COMPLETE",
                "Timestamp": datetime(2026, 11, 29, tzinfo=UTC),
            }
            for n, zone in enumerate(self.world.subnet_zones)
        ]
        return {"StackResources": made}

    def on_describe_subnets(self, SubnetIds: list[str] | None = None, Filters: Any = None) -> dict[str, Any]:
        names = [i.removeprefix("subnet-") for i in SubnetIds or []] or list(self.world.subnet_zones)
        return {"Subnets": [{"SubnetId": f"subnet-{z}", "AvailabilityZone": z} for z in names]}

    def on_describe_regions(self) -> dict[str, Any]:
        opted = {"us-east-2": "opt-in-not-required", "us-west-2": "opt-in-not-required", "eu-south-2": "not-opted-in"}
        return {"Regions": [{"RegionName": name, "OptInStatus": status} for name, status in opted.items()]}

    def on_describe_capacity_reservations(self, Filters: list[dict[str, Any]]) -> dict[str, Any]:
        (states,) = (f["Values"] for f in Filters if f["Name"] == "state")
        return {"CapacityReservations": [r for r in self.world.reservations if r["State"] in states]}

    def on_cancel_capacity_reservation(self, CapacityReservationId: str) -> dict[str, Any]:
        (held,) = (r for r in self.world.reservations if r["CapacityReservationId"] == CapacityReservationId)
        held["State"] = "cancelled"
        return {"Return": True}

    def on_get_parameter(self, Name: str) -> dict[str, Any]:
        if self.region not in self.world.read()["bootstrapped"]:
            raise client_error("ParameterNotFound", "", "GetParameter")
        return {"Parameter": {"Name": Name, "Value": "25"}}

    def on_describe_nodegroup(self, clusterName: str, nodegroupName: str) -> dict[str, Any]:
        if not self.world.node_group:
            raise client_error("ResourceNotFoundException", "No node group found", "DescribeNodegroup")
        return {"nodegroup": {"nodegroupName": nodegroupName, "scalingConfig": self.world.node_group}}

    def on_update_nodegroup_config(
        self, clusterName: str, nodegroupName: str, scalingConfig: dict[str, int]
    ) -> dict[str, Any]:
        assert scalingConfig["minSize"] <= scalingConfig["desiredSize"] <= scalingConfig["maxSize"]
        assert scalingConfig["maxSize"] >= 1, "EKS refuses a maximum of 0"
        self.world.eks_calls.append(scalingConfig)
        self.world.node_group = dict(scalingConfig)
        return {"update": {"id": "u", "status": "InProgress"}}
