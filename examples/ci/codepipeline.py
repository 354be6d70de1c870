"""Two pipelines: `cdk synth` and `cdk diff` for each pull request; a gated training run every night, from inside the VPC.

    cdk synth --app "python examples/ci/codepipeline.py"

Edit the four constants. The nightly project runs in the VPC's private subnets, so that the cluster's endpoint may stay
private; put the output NightlyRoleArn into `admin_principals`. It may do what `cdk deploy` may: only people who may deploy
should be able to change the main branch.
"""

from typing import Any

from aws_cdk import App, CfnOutput, Duration, RemovalPolicy, Stack
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_codepipeline as codepipeline
from aws_cdk import aws_codepipeline_actions as actions
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3

CONNECTION = "arn:aws:codeconnections:us-east-2:123456789012:connection/00000000-0000-4000-8000-000000000000"
OWNER, REPOSITORY, BRANCH = "example", "training", "main"
VPC = {"vpc_id": "vpc-0123456789abcdef0", "availability_zones": ["us-east-2a", "us-east-2b"]}
PRIVATE_SUBNETS = ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]

SYNTH = ["make synth", ".venv/bin/cdk diff --method template"]
TRAIN = [
    ".venv/bin/eks-ray-train scale 2 --hours 2 --yes",
    ".venv/bin/eks-ray-train submit --gate --timeout 5400 --junit gate.xml --json -- --steps 50 --dataset random > run.json",
]
STOP = [".venv/bin/eks-ray-train scale 0"]


def project(stack: Stack, id: str, commands: list[str], *, after: list[str] | None = None, **more: Any) -> codebuild.PipelineProject:
    """A build of ``commands``; those of ``after`` run whatever became of the others."""
    build: dict[str, Any] = {"commands": commands, **({"finally": after} if after else {})}
    install = {"runtime-versions": {"python": "3.13"}, "commands": ["make venv-cdk"]}
    spec: dict[str, Any] = {"version": "0.2", "phases": {"install": install, "build": build}}
    if after:
        spec["artifacts"] = {"files": ["run.json", "gate.xml", "runs/**/*"]}
        spec["reports"] = {"gate": {"files": ["gate.xml"], "file-format": "JUNITXML"}}
    made = codebuild.PipelineProject(
        stack, id, build_spec=codebuild.BuildSpec.from_object(spec), timeout=Duration.hours(3),
        environment=codebuild.BuildEnvironment(build_image=codebuild.LinuxBuildImage.STANDARD_7_0), **more,
    )  # fmt: skip
    roles = "lookup" if not after else "*"  # a diff reads by the bootstrap's lookup role, `scale` deploys
    may = iam.PolicyStatement(actions=["sts:AssumeRole"], resources=[f"arn:aws:iam::{stack.account}:role/cdk-hnb659fds-{roles}-role-*"])
    made.add_to_role_policy(may)
    return made


def pipeline(stack: Stack, id: str, build: codebuild.PipelineProject, bucket: s3.Bucket, *, reviews: bool) -> codepipeline.Pipeline:
    """Source, then one build; started by pull requests, or (not ``reviews``) by whoever starts it."""
    code = codepipeline.Artifact()
    source = actions.CodeStarConnectionsSourceAction(
        action_name="Source", connection_arn=CONNECTION, owner=OWNER, repo=REPOSITORY, branch=BRANCH, output=code, trigger_on_push=False
    )
    asked = codepipeline.GitPullRequestFilter(
        branches_includes=[BRANCH], events=[codepipeline.GitPullRequestEvent.OPEN, codepipeline.GitPullRequestEvent.UPDATED]
    )
    trigger = codepipeline.TriggerProps(
        provider_type=codepipeline.ProviderType.CODE_STAR_SOURCE_CONNECTION,
        git_configuration=codepipeline.GitConfiguration(source_action=source, pull_request_filter=[asked]),
    )
    return codepipeline.Pipeline(
        stack, id, pipeline_type=codepipeline.PipelineType.V2, artifact_bucket=bucket, triggers=[trigger] if reviews else None,
        stages=[
            codepipeline.StageProps(stage_name="Source", actions=[source]),
            codepipeline.StageProps(stage_name="Build", actions=[actions.CodeBuildAction(action_name="Build", project=build, input=code)]),
        ],
    )  # fmt: skip


def build(app: App) -> None:
    stack = Stack(app, "TrainingPipelines")
    bucket = s3.Bucket(
        stack, "Artifacts", enforce_ssl=True, block_public_access=s3.BlockPublicAccess.BLOCK_ALL, removal_policy=RemovalPolicy.DESTROY,
        lifecycle_rules=[s3.LifecycleRule(expiration=Duration.days(14))],
    )  # fmt: skip
    pipeline(stack, "Review", project(stack, "ReviewBuild", SYNTH), bucket, reviews=True)

    vpc = ec2.Vpc.from_vpc_attributes(stack, "Vpc", private_subnet_ids=PRIVATE_SUBNETS, **VPC)  # type: ignore[arg-type]
    nightly = project(stack, "NightlyRun", TRAIN, after=STOP, vpc=vpc, concurrent_build_limit=1)
    assert nightly.role is not None
    # What the command line reads besides what the deploy's own roles may.
    reads = ["eks:Describe*", "eks:List*", "eks:UpdateNodegroupConfig", "cloudformation:Describe*", "ec2:Describe*", "ssm:GetParameter"]
    nightly.add_to_role_policy(iam.PolicyStatement(actions=reads, resources=["*"]))
    events.Rule(
        stack, "EveryNight", schedule=events.Schedule.cron(minute="17", hour="2"),
        targets=[targets.CodePipeline(pipeline(stack, "Nightly", nightly, bucket, reviews=False))],
    )  # fmt: skip
    CfnOutput(stack, "NightlyRoleArn", value=nightly.role.role_arn)


if __name__ == "__main__":
    app = App()
    build(app)
    app.synth()
