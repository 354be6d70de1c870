"""``eks-ray-train render``: the Kubernetes manifests that a deploy would apply, as YAML. Synthesizes; asks no account."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .template_manifests import Chart, Rendered

EXAMPLES = """\
examples:
  eks-ray-train render > manifests.yaml
  eks-ray-train render -c eks-ray-train:gpu_node_count=4 --kind RayCluster
  eks-ray-train render --json

Values that only CloudFormation knows (a bucket's name) appear as <stack.resource>. Helm charts are listed as comments.
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Define ``render``'s flags."""
    parser = subparsers.add_parser(
        "render", help="the manifests that a deploy would apply, as YAML",
        description="Synthesize the application and print the Kubernetes manifests inside it.", epilog=EXAMPLES,
    )  # fmt: skip
    parser.add_argument(
        "-c", "--context", action="append", default=[], metavar="KEY=VALUE", help="as of cdk: eks-ray-train:KEY=VALUE overrides a setting"
    )
    parser.add_argument("--kind", action="append", default=[], metavar="KIND", help="only objects of this kind, for example RayCluster")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 2 for a wrong setting or where no application is found."""
    import tempfile

    from .template_manifests import read_templates

    with tempfile.TemporaryDirectory(prefix="eks-ray-train-") as folder:
        synthesize(Path.cwd(), Path(folder), args.context)
        manifests, charts = read_templates(Path(folder))
    if args.kind:
        manifests = _only(manifests, args.kind)
    if args.json:
        _print_json(manifests, charts)
    else:
        _print_yaml(manifests, [] if args.kind else charts)
    return 0


def synthesize(root: Path, out: Path, context: list[str]) -> None:
    """Run the application of ``root``'s cdk.json into ``out``, as the CDK's own command does.

    Raises UsageError where there is no application or its settings are wrong (the application's own message).
    """
    import json
    import os
    import shlex
    import subprocess

    from eks_ray_train.errors import EksRayTrainError, ExitCode, UsageError
    from eks_ray_train.settings import read_cdk_document

    document = read_cdk_document(root / "cdk.json")
    try:
        command = shlex.split(document["app"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f'{root / "cdk.json"} names no application under "app" ({error}); restore it') from None
    if command and command[0] in ("python", "python3"):
        command[0] = sys.executable
    wrong = [entry for entry in context if not entry.partition("=")[1]]
    if wrong:
        raise UsageError(f"--context takes KEY=VALUE, got {wrong[0]!r}; for example -c eks-ray-train:gpu_node_count=4")
    values = {**document.get("context", {}), **dict(entry.split("=", 1) for entry in context)}
    environment = {**os.environ, "CDK_OUTDIR": str(out), "CDK_CONTEXT_JSON": json.dumps(values)}
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"cannot start the application's command {shlex.join(command)}: {error}; correct \"app\" in cdk.json") from None
    if done.returncode == int(ExitCode.USAGE) and "Traceback" not in done.stderr:
        raise UsageError(done.stderr.strip().removeprefix("eks-ray-train: "))
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise EksRayTrainError(f"{shlex.join(command)} failed with exit code {done.returncode}; correct what its last lines say:\n{tail}")


def _only(manifests: list[Rendered], kinds: list[str]) -> list[Rendered]:
    from eks_ray_train.errors import UsageError

    present = sorted({rendered.document["kind"] for rendered in manifests})
    wanted = {kind.lower() for kind in kinds}
    unknown = sorted(wanted - {kind.lower() for kind in present})
    if unknown:
        raise UsageError(f"--kind {unknown[0]}: the deploy applies no such object; use one of: {', '.join(present)}")
    return [rendered for rendered in manifests if rendered.document["kind"].lower() in wanted]


def _print_json(manifests: list[Rendered], charts: list[Chart]) -> None:
    import dataclasses
    import json

    document = {
        "manifests": [{"source": rendered.source, "manifest": rendered.document} for rendered in manifests],
        "charts": [dataclasses.asdict(chart) for chart in charts],
    }
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _print_yaml(manifests: list[Rendered], charts: list[Chart]) -> None:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Files and scripts as blocks, which is how people read them."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    Dumper.ignore_aliases = lambda self, data: True  # type: ignore[method-assign]
    for chart in charts:
        print(f"# Helm chart {chart.chart} {chart.version} from {chart.repository}, release {chart.release} in {chart.namespace}")
    for rendered in manifests:
        print(f"---\n# {rendered.source}")
        print(yaml.dump(rendered.document, Dumper=Dumper, sort_keys=False, width=140, allow_unicode=True), end="")
