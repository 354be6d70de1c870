"""The CDK application: settings -> three stacks -> validations -> synth. No resource is defined here."""

import os
import sys
from pathlib import Path

from eks_ray_train import Settings, SettingsError, load_settings
from eks_ray_train.node_runtime import use_bundled_node
from eks_ray_train.settings import read_cdk_json

use_bundled_node()

from aws_cdk import App, Environment  # noqa: E402

from stacks import EksStack, NetworkStack, TrainingStack  # noqa: E402

ROOT = Path(__file__).resolve().parent


def build(app: App, settings: Settings, env: Environment) -> None:
    network = NetworkStack(app, "EksRayTrainNetwork", settings=settings, env=env)
    eks = EksStack(app, "EksRayTrainCluster", settings=settings, vpc=network.vpc, env=env)
    TrainingStack(app, "EksRayTrainTraining", settings=settings, eks=eks, job_dir=ROOT / "job", env=env)


if __name__ == "__main__":
    try:
        # For plain `python app.py`; the CDK CLI's own context wins. A flag in it turns CDK's template validation into errors.
        context = read_cdk_json(ROOT / "cdk.json")
        app = App(
            context=context, analytics_reporting=False, outdir=os.environ.get("CDK_OUTDIR", str(ROOT / "cdk.out"))
        )
        settings = load_settings(ROOT / "cdk.json", app.node.get_all_context())
        account, region = os.environ.get("CDK_DEFAULT_ACCOUNT"), os.environ.get("CDK_DEFAULT_REGION")
        build(app, settings, Environment(account=account, region=settings.region or region))
        app.synth()
    except SettingsError as error:
        print(f"eks-ray-train: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
