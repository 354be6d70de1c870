"""What has aged: Kubernetes on EKS, pinned charts, instance types that the catalogue lacks, prices.

    python tools/freshness.py            # from what is installed and written here: no network
    python tools/freshness.py --online   # also asks the charts' repositories for their newest versions

Ends with 1 where something has aged, 0 where nothing has. A question that could not be answered is a finding too.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
LIBRARY = REPO / "constructs" / "eks_ray_train"
if str(LIBRARY.parent) not in sys.path:
    sys.path.insert(0, str(LIBRARY.parent))

from eks_ray_train import versions  # noqa: E402
from eks_ray_train.instances import _UNSUPPORTED_FAMILIES, CATALOGUE  # noqa: E402

# How early a version's end is told, and how old a figure may get.
NOTICE = dt.timedelta(days=120)
PRICES_MAY_BE = dt.timedelta(days=180)
CHECK_MAY_BE = dt.timedelta(days=90)
# EKS has brought a new minor version every four months or so (versions.KUBERNETES_RELEASES).
A_RELEASE_EVERY = dt.timedelta(days=180)
# GPU families of EC2: G and P, their variants with a suffix, followed by a generation.
GPU_TYPE = re.compile(r"(?P<family>(?:gr?|p)\d[a-z0-9]*(?:-[a-z]+\d+)?)\.(?P<size>\w+)$")
# The first size of a G family with EFA is 8xlarge (EC2 instance-type data).
SMALL = ("nano", "micro", "small", "medium", "large", "xlarge", "2xlarge", "4xlarge", "6xlarge")
# Families without EFA in any size, so that they are no news (EC2 instance-type data, 2026-11).
WITHOUT_EFA = frozenset({"g2", "g3", "g3s", "g4ad", "g6f", "gr6f"})
CHARTS = (
    ("kuberay-operator", versions.KUBERAY_CHART_REPOSITORY, versions.KUBERAY_VERSION, "KUBERAY_VERSION"),
    ("nvidia-device-plugin", versions.NVIDIA_CHART_REPOSITORY, versions.NVIDIA_DEVICE_PLUGIN_VERSION, "NVIDIA_DEVICE_PLUGIN_VERSION"),
    ("aws-efa-k8s-device-plugin", versions.EFA_CHART_REPOSITORY, versions.EFA_DEVICE_PLUGIN_VERSION, "EFA_DEVICE_PLUGIN_VERSION"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What has aged (``what``), how one sees it (``why``), what to do (``do``)."""

    what: str
    why: str
    do: str


def kubernetes(today: dt.date, releases: Iterable[versions.KubernetesRelease], default: str) -> Iterator[Finding]:
    """The default version near its end, and a calendar that has stood still. (Rows of versions that are gone stay: their error names the end.)"""
    known = {r.version: r for r in releases}
    mine, newest = known[default], max(known.values(), key=lambda r: versions.minor_of(r.version))
    if mine.standard_until - today <= NOTICE:
        yield Finding(
            what=f"Kubernetes {default}",
            why=f"standard support ends on {mine.standard_until}",
            do="DEFAULT_KUBERNETES in versions.py, the kubectl layer in requirements-cdk.txt",
        )
    if today - newest.released > A_RELEASE_EVERY:
        yield Finding(
            what="calendar of Kubernetes versions",
            why=f"the newest is {newest.version} of {newest.released}",
            do="compare with https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html",
        )


def instance_types(known: Iterable[str], catalogue: Iterable[str], unsupported: Iterable[str]) -> Iterator[Finding]:
    """GPU types that botocore's EC2 model names and the catalogue lacks; one finding a family. Whether they have EFA only AWS says."""
    have, never = set(catalogue), set(unsupported)
    missing: dict[str, list[str]] = {}
    for name in known:
        match = GPU_TYPE.match(name)
        if match and name not in have and match["family"] not in never and not (name[0] == "g" and match["size"] in SMALL):
            missing.setdefault(match["family"], []).append(name)
    for _, names in sorted(missing.items()):
        yield Finding(
            what=f"instance types {', '.join(sorted(names))}",
            why="botocore knows them and the catalogue does not",
            do=f"aws ec2 describe-instance-types --instance-types {names[0]}: with EFA a row in instances.py, else WITHOUT_EFA in tools/freshness.py",
        )


