"""Draws the architecture from the synthesized templates and the manifests in them: docs/pictures/architecture-{light,dark}.svg.

    python docs/architecture.py            # synthesizes with the default settings and writes both pictures
    python docs/architecture.py --check    # changes nothing; ends with 1 where a picture is out of date

Every figure in the picture is read from a template; what is drawn and no longer there is an error. A test compares both files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

REPO = Path(__file__).resolve().parent.parent
if str(REPO / "constructs") not in sys.path:
    sys.path.insert(0, str(REPO / "constructs"))
PICTURES = REPO / "docs" / "pictures"
STACKS = ("EksRayTrainNetwork", "EksRayTrainCluster", "EksRayTrainTraining")
WIDTH, HEIGHT = 820, 852
THEMES = {
    "light": {"back": "#ffffff", "band": "#f6f8fa", "box": "#ffffff", "line": "#8c959f", "text": "#1f2328", "soft": "#59636e", "efa": "#bc4c00", "run": "#0969da"},
    "dark": {"back": "#0d1117", "band": "#151b23", "box": "#212830", "line": "#656c76", "text": "#f0f6fc", "soft": "#9198a1", "efa": "#f0883e", "run": "#58a6ff"},
}  # fmt: skip


# ---- what the templates say ---------------------------------------------------------------------------------------------
def of_type(template: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """Properties of all resources of a type. Raises LookupError where there is none: then the picture would lie."""
    found = [r.get("Properties", {}) for r in template["Resources"].values() if r["Type"] == kind]
    if not found:
        raise LookupError(f"the templates hold no {kind} any more: change docs/architecture.py")
    return found


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The figures of the picture, as texts."""

    vpc: str
    subnets: str
    ways_out: list[str]
    probe: list[str]
    control_plane: list[str]
    system: str
    head: str
    operator: str
    plugins: list[str]
    addons: list[str]
    claim: str
    nodes: int
    node: list[str]
    worker: list[str]
    policies: list[str]
    limit: list[str]


def facts(templates: Mapping[str, Mapping[str, Any]]) -> Facts:
    """``templates`` by stack name."""
    from eks_ray_train.cli.template_manifests import from_template
    from eks_ray_train.instances import get_instance_type

    network, cluster, training = (templates[name] for name in STACKS)
    charts = {chart.chart: chart.version for chart in from_template(STACKS[1], cluster)[1]}
    objects = {m.document["kind"]: m.document for m in from_template(STACKS[2], training)[0]}
    spec = objects["RayCluster"]["spec"]
    head, worker = (
        group["template"]["spec"]["containers"][0]["resources"]["limits"] for group in (spec["headGroupSpec"], spec["workerGroupSpecs"][0])
    )
    subnets = of_type(network, "AWS::EC2::Subnet")
    kinds = [tag["Value"] for s in subnets for tag in s["Tags"] if tag["Key"] == "aws-cdk:subnet-type"]
    control = of_type(cluster, "AWS::EKS::Cluster")[0]
    system = of_type(cluster, "AWS::EKS::Nodegroup")[0]
    claim = of_type(training, "Custom::CapacityClaim")[0]
    gpu = get_instance_type(claim["InstanceType"])
    data = of_type(training, "AWS::EC2::LaunchTemplate")[0]["LaunchTemplateData"]
    efa = sum(i["InterfaceType"] == "efa-only" for i in data["NetworkInterfaces"])
    limits = [r["MaxHours"] for r in of_type(training, "Custom::SpendingLimit")]
    public = control["ResourcesVpcConfig"]["EndpointPublicAccess"]
    for kind in ("AWS::EC2::FlowLog", "AWS::EC2::VPCEndpoint", "Custom::CapacityProbe"):
        of_type(network, kind)
    for kind in ("AWS::S3::Bucket", "AWS::Scheduler::Schedule", "AWS::EKS::PodIdentityAssociation", "AWS::EC2::SecurityGroupEgress"):
        of_type(training, kind)
    return Facts(
        vpc=of_type(network, "AWS::EC2::VPC")[0]["CidrBlock"],
        subnets=f"{kinds.count('Private')} private and {kinds.count('Public')} public subnets, in as many zones",
        ways_out=[f"{len(of_type(network, 'AWS::EC2::NatGateway'))} NAT gateway", "S3 gateway endpoint"],
        probe=[f"{claim['NodeCount']} × {gpu.name}:", "does a zone have them?"],
        control_plane=[
            f"Kubernetes {control['Version']}",
            "public endpoint" if public else "private endpoint",
            f"access entries ({control['AccessConfig']['AuthenticationMode']}), secrets under KMS",
        ],
        system=f"{system['ScalingConfig']['DesiredSize']} × {system['InstanceTypes'][0]}",
        head=f"{head['cpu']} CPU, {head['memory'].removesuffix('Gi')} GiB, no GPU",
        operator=charts["kuberay-operator"],
        plugins=[f"NVIDIA {charts['nvidia-device-plugin']}", f"EFA {charts['aws-efa-k8s-device-plugin']}"],
        addons=[a["AddonName"] for a in of_type(cluster, "AWS::EKS::Addon")],
        claim=f"capacity: {claim['Capacity']}",
        nodes=int(claim["NodeCount"]),
        node=[f"{data['InstanceType']}", f"{gpu.gpus} × {gpu.gpu_model}, {gpu.network_gbps:g} Gbit/s", f"{efa} efa-only interface" + "s" * (efa > 1)],
        worker=[
            f"{worker['nvidia.com/gpu']} GPU, {worker['vpc.amazonaws.com/efa']} EFA interface" + "s" * (int(worker["vpc.amazonaws.com/efa"]) > 1),
            f"{worker['cpu']} CPU, {worker['memory'].removesuffix('Gi')} GiB", "FSDP2, one rank a GPU",
        ],
        policies=[name for kind, name in (("NetworkPolicy", "network policy"), ("ValidatingAdmissionPolicy", "busy policy")) if kind in objects],
        limit=["GPU nodes go to zero", f"after {max(limits)} hours"],
    )  # fmt: skip


