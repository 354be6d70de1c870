"""Every instance type × capacity mode × storage × own or existing cluster × with or without a RayJob.

Templates are synthesized for rows in which every type, and every pair of the other four, occurs; ``make test-faults`` adds rows
in which every type meets every value of every other factor. Manifests are rendered for the full product.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.instances import CATALOGUE
from eks_ray_train.manifests.ray_cluster import ray_cluster
from eks_ray_train.manifests.ray_job import RayJobSpec, ray_job
from eks_ray_train.manifests.validate import problems
from tests.pure.manifest_support import cluster_spec, crd_schema, gpu_workers, schema_problems
from tests.synth.template_reading import launch_template_of, manifests, of_type, only

MODES = ("probe", "hold", "reservation", "block", "none")
STORAGES = ("s3", "fsx", "none")
CLUSTERS = ("own", "existing")
JOBS = (False, True)
# Of one template, CloudFormation's own limits, and cfn-lint's:
# https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html
MOST_RESOURCES, MOST_BYTES = 500, 1_000_000
FACTORS = (MODES, STORAGES, CLUSTERS, JOBS)
GIVEN = "cr-0123456789abcdef0"
EXISTING = {
    "name": "theirs",
    "kubectl_role_arn": "arn:aws:iam::123456789012:role/kubectl",
    "security_group_id": "sg-0123456789abcdef0",
    "vpc_id": "vpc-0123456789abcdef0",
    "availability_zones": ["us-east-2a", "us-east-2b"],
    "private_subnet_ids": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
}


@dataclass(frozen=True)
class Row:
    instance_type: str
    mode: str
    storage: str
    cluster: str
    job: bool

    @property
    def legal(self) -> bool:
        return self.mode != "block" or CATALOGUE[self.instance_type].capacity_block

    @property
    def settings(self) -> dict[str, Any]:
        given = {"capacity_reservation_id": GIVEN} if self.mode in ("reservation", "block") else {}
        existing = {"existing_cluster": EXISTING} if self.cluster == "existing" else {}
        return {
            "gpu_instance_type": self.instance_type, "capacity": self.mode, "storage": self.storage,
            "accept_unverified_layout": True, **given, **existing,
        }  # fmt: skip


def quick_rows() -> list[Row]:
    """Every type once, each time with the combination that brings the most pairs of mode, storage, cluster and job not seen yet;
    when all were seen, the combinations least used. Few types can be had in a Capacity Block: they begin, with that mode."""
    with_blocks = [name for name in CATALOGUE if CATALOGUE[name].capacity_block]
    rows = [
        Row(with_blocks[n], "block", storage, CLUSTERS[n % 2], JOBS[(n + 1) % 2]) for n, storage in enumerate(STORAGES)
    ]  # fmt: skip
    used: Counter[tuple[Any, ...]] = Counter()
    for name in [n for n in CATALOGUE if n not in with_blocks[: len(STORAGES)]]:
        seen = pairs(rows)
        candidates = [row for row in (Row(name, *values) for values in itertools.product(*FACTORS)) if row.legal]
        best = max(candidates, key=lambda row: (len(pairs([row]) - seen), -used[row.mode, row.storage], -used[row.cluster, row.job]))
        used[best.mode, best.storage] += 1
        used[best.cluster, best.job] += 1
        rows.append(best)
    return rows


def pairs(rows: list[Row]) -> set[tuple[int, int, Any, Any]]:
    """Pairs of values of mode, storage, cluster and job that occur together in some row."""
    values = [(row.mode, row.storage, row.cluster, row.job) for row in rows]
    return {(a, b, v[a], v[b]) for v in values for a, b in itertools.combinations(range(4), 2)}


def enough_for_pairs(rows: list[Row]) -> list[Row]:
    """The shortest beginning of ``rows`` that has all their pairs."""
    return next(rows[:n] for n in range(1, len(rows) + 1) if pairs(rows[:n]) == pairs(rows))


def further_rows() -> Iterator[Row]:
    """Every type with every mode; storage, cluster and job take turns, so that every type meets each of their values too."""
    for number, name in enumerate(CATALOGUE):
        for turn, mode in enumerate(MODES):
            row = Row(name, mode, STORAGES[(number + turn) % 3], CLUSTERS[(number + turn) % 2], JOBS[(number + turn // 2) % 2])
            if row.legal:
                yield row


QUICK = quick_rows()
FURTHER = [row for row in further_rows() if row not in QUICK]


def synthesize(repo: Path, folder: Path, rows: list[Row]) -> dict[Row, dict[str, Any]]:
    """Training templates of ``rows`` in one app with one own and one existing cluster."""
    from eks_ray_train.node_runtime import use_bundled_node

    use_bundled_node()
    from aws_cdk import App, Environment

    from eks_ray_train import RayTrainJob, Settings
    from eks_ray_train.settings import read_cdk_json
    from stacks import EksStack, NetworkStack, TrainingStack

    job_dir = folder / "job"
    job_dir.mkdir()
    (job_dir / "train.py").write_text("print(1)\n")
    context = read_cdk_json(repo / "cdk.json")
    context.pop("@aws-cdk/core:validateAgainstDefaultRules", None)  # cfn-lint below is the stricter one
    app, env = App(context=context, analytics_reporting=False, outdir=str(folder / "out")), Environment()
    clusters = {}
    for kind in CLUSTERS:
        settings = Settings(storage="fsx", existing_cluster=EXISTING if kind == "existing" else {})
        network = NetworkStack(app, f"Network-{kind}", settings=settings, env=env)
        clusters[kind] = EksStack(app, f"Cluster-{kind}", settings=settings, vpc=network.vpc, env=env)
    for number, row in enumerate(rows):
        settings = Settings(**row.settings, namespace=f"m{number}")
        training = TrainingStack(app, f"T{number}", settings=settings, eks=clusters[row.cluster], job_dir=job_dir, env=env)
        if row.job:
            RayTrainJob(
                training, "Job", cluster=clusters[row.cluster].cluster, nodes=training.nodes, job_dir=job_dir,
                operator=clusters[row.cluster].operator, namespace=f"j{number}",
            )  # fmt: skip
    app.synth()
    return {row: json.loads((folder / "out" / f"T{n}.template.json").read_text()) for n, row in enumerate(rows)}


@pytest.fixture(scope="module")
def quick(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Row, dict[str, Any]]:
    return synthesize(repo, tmp_path_factory.mktemp("matrix"), QUICK)


@pytest.fixture(scope="module")
def further(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Row, dict[str, Any]]:
    return synthesize(repo, tmp_path_factory.mktemp("matrix-further"), FURTHER)


@pytest.fixture(scope="session")
def schemas(shared_dir: Path) -> dict[str, dict[str, Any]]:
    return {"RayCluster": crd_schema(shared_dir, "rayclusters"), "RayJob": crd_schema(shared_dir, "rayjobs")}


def template_problems(row: Row, template: dict[str, Any]) -> list[str]:
    """What is wrong with one training template for its row."""
    found = []
    kind = CATALOGUE[row.instance_type]
    group = only(template, "AWS::EKS::Nodegroup")
    data = launch_template_of(template, group)
    efa = [i for i in data["NetworkInterfaces"] if i["InterfaceType"] == "efa-only"]
    rays = [*manifests(template, "RayCluster"), *manifests(template, "RayJob")]
    for ray in rays:
        spec = ray["spec"].get("rayClusterSpec", ray["spec"])
        (workers,) = spec["workerGroupSpecs"]
        limits = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
        if not len(efa) == int(limits["vpc.amazonaws.com/efa"]) == kind.efa_interfaces:
            found.append(f"{ray['kind']}: {len(efa)} EFA interfaces, {limits} in the pod, {kind.efa_interfaces} in the catalogue")
        if int(limits["cpu"]) * 1000 > kind.allocatable_cpu_millis or int(limits["nvidia.com/gpu"]) != kind.gpus:
            found.append(f"{ray['kind']}: pod asks {limits} of a {kind.name}")
        path = {e["name"]: e.get("value") for e in workers["template"]["spec"]["containers"][0]["env"]}.get(
            "EKS_RAY_TRAIN_STORAGE_PATH"
        )
        # A RayJob of the matrix has no storage of its own.
        expected = None if ray["kind"] == "RayJob" else {"s3": "s3://<deploy>/ray-train", "fsx": "/fsx/ray-train", "none": None}[row.storage]
        if path != expected:
            found.append(f"{ray['kind']}: storage path {path}, expected {expected}")
        found += problems(ray)
    if len(rays) != 1 + row.job:
        found.append(f"{len(rays)} Ray objects")
    if ("CapacityReservationSpecification" in data) != (row.mode in ("hold", "reservation", "block")):
        found.append("capacity reservation in the launch template does not fit the mode")
    if (group["Properties"]["CapacityType"] == "CAPACITY_BLOCK") != (row.mode == "block"):
        found.append("capacity type does not fit the mode")
    if bool(of_type(template, "AWS::S3::Bucket")) != (row.storage != "none"):
        found.append("bucket does not fit the storage")
    if ("sg-0123456789abcdef0" in json.dumps(data)) != (row.cluster == "existing"):
        found.append("cluster's security group is not on the interfaces")
    return [f"{row}: {problem}" for problem in found]


def lint_problems(template: dict[str, Any], path: Path) -> list[str]:
    """cfn-lint's findings but W3005, which the CDK's own resources have, and E3628 (its region's types are older than ours)."""
    from cfnlint import lint_file
    from cfnlint.config import ManualArgs

    path.write_text(json.dumps(template))
    return [f"{path.name}: {match}" for match in lint_file(path, ManualArgs(ignore_checks=["W3005", "E3628"]))]


def unions(templates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Templates that hold every different resource of ``templates`` once, so that each is linted once.

    Rows differ in a few resources. One that is in an earlier template as well is left out; another one of the same logical id comes
    under a further id, and what it refers to stands there under the plain one. Each stays below CloudFormation's own limits.
    """
    made: list[dict[str, Any]] = []
    seen: set[tuple[str, str]] = set()
    for template in templates:
        resources = template["Resources"]
        # Rows have a namespace each (m12, j12), which is no difference that a rule sees.
        keys = {n: (n, re.sub(r"\b([mj])\d+\b", r"\1", json.dumps(r, sort_keys=True))) for n, r in resources.items()}
        new = [name for name, key in keys.items() if key not in seen]
        seen.update(keys.values())
        union = {**made[-1], "Resources": dict(made[-1]["Resources"])} if made else {"Resources": {}}
        for section in ("Parameters", "Conditions", "Mappings"):
            if section in template:
                union[section] = {**union.get(section, {}), **template[section]}
        added = dict.fromkeys([*new, *(n for n in resources if n not in union["Resources"])])
        for name in added:
            free = next(f for n in itertools.count() if (f := f"{name}V{n}" if n else name) not in union["Resources"])
            union["Resources"][free] = resources[name]
        if made and len(union["Resources"]) <= MOST_RESOURCES and len(json.dumps(union)) <= MOST_BYTES:
            made[-1] = union
        else:
            made.append({**template, "Resources": dict(resources)})
    return made


def test_the_quick_rows_hold_every_type_and_every_pair_of_the_other_factors() -> None:
    assert {row.instance_type for row in QUICK} == set(CATALOGUE)
    every = {
        (a, b, x, y) for a, b in itertools.combinations(range(4), 2) for x, y in itertools.product(FACTORS[a], FACTORS[b])
    }  # fmt: skip
    assert pairs(QUICK) == every


def test_the_further_rows_let_every_type_meet_every_value_of_every_other_factor() -> None:
    rows = [*QUICK, *FURTHER]
    for name in CATALOGUE:
        for factor, values in zip(("mode", "storage", "cluster", "job"), FACTORS, strict=True):
            legal = {v for v in values if v != "block" or CATALOGUE[name].capacity_block}
            assert {getattr(row, factor) for row in rows if row.instance_type == name} == legal, (name, factor)


def test_unions_hold_every_different_resource_once_with_what_it_names() -> None:
    def template(**resources: Any) -> dict[str, Any]:
        return {"Resources": resources, "Outputs": {"O": 1}}

    first, second = template(A={"X": 1}, B={"Ref": "A"}), template(A={"X": 2}, B={"Ref": "A"}, C={"Ref": "B"})
    (union,) = unions([first, second, first])
    assert union["Resources"] == {"A": {"X": 1}, "B": {"Ref": "A"}, "AV1": {"X": 2}, "C": {"Ref": "B"}}
    (same,) = unions([template(A={"Namespace": "m1"}), template(A={"Namespace": "m2"})])
    assert same["Resources"] == {"A": {"Namespace": "m1"}}
    many = [template(**{f"R{n}": {"X": m * (n == 0)} for n in range(100)}) for m in range(450)]
    made = unions(many)
    assert max(len(u["Resources"]) for u in made) <= MOST_RESOURCES
    values = {json.dumps(r) for u in made for r in u["Resources"].values()}
    assert values == {json.dumps(r) for t in many for r in t["Resources"].values()}
    large = [template(R={"X": str(m) * 300_000}) for m in range(5)]
    made = unions(large)
    assert [len(u["Resources"]) for u in made] == [3, 2]
    assert max(len(json.dumps(u)) for u in made) <= MOST_BYTES


def test_a_wrong_resource_of_one_row_is_found_in_the_union(quick: dict[Row, dict[str, Any]], tmp_path: Path) -> None:
    broken = json.loads(json.dumps(quick[QUICK[0]]))
    (group,) = of_type(broken, "AWS::EKS::Nodegroup").values()
    group["Properties"]["CapacityType"] = "NO_SUCH"
    (union,) = unions([quick[QUICK[0]], broken])
    assert any("NO_SUCH" in problem for problem in lint_problems(union, tmp_path / "broken.json"))


def test_templates_of_the_quick_rows_say_what_their_row_says(quick: dict[Row, dict[str, Any]]) -> None:
    assert [p for row, template in quick.items() for p in template_problems(row, template)] == []


def test_ray_objects_in_the_templates_of_the_quick_rows_fit_kuberays_schemas(
    quick: dict[Row, dict[str, Any]], schemas: dict[str, dict[str, Any]]
) -> None:
    for row, template in quick.items():
        for ray in [*manifests(template, "RayCluster"), *manifests(template, "RayJob")]:
            assert schema_problems(ray, schemas[ray["kind"]]) == [], row


def test_templates_of_the_quick_rows_pass_cfn_lint(quick: dict[Row, dict[str, Any]], tmp_path: Path) -> None:
    """One row for each pair of mode, storage, cluster and job: a type changes values, not a template's shape."""
    linted = enough_for_pairs(QUICK)
    assert len(linted) >= 15  # 5 modes x 3 storages
    assert [p for n, row in enumerate(linted) for p in lint_problems(quick[row], tmp_path / f"{n}.json")] == []


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_templates_of_the_further_rows_say_what_their_row_says_and_pass_cfn_lint(
    further: dict[Row, dict[str, Any]], schemas: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    found = []
    for number, union in enumerate(unions(list(further.values()))):
        found += lint_problems(union, tmp_path / f"union-{number}.json")
    for row, template in further.items():
        found += template_problems(row, template)
        for ray in [*manifests(template, "RayCluster"), *manifests(template, "RayJob")]:
            found += schema_problems(ray, schemas[ray["kind"]])
    assert found == []


@pytest.mark.parametrize("instance_type", sorted(CATALOGUE))
def test_manifests_of_the_full_product_fit_schema_and_operators_rules(
    instance_type: str, schemas: dict[str, dict[str, Any]]
) -> None:
    """Mode and kind of cluster reach no manifest but by the node selector: type × storage × queue × RayJob is the product."""
    for storage, queue in itertools.product(STORAGES, (None, "gpus")):
        spec = cluster_spec(
            workers=(gpu_workers(instance_type),),
            storage_path={"s3": "s3://bucket/prefix", "fsx": "/fsx/ray-train", "none": None}[storage],
            fsx_claim="ray-train-fsx" if storage == "fsx" else None,
        )
        for ray in (ray_cluster(spec), ray_job(RayJobSpec(cluster=spec, job_digest="0", queue_name=queue))):
            assert schema_problems(ray, schemas[ray["kind"]]) == []
            assert problems(ray) == []
