"""CapacityProbe and CapacityClaim: what their templates say, what the Lambda asset holds, how a failure is told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk.assertions import Match, Template

from eks_ray_train.capacity.hold import Watch
from eks_ray_train.capacity.report import fit
from eks_ray_train.capacity.request import Request
from eks_ray_train.capacity_probe import CapacityClaim, CapacityProbe
from eks_ray_train.efa_gpu_node_group import EfaGpuNodeGroup
from eks_ray_train.errors import SettingsError

MODES: tuple[Any, ...] = ("probe", "hold", "reservation", "block", "none")
GIVEN = "cr-0123456789abcdef0"
G6: dict[str, Any] = {"instance_type": "g6.12xlarge", "vcpus_per_node": 48, "quota_code": "L-DB2E81BA", "node_count": 2}


def _claim(scope: Stack, capacity: Any = "probe", **changes: Any) -> CapacityClaim:
    subnets = [
        ec2.Subnet.from_subnet_attributes(scope, f"S{z}", subnet_id=f"subnet-{z}", availability_zone=f"us-west-2{z}")
        for z in "ab"
    ]
    given = GIVEN if capacity in ("reservation", "block") else None
    told = {**G6, "subnets": subnets, "capacity": capacity, "reservation_id": given, "max_hours": 12, **changes}
    return CapacityClaim(scope, "Claim", **told)


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All modes, synthesized once, with neither account nor region."""
    out = tmp_path_factory.mktemp("assembly")
    app = App(outdir=str(out))
    for mode in MODES:
        _claim(Stack(app, f"claim-{mode}"), mode)
        given = GIVEN if mode in ("reservation", "block") else None
        CapacityProbe(Stack(app, f"probe-{mode}"), "Probe", **G6, zones=["a", "b"], capacity=mode, reservation_id=given)
    app.synth()
    return out


@pytest.fixture(scope="module")
def templates(assembly: Path) -> dict[str, Template]:
    return {p.name.split(".")[0]: Template.from_string(p.read_text()) for p in assembly.glob("*.template.json")}


def _statements(template: Template, action: str) -> list[dict[str, Any]]:
    found = []
    for policy in template.find_resources("AWS::IAM::Policy").values():
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
            actions = statement["Action"]
            if action in (actions if isinstance(actions, list) else [actions]):
                found.append(statement)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_only_modes_that_spend_may_create_a_reservation_and_only_on_our_terms(
    templates: dict[str, Template], mode: str
) -> None:
    for name in (f"claim-{mode}", f"probe-{mode}"):
        create = _statements(templates[name], "ec2:CreateCapacityReservation")
        assert len(create) == (1 if mode in ("probe", "hold") else 0)
        for statement in create:
            terms = statement["Condition"]["StringEquals"]
            assert terms["ec2:InstanceMatchCriteria"] == "targeted"
            assert terms["ec2:EndDateType"] == "limited"
            assert terms["ec2:InstanceType"] == "g6.12xlarge"
            assert terms["aws:RequestTag/eks-ray-train:stack-id"] == {"Ref": "AWS::StackId"}
        for action in ("ec2:CancelCapacityReservation", "ec2:ModifyCapacityReservation"):
            for statement in _statements(templates[name], action):
                tag = statement["Condition"]["StringEquals"]["aws:ResourceTag/eks-ray-train:stack-id"]
                assert tag == {"Ref": "AWS::StackId"}
        assert _statements(templates[name], "ec2:CancelCapacityReservation"), "a hold given up must be cancellable"
        text = json.dumps(templates[name].to_json())
        assert "PurchaseCapacityBlock" not in text and "ec2:*" not in text


@pytest.mark.parametrize("mode", MODES)
def test_only_a_hold_is_renewed_and_the_schedule_tells_the_handler_all_it_needs(
    templates: dict[str, Template], mode: str
) -> None:
    rules = templates[f"claim-{mode}"].find_resources("AWS::Events::Rule")
    assert len(rules) == (1 if mode == "hold" else 0)
    for rule in rules.values():
        told = _resolve(rule["Properties"]["Targets"][0]["Input"])
        watch = Watch.from_event(json.loads(told))
        assert watch.nodes == 2 and watch.reservation_id.startswith("Ref-") and watch.limit_at is not None
        claim = next(iter(templates["claim-hold"].find_resources("Custom::CapacityClaim").values()))
        assert watch.owner.claim == claim["Properties"]["Owner"]


