"""The CDK application: settings -> three stacks -> validations -> synth. No resource is defined here."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

if __name__ == "__main__" and not all(map(find_spec, ("aws_cdk", "eks_ray_train"))):
    print(f"eks-ray-train: {sys.executable} lacks aws_cdk or eks_ray_train; run make venv-cdk && source .venv/bin/activate", file=sys.stderr)
    sys.exit(2)

from eks_ray_train import Settings, SettingsError, load_settings
from eks_ray_train.node_runtime import exit_quietly_on_interrupt, use_bundled_node
from eks_ray_train.settings import read_cdk_json

use_bundled_node()
if __name__ == "__main__":
    exit_quietly_on_interrupt()

from aws_cdk import App, Environment  # noqa: E402

from stacks import EksStack, NetworkStack, TrainingStack  # noqa: E402

ROOT = Path(__file__).resolve().parent
OUTDIR = os.environ.get("CDK_OUTDIR", str(ROOT / "cdk.out"))


def build(app: App, settings: Settings, env: Environment) -> None:
    network = NetworkStack(app, "EksRayTrainNetwork", settings=settings, env=env)
    eks = EksStack(app, "EksRayTrainCluster", settings=settings, vpc=network.vpc, env=env)
    TrainingStack(app, "EksRayTrainTraining", settings=settings, eks=eks, job_dir=ROOT / "job", env=env)


if __name__ == "__main__":
    try:
        # For plain `python app.py`; the CDK CLI's own context wins. A flag in it turns CDK's template validation into errors.
        app = App(context=read_cdk_json(ROOT / "cdk.json"), analytics_reporting=False, outdir=OUTDIR)
        settings = load_settings(ROOT / "cdk.json", app.node.get_all_context())
        region = settings.region or os.environ.get("CDK_DEFAULT_REGION")
        build(app, settings, Environment(account=os.environ.get("CDK_DEFAULT_ACCOUNT"), region=region))
        app.synth()
    except SettingsError as error:
        print(f"eks-ray-train: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