def dated(today: dt.date, name: str, text: str, pattern: str, limit: dt.timedelta, do: str) -> Iterator[Finding]:
    """A date written in a source file, older than ``limit``; a date that is not there is a finding as well."""
    found = re.search(pattern, text)
    if not found:
        yield Finding(what=name, why="its date is not written any more", do=f"write it again, or change {Path(__file__).name}")
    elif today - (day := dt.date.fromisoformat(found[1])) > limit:
        yield Finding(what=name, why=f"from {day}, {(today - day).days} days ago", do=do)


def order(version: str) -> tuple[int, ...] | None:
    """``v1.7.0`` -> (1, 7, 0); None for a pre-release or anything else."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)", version)
    return tuple(int(part) for part in match.groups()) if match else None


def chart(name: str, pinned: str, constant: str, index: dict[str, Any]) -> Iterator[Finding]:
    """A chart whose repository has a newer release than the pin, or does not have the pin."""
    offered = {str(entry["version"]): order(str(entry["version"])) for entry in index.get("entries", {}).get(name, [])}
    if pinned.lstrip("v") not in {version.lstrip("v") for version in offered}:
        yield Finding(what=f"chart {name} {pinned}", why="its repository does not have it", do=f"{constant} and the repository in versions.py")
    newest = max((o for o in offered.values() if o), default=None)
    mine = order(pinned)
    if newest and mine and newest > mine:
        yield Finding(
            what=f"chart {name} {pinned}",
            why=f"{'.'.join(map(str, newest))} is out",
            do=f"read its notes, then {constant} in versions.py and the snapshots",
        )


def fetch(repository: str) -> dict[str, Any]:
    """A Helm repository's index."""
    import yaml

    with urllib.request.urlopen(repository.rstrip("/") + "/index.yaml", timeout=30) as answer:
        found = yaml.load(answer.read(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(found, dict):
        raise ValueError("the index is no mapping")
    return found


def charts(read: Callable[[str], dict[str, Any]]) -> Iterator[Finding]:
    """Every pinned chart against its repository."""
    for name, repository, pinned, constant in CHARTS:
        try:
            index = read(repository)
        except (OSError, ValueError) as error:
            yield Finding(what=f"chart {name} {pinned}", why=f"{repository} could not be read: {error}", do="look yourself; has the repository moved?")
        else:
            yield from chart(name, pinned, constant, index)


def known_types() -> list[str]:
    """Instance types that the installed botocore knows."""
    from botocore.loaders import Loader

    return list(Loader().load_service_model("ec2", "service-2")["shapes"]["InstanceType"]["enum"])


def everything(today: dt.date, *, online: bool) -> list[Finding]:
    """All findings, in the order in which they should be looked at."""
    found = [*kubernetes(today, versions.KUBERNETES_RELEASES.values(), versions.DEFAULT_KUBERNETES)]
    found += instance_types(known_types(), CATALOGUE, {*_UNSUPPORTED_FAMILIES, *WITHOUT_EFA})
    notes = (LIBRARY / "versions.py").read_text(encoding="utf-8")
    rows = (LIBRARY / "instances.py").read_text(encoding="utf-8")
    found += dated(today, "pinned versions", notes, r"Checked (\d{4}-\d\d-\d\d)", CHECK_MAY_BE, "check the sources named in versions.py, then its date")
    found += dated(today, "prices of the catalogue", rows, r"price list of (\d{4}-\d\d-\d\d)", PRICES_MAY_BE, "a newer price list, then its date")
    return found + ([*charts(fetch)] if online else [])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--online", action="store_true", help="ask the charts' repositories too")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--today", type=dt.date.fromisoformat, default=dt.date.today(), metavar="YYYY-MM-DD", help="another day")
    words = parser.parse_args(argv)
    found = everything(words.today, online=words.online)
    if words.json:
        print(json.dumps([asdict(f) for f in found], indent=2))
    else:
        print("\n".join(f"- {f.what}: {f.why}. {f.do}" for f in found) or f"nothing has aged on {words.today}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
