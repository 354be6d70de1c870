"""The repository's layout: what the wheel holds, what may import what, and that `constructs/` hides nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PURE = ("capacity", "cli", "gate", "manifests", "plan")
PURE_MODULES = ("errors", "helm", "instances", "node_labels", "node_user_data", "settings", "system_sizing", "versions")


def test_the_source_root_is_no_package_and_holds_exactly_one(repo: Path) -> None:
    root = repo / "constructs"
    assert not (root / "__init__.py").exists()
    assert [p.name for p in root.iterdir() if p.is_dir() and p.name != "__pycache__"] == ["eks_ray_train"]


def test_no_test_folder_is_a_package(repo: Path) -> None:
    assert not list((repo / "tests").rglob("__init__.py"))


def test_the_wheel_holds_our_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names}
    assert {t for t in top if not t.endswith(".dist-info")} == {"eks_ray_train"}
    assert "eks_ray_train/py.typed" in names
    assert not [name for name in names if "__pycache__" in name]


def _python(code: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


def test_pure_modules_import_without_the_cdk(repo: Path) -> None:
    folder = repo / "constructs" / "eks_ray_train"
    names = [f"eks_ray_train.{m}" for m in PURE_MODULES]
    for package in PURE:
        for path in sorted((folder / package).rglob("*.py")):
            dotted = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
            if not dotted.endswith("__main__"):
                names.append(dotted.removesuffix(".__init__"))
    code = (
        "import sys, importlib\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('aws_cdk', 'constructs', 'jsii'):\n"
        "            raise ImportError('blocked: ' + name)\n"
        "sys.meta_path.insert(0, Block())\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
    )
    done = _python(code, cwd=repo / "tests")
    assert done.returncode == 0, done.stderr
    assert len(names) > 30


def test_importing_the_package_loads_neither_cdk_nor_boto3(repo: Path) -> None:
    code = "import sys, eks_ray_train; print(sorted({m.split('.')[0] for m in sys.modules} & {'aws_cdk', 'jsii', 'boto3', 'yaml'}))"
    done = _python(code, cwd=repo / "tests")
    assert done.stdout.strip() == "[]", done.stderr


def test_every_public_name_exists_and_the_list_is_frozen() -> None:
    import eks_ray_train

    assert all(getattr(eks_ray_train, name) is not None for name in eks_ray_train.__all__)
    assert sorted(eks_ray_train.__all__) == sorted(PUBLIC)


def test_no_public_name_is_also_a_module() -> None:
    """Importing the module would put it in the name's place."""
    import eks_ray_train

    modules = {path.stem for path in Path(str(eks_ray_train.__file__)).parent.glob("*")}
    assert not modules & set(eks_ray_train.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    import eks_ray_train

    with pytest.raises(AttributeError, match="no attribute 'EfaNodes'"):
        _ = eks_ray_train.EfaNodes


def test_stacks_compose_and_define_nothing(repo: Path) -> None:
    for path in (repo / "stacks").glob("*.py"):
        text = path.read_text()
        assert not re.search(r"\bCfn(?!Output\b)\w+\(", text), f"{path.name} makes an L1 resource"
        assert "if instance_type" not in text
    assert len((repo / "app.py").read_text().splitlines()) < 45


def test_job_and_library_never_import_each_other(repo: Path) -> None:
    for path in (repo / "job").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) eks_ray_train", path.read_text(), re.M), path
    for path in (repo / "constructs").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) (fsdp_job|train)\b", path.read_text(), re.M), path


PUBLIC = (
    "CapacityClaim", "CapacityProbe", "CheckpointBucket", "ClusterAddons", "DevicePlugins", "EfaGpuNodeGroup", "EfaSecurityGroup",
    "EksRayTrainError", "ExitCode", "GPU_TAINT", "HelmRelease", "InstanceType", "JobIdentity", "KubeRayOperator", "LustreStorage",
    "RayTrainCluster", "RayTrainJob", "RunOutputs", "Settings", "SettingsError", "SpendingLimit", "SystemNodeGroup", "Taint",
    "TrainingCluster", "TrainingNetwork", "UsageError", "WorkerGroup", "__version__", "existing_cluster", "get_instance_type", "kubectl_layer",
    "load_settings",
)  # fmt: skip