def _resolve(value: Any) -> str:
    """A template value as a deploy might deliver it: text, whatever its type was."""
    if isinstance(value, dict):
        if "Fn::Join" in value:
            glue, parts = value["Fn::Join"]
            return glue.join(_resolve(part) for part in parts)
        if "Fn::GetAtt" in value:
            return "2026-11-30T00:00:00" if value["Fn::GetAtt"][1] == "LimitAt" else ".".join(value["Fn::GetAtt"])
        return f"Ref-{value['Ref']}"
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["claim", "probe"])
def test_the_handler_reads_what_the_construct_writes(templates: dict[str, Template], kind: str, mode: str) -> None:
    resource_type = {"claim": "Custom::CapacityClaim", "probe": "Custom::CapacityProbe"}[kind]
    (resource,) = templates[f"{kind}-{mode}"].find_resources(resource_type).values()
    properties = {
        key: [_resolve(v) for v in value] if isinstance(value, list) else _resolve(value)
        for key, value in resource["Properties"].items()
    }
    event = {"RequestType": "Create", "RequestId": "r", "StackId": "s", "LogicalResourceId": "l"}
    wish = Request.from_event({**event, "ResourceProperties": properties}).wish
    assert (wish.need.instance_type, wish.need.nodes, wish.need.vcpus) == ("g6.12xlarge", 2, 96)
    assert wish.mode == mode and len(wish.zones) == 2
    assert wish.reservation_id == (GIVEN if mode in ("reservation", "block") else "")
    if kind == "claim":
        assert wish.subnets == {"us-west-2a": "subnet-a", "us-west-2b": "subnet-b"} and wish.limit_at is not None


def test_the_guard_is_made_before_claim_and_probe_so_that_it_is_deleted_after_them(
    templates: dict[str, Template],
) -> None:
    (claim,) = templates["claim-probe"].find_resources("Custom::CapacityClaim").values()
    (limit_id,) = templates["claim-probe"].find_resources("Custom::SpendingLimit")
    assert claim["Properties"]["LimitAt"] == {"Fn::GetAtt": [limit_id, "LimitAt"]}
    (probe,) = templates["probe-probe"].find_resources("Custom::CapacityProbe").values()
    (guard_id,) = templates["probe-probe"].find_resources("Custom::SpendingLimit")
    assert guard_id in probe["DependsOn"]


def test_a_new_arm_key_runs_limit_and_claim_again_and_no_template_changes_without_one() -> None:
    def told(arm_key: str) -> list[dict[str, Any]]:
        stack = Stack(App(), "s")
        _claim(stack, "hold", arm_key=arm_key, max_hours=0)
        template = Template.from_stack(stack)
        kinds = ("Custom::SpendingLimit", "Custom::CapacityClaim")
        return [found["Properties"] for kind in kinds for found in template.find_resources(kind).values()]

    assert all(a != b for a, b in zip(told("one"), told("two"), strict=True))
    assert told("") == told("")


def test_function_runs_python_3_13_with_a_log_group_that_goes_with_the_stack(templates: dict[str, Template]) -> None:
    template = templates["claim-probe"]
    template.has_resource_properties(
        "AWS::Lambda::Function",
        {"Runtime": "python3.14", "Handler": "capacity.handler.on_event", "LoggingConfig": Match.any_value()},
    )
    template.has_resource("AWS::Logs::LogGroup", {"DeletionPolicy": "Delete"})
    for function in template.find_resources("AWS::Lambda::Function").values():
        assert "ReservedConcurrentExecutions" not in function["Properties"]