# ---- drawing ------------------------------------------------------------------------------------------------------------
class Picture:
    """SVG in one theme; texts and boxes are kept in groups, so that a test can see whether a text leaves its box."""

    def __init__(self, theme: Mapping[str, str]) -> None:
        self.theme, self.parts = theme, [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{theme["back"]}"/>']

    def box(self, x: int, y: int, w: int, h: int, title: str, lines: list[str], *, fill: str = "box", line: str = "line", dash: bool = False) -> None:
        """A box with a bold title and lines of 13 pixels below it."""
        t = self.theme
        dashed = ' stroke-dasharray="5 4"' if dash else ""
        out = [f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="7" fill="{t[fill]}" stroke="{t[line]}" stroke-width="1.3"{dashed}/>']
        out.append(f'<text x="{x + 12}" y="{y + 22}" font-weight="600" fill="{t["text"]}">{escape(title)}</text>')
        for n, text in enumerate(lines):
            out.append(f'<text x="{x + 12}" y="{y + 41 + 17 * n}" font-size="13" fill="{t["soft"]}">{escape(text)}</text>')
        self.parts.append(f'<g class="box">{"".join(out)}</g>')

    def band(self, y: int, h: int, title: str, note: str) -> None:
        """One stack: a wide box with its name, and beside it what it is for."""
        t = self.theme
        self.parts.append(
            f'<g class="box"><rect x="16" y="{y}" width="752" height="{h}" rx="10" fill="{t["band"]}" stroke="{t["line"]}"/>'
            f'<text x="30" y="{y + 25}" font-size="15" font-weight="700" fill="{t["text"]}">{escape(title)}</text>'
            f'<text x="232" y="{y + 25}" font-size="13" fill="{t["soft"]}">{escape(note)}</text></g>'
        )

    def arrow(self, points: list[tuple[int, int]], *, color: str = "line", both: bool = False, wide: float = 1.6) -> None:
        path = " ".join(f"{x},{y}" for x, y in points)
        start = f' marker-start="url(#{color})"' if both else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{self.theme[color]}" stroke-width="{wide}" marker-end="url(#{color})"{start}/>')

    def label(self, x: int, y: int, text: str, *, color: str = "soft", anchor: str = "start", turn: bool = False) -> None:
        turned = f' transform="rotate(90 {x} {y})"' if turn else ""
        self.parts.append(f'<text x="{x}" y="{y}" font-size="13" text-anchor="{anchor}" fill="{self.theme[color]}"{turned}>{escape(text)}</text>')

    def svg(self) -> str:
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            f'<path d="M0,0 L10,5 L0,10 z" fill="{self.theme[name]}"/></marker>'
            for name in ("line", "efa", "run")
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
            'aria-label="Architecture of eks-ray-train" font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif" '
            f'font-size="14"><defs>{heads}</defs>' + "\n".join(self.parts) + "</svg>\n"
        )


def draw(f: Facts, theme: str) -> str:
    """The picture as SVG text."""
    p = Picture(THEMES[theme])
    p.box(16, 16, 366, 84, "Your machine: deploy", ["eks-ray-train init · capacity find · plan", "cdk deploy --all, or eks-ray-train up"])
    p.box(398, 16, 406, 84, "Your machine: run", ["eks-ray-train submit -- --model_id … --dataset …", "gate: exit code 0 over EFA, 3 over anything else"], line="run")
    p.arrow([(200, 100), (200, 124)])

    p.band(126, 130, "1  " + STACKS[0], "before a cluster is paid for")
    p.box(30, 164, 344, 80, f"VPC {f.vpc}", [f.subnets, "flow logs of rejected traffic"])
    p.box(390, 164, 172, 80, "Ways out", f.ways_out)
    p.box(578, 164, 176, 80, "CapacityProbe", f.probe)

    p.band(272, 206, "2  " + STACKS[1], "what a cluster needs once")
    p.box(30, 310, 344, 70, "EKS control plane", [f.control_plane[0] + ", " + f.control_plane[1], f.control_plane[2]])
    p.box(30, 392, 166, 74, "Device plugins", f.plugins)
    p.box(208, 392, 166, 74, f"{len(f.addons)} EKS add-ons", ["CNI, DNS, Pod Identity,", "node monitoring …"])
    p.box(390, 310, 364, 156, f"System nodes: {f.system}", [], fill="band")
    p.box(404, 344, 164, 110, "KubeRay operator", [f.operator, "makes and replaces", "Ray's pods"])
    p.box(580, 344, 162, 110, "Ray head", ["belongs to stack 3", f.head, "runs the job's driver"], line="run", dash=True)

    p.band(494, 342, "3  " + STACKS[2], "comes and goes alone")
    p.box(30, 532, 176, 64, "CapacityClaim", [f.claim, "chooses the zone"])
    p.box(30, 606, 176, 64, "SpendingLimit", f.limit)
    p.box(30, 680, 176, 64, "Storage: S3", ["checkpoints and data,", "one role, one prefix"])
    p.box(30, 754, 176, 64, "Guards", f.policies)
    p.box(222, 532, 532, 286, f"GPU nodes: {f.nodes}, in one zone", [], fill="band")
    for x, number in ((238, 1), (500, f.nodes)):
        p.box(x, 568, 238, 210, f"GPU node {number}", f.node, line="efa")
        p.box(x + 12, 660, 214, 106, "Ray worker", f.worker, line="run")
    p.arrow([(464, 716), (512, 716)], color="efa", both=True, wide=2.6)
    p.label(488, 801, "EFA: the traffic that the gate proves, by NCCL's lines and the devices' counters", color="efa", anchor="middle")
    p.arrow([(206, 564), (222, 564)])

    # The run: from your machine through the EKS API to the head, from there to the workers; checkpoints go to storage.
    p.arrow([(786, 100), (786, 400), (742, 400)], color="run", both=True)
    p.label(792, 146, "through the EKS API, by IAM", color="run", turn=True)
    p.arrow([(690, 454), (690, 660)], color="run", both=True)
    p.arrow([(620, 454), (620, 485), (453, 485), (453, 660)], color="run", both=True)
    p.arrow([(250, 712), (206, 712)], color="run")
    return p.svg()


def pictures(templates: Mapping[str, Mapping[str, Any]]) -> dict[Path, str]:
    """File -> what should stand in it."""
    found = facts(templates)
    return {PICTURES / f"architecture-{theme}.svg": draw(found, theme) for theme in THEMES}


def synthesize() -> dict[str, dict[str, Any]]:
    """The app's templates with the settings' defaults as they stand in cdk.json."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "app.py"], cwd=REPO, check=True, env={**os.environ, "CDK_OUTDIR": folder})
        return {name: json.loads((Path(folder) / f"{name}.template.json").read_text(encoding="utf-8")) for name in STACKS}


if __name__ == "__main__":
    wanted = pictures(synthesize())
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        sys.exit("out of date, run python docs/architecture.py: " + ", ".join(p.name for p in stale) if stale else 0)
    PICTURES.mkdir(exist_ok=True)
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
        print(f"written: {path.relative_to(REPO)}")
