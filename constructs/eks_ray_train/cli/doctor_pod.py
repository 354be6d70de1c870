"""What a program inside a Ray pod can tell that the API cannot: loaded versions, driver, fabric, whether storage takes a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eks_ray_train.errors import ClusterNotReadyError
from eks_ray_train.manifests.names import ENV_STORAGE_PATH

if TYPE_CHECKING:
    from .cluster_state import Pod
    from .kube_objects import KubeObjects

TIMEOUT_S = 90.0
MARK = "eks-ray-train-probe:"

# Runs with the pod's own Python and must survive anything missing: each answer stands alone. Standard library, and pyarrow
# (which Ray Train brings) for remote storage. It writes one small file and removes it again.
PROBE = f"""
import importlib.metadata, json, os, re, shutil, subprocess, sys, uuid
def run(*words):
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
        return done.returncode, done.stdout, done.stderr
    except Exception as error:
        return None, "", f"{{type(error).__name__}}: {{error}}"
def version(name):
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except Exception:
        return None
def text(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None
said = {{"python": sys.version.split()[0], "ray": version("ray"), "torch": version("torch")}}
found = re.search(r"NVRM version:.*?\\s(\\d+\\.\\d[\\d.]*)\\s", (text("/proc/driver/nvidia/version") or "") + " ")
said["driver"] = found.group(1) if found else None
said["efa_module"] = text("/sys/module/efa/version")
tool = shutil.which("fi_info") or "/opt/amazon/efa/bin/fi_info"
code, out, err = run(tool, "-p", "efa")
said["fi_info"] = {{
    "code": code, "error": (err or out).strip()[-200:] if code != 0 else "",
    "domains": sorted(set(re.findall(r"domain:\\s*(\\S+)", out))), "providers": sorted(set(re.findall(r"provider:\\s*(\\S+)", out))),
    "rma": run(tool, "-p", "efa", "-c", "FI_RMA")[0] == 0 if code == 0 else False,
}}
path = os.environ.get("{ENV_STORAGE_PATH}")
said["storage"] = {{"path": path, "ok": None}}
if path:
    try:
        from pyarrow import fs
        system, base = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
        name = base.rstrip("/") + "/.doctor-" + uuid.uuid4().hex
        if "://" not in path:
            system.create_dir(base, recursive=True)
        with system.open_output_stream(name) as file:
            file.write(b"doctor")
        system.delete_file(name)
        said["storage"]["ok"] = True
    except Exception as error:
        said["storage"].update(ok=False, error=f"{{type(error).__name__}}: {{error}}"[:300])
print("{MARK}" + json.dumps(said))
"""


@dataclass(frozen=True, kw_only=True)
class PodFacts:
    """One pod's answers; None where the pod could not say. ``domains``: EFA devices that libfabric lists."""

    pod: str
    ray: str | None
    torch: str | None
    driver: str | None
    efa_module: str | None
    fi_info_code: int | None
    fi_info_error: str
    domains: tuple[str, ...]
    providers: tuple[str, ...]
    rma: bool
    storage_path: str | None
    storage_ok: bool | None
    storage_error: str


def ask_pod(objects: KubeObjects, pod: Pod) -> PodFacts:
    """Run the probe in a pod. Raises ClusterNotReadyError where that is not allowed, not possible, or gives no answer in time."""
    ran = objects.run_in_pod(pod.name, pod.container, ["python", "-c", PROBE], timeout_s=TIMEOUT_S)
    if ran.code is None:
        raise ClusterNotReadyError(f"the probe in pod {pod.name} did not end within {TIMEOUT_S:.0f} s; run doctor again")
    line = next((line for line in reversed(ran.out.splitlines()) if line.startswith(MARK)), None)
    if line is None:
        last = (ran.err or ran.out).strip().splitlines()[-1:] or ["no output"]
        raise ClusterNotReadyError(f"the probe in pod {pod.name} ended with {ran.code} and no answer: {last[0][:200]}")
    try:
        return read_facts(pod.name, json.loads(line.removeprefix(MARK)))
    except ValueError:
        raise ClusterNotReadyError(f"the probe's answer in pod {pod.name} broke off: {line[-80:]!r}; run doctor again") from None


def read_facts(pod: str, said: dict[str, Any]) -> PodFacts:
    """The probe's JSON."""
    fabric, storage = said.get("fi_info") or {}, said.get("storage") or {}
    return PodFacts(
        pod=pod,
        ray=said.get("ray"),
        torch=said.get("torch"),
        driver=said.get("driver"),
        efa_module=said.get("efa_module"),
        fi_info_code=fabric.get("code"),
        fi_info_error=str(fabric.get("error") or ""),
        domains=tuple(fabric.get("domains") or ()),
        providers=tuple(fabric.get("providers") or ()),
        rma=bool(fabric.get("rma")),
        storage_path=storage.get("path"),
        storage_ok=storage.get("ok"),
        storage_error=str(storage.get("error") or ""),
    )