def test_asset_holds_the_capacity_package_alone_and_imports_by_itself_fast(assembly: Path, repo: Path) -> None:
    (asset,) = [p for p in assembly.glob("asset.*") if (p / "capacity").is_dir()]
    files = {p.relative_to(asset).as_posix() for p in asset.rglob("*") if p.is_file()}
    package = repo / "constructs" / "eks_ray_train" / "capacity"
    assert files == {f"capacity/{p.name}" for p in package.glob("*.py")}
    code = (
        "import sys, time; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1]); start = time.perf_counter()\n"
        "import capacity.handler\n"
        "print(time.perf_counter() - start, 'boto3' in sys.modules, 'eks_ray_train' in sys.modules)"
    )
    runs = [
        subprocess.run([sys.executable, "-I", "-c", code, str(asset)], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    times, boto3, library = zip(*(run.stdout.split() for run in runs), strict=True)
    assert set(boto3) == set(library) == {"False"}
    assert min(map(float, times)) < 0.5


def test_the_package_imports_nothing_but_itself_the_standard_library_and_boto3(repo: Path) -> None:
    for path in (repo / "constructs" / "eks_ray_train" / "capacity").glob("*.py"):
        for module in re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text(), flags=re.M):
            root = module.split(".")[0]
            assert root == "" or root in sys.stdlib_module_names or root in ("boto3", "botocore"), f"{path}: {module}"


def test_templates_pass_cfn_lint(assembly: Path) -> None:
    # These hold every kind of resource and statement that any mode makes.
    files = [str(assembly / f"{name}.template.json") for name in ("claim-hold", "claim-block", "probe-probe")]
    lint = Path(sys.executable).parent / "cfn-lint"
    # W3005: CDK's own Provider and Function state dependencies twice.
    run = subprocess.run([lint, "--ignore-checks", "W3005", "--", *files], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_wrong_properties_are_all_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        _claim(Stack(App(), "s"), "lease", node_count=-1, max_hours=-2, preferred_zone="us-west-2d")
    assert len(caught.value.problems) == 4
    assert "us-west-2a, us-west-2b" in str(caught.value)


@pytest.mark.parametrize("given", ["arn:aws:resource-groups:us-west-2:111122223333:group/odcr", "odcr-group"])
def test_lt_resource_group_arn(given: str) -> None:
    with pytest.raises(SettingsError, match="resource groups are not supported"):
        _claim(Stack(App(), "s"), "reservation", reservation_id=given)
    with pytest.raises(SettingsError, match="resource groups are not supported"):
        CapacityProbe(Stack(App(), "t"), "Probe", **G6, zones=["a"], capacity="reservation", reservation_id=given)


def _launch_template(mode: Any) -> tuple[dict[str, Any], str]:
    """Data of the launch template that a claim of this mode leads to, and the claim's logical id."""
    stack = Stack(App(), "s")
    vpc = ec2.Vpc.from_vpc_attributes(stack, "V", vpc_id="vpc-1", availability_zones=["us-west-2a"])
    cluster = eks.Cluster.from_cluster_attributes(
        stack, "C", cluster_name="c", vpc=vpc, cluster_security_group_id="sg-0123456789abcdef0"
    )
    claim = _claim(stack, mode)
    EfaGpuNodeGroup(
        stack,
        "Nodes",
        cluster=cluster,
        instance_type="g6.12xlarge",
        node_count=2,
        desired_count=claim.desired_nodes,
        subnet_id=claim.subnet_id,
        capacity=mode,
        capacity_reservation_id=claim.reservation_id or None,
    )
    template = Template.from_stack(stack)
    (claim_id,) = template.find_resources("Custom::CapacityClaim")
    (made,) = template.find_resources("AWS::EC2::LaunchTemplate").values()
    (group,) = template.find_resources("AWS::EKS::Nodegroup").values()
    assert group["Properties"]["Subnets"] == [{"Fn::GetAtt": [claim_id, "SubnetId"]}]
    assert group["Properties"]["ScalingConfig"]["DesiredSize"] == {"Fn::GetAtt": [claim_id, "DesiredNodes"]}
    return made["Properties"]["LaunchTemplateData"], claim_id


@pytest.mark.parametrize("mode", ["reservation", "hold"])
def test_lt_empty_reservation_target(mode: str) -> None:
    data, claim_id = _launch_template(mode)
    # The claim answers with the given id itself (tests/pure/test_capacity_claim.py), or with the hold's.
    assert data["CapacityReservationSpecification"]["CapacityReservationTarget"] == {
        "CapacityReservationId": {"Fn::GetAtt": [claim_id, "ReservationId"]}
    }


@pytest.mark.parametrize("mode", ["probe", "none"])
def test_lt_open_odcr_not_consumed(mode: str) -> None:
    data, _ = _launch_template(mode)
    assert data.get("CapacityReservationSpecification", {}).get("CapacityReservationPreference", "open") == "open"


def test_reservation_id_is_empty_where_the_mode_never_has_one() -> None:
    for mode in ("probe", "none"):
        assert _claim(Stack(App(), mode), mode).reservation_id == ""


FRAMEWORK = """
const Module = require("module"), https = require("https"), load = Module._load;
const [directory, eventText, errorText] = process.argv.slice(1);
let invoked = 0, body = "";
const lambda = {
  Lambda: class { async invoke() { invoked++; return {
    FunctionError: errorText ? "Unhandled" : undefined,
    Payload: Buffer.from(JSON.stringify(errorText ? {errorMessage: errorText, errorType: "CapacityError"} : {})),
  }; } },
  waitUntilFunctionActiveV2: async () => {},
};
Module._load = (name, ...rest) => name === "@aws-sdk/client-lambda" ? lambda
  : name === "@aws-sdk/client-sfn" ? {SFN: class {}} : load(name, ...rest);
https.request = (options, answered) => ({ on() {}, write(text) { body = text; },
  end() { answered({statusCode: 200, resume() {}}); } });
process.env.USER_ON_EVENT_FUNCTION_ARN = "arn:aws:lambda:us-west-2:111122223333:function:EksRayTrainTraining-CapacityHandlerFunction0123ABCD-0123456789ab";
console.log = () => {};
require(directory + "/framework.js").onEvent(JSON.parse(eventText)).then(
  () => process.stdout.write(JSON.stringify({invoked, body})));
"""


def _through_the_framework(assembly: Path, event: dict[str, Any], error: str = "") -> tuple[int, str]:
    """CDK's real provider framework, from the synthesized asset, with AWS and CloudFormation's URL stubbed."""
    (directory,) = [p for p in assembly.glob("asset.*") if (p / "framework.js").is_file()]
    node = Path(sys.executable).parent / "node"
    whole = {
        "ResponseURL": "https://cloudformation-custom-resource-response-uswest2.s3.us-west-2.amazonaws.com/x",
        "StackId": "arn:aws:cloudformation:us-west-2:111122223333:stack/EksRayTrainTraining/" + "0" * 36,
        "RequestId": "0" * 36,
        "LogicalResourceId": "CapacityClaim0123ABCD",
        **event,
    }
    command = [str(node), "-e", FRAMEWORK, str(directory), json.dumps(whole), error]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(run.stdout)
    return result["invoked"], result["body"]


def test_the_longest_failure_reason_fits_into_cloudformations_4096_bytes(assembly: Path) -> None:
    longest = fit("\n".join(f"  us-west-2{n}  no capacity \u2013 \u65e5\u672c" for n in range(400)))
    _, body = _through_the_framework(assembly, {"RequestType": "Create"}, longest)
    assert json.loads(body)["Status"] == "FAILED"
    assert json.loads(body)["Reason"].startswith("Error:   us-west-20  no capacity")
    assert len(body.encode()) <= 4096, len(body.encode())


def test_the_framework_swallows_the_delete_of_a_failed_create_which_is_why_there_is_a_guard(assembly: Path) -> None:
    invoked, body = _through_the_framework(assembly, {"RequestType": "Create"}, "no")
    failed_id = json.loads(body)["PhysicalResourceId"]
    assert invoked == 1
    invoked, body = _through_the_framework(assembly, {"RequestType": "Delete", "PhysicalResourceId": failed_id})
    assert (invoked, json.loads(body)["Status"]) == (0, "SUCCESS")
    invoked, _ = _through_the_framework(assembly, {"RequestType": "Delete", "PhysicalResourceId": "limit:0123"})
    assert invoked == 1
