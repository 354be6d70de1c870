"""The CDK application: settings -> three stacks -> validations -> synth. No resource is defined here."""

import os
import sys
from pathlib import Path

# jsii starts `node` from PATH; the one that pip installed lies beside this interpreter, also where the environment is not active.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"

from aws_cdk import Annotations, App, Environment  # noqa: E402

from eks_ray_train import SettingsError, load_settings  # noqa: E402
from eks_ray_train.settings import read_cdk_json  # noqa: E402
from stacks import EksStack, NetworkStack, TrainingStack  # noqa: E402

ROOT = Path(__file__).resolve().parent


def main() -> None:
    cdk_json = ROOT / "cdk.json"
    # Plain `python app.py` sees no cdk.json; what the CDK CLI hands over wins over these. Feature flags are read from here too.
    app = App(context=read_cdk_json(cdk_json))
    settings = load_settings(cdk_json, app.node.get_all_context())
    region = settings.region or os.environ.get("CDK_DEFAULT_REGION")
    env = Environment(account=os.environ.get("CDK_DEFAULT_ACCOUNT"), region=region)
    network = NetworkStack(app, "EksRayTrainNetwork", settings=settings, env=env)
    cluster = EksStack(app, "EksRayTrainCluster", settings=settings, vpc=network.vpc, env=env)
    TrainingStack(
        app, "EksRayTrainTraining", settings=settings, cluster=cluster.cluster, operator=cluster.operator, job_dir=ROOT / "job", env=env
    )  # fmt: skip
    for number, warning in enumerate(settings.warnings()):
        Annotations.of(network).add_warning_v2(f"eks-ray-train:setting-{number}", warning)
    app.synth()


if __name__ == "__main__":
    try:
        main()
    except SettingsError as error:
        print(f"eks-ray-train: {error}", file=sys.stderr)
        sys.exit(int(error.exit_code))
