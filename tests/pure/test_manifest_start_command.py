"""The rendered start command, run for real with a stub entrypoint and a stub ``ray``."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

from eks_ray_train.manifests.ray_cluster import ray_cluster
from eks_ray_train.manifests.start_command import ENTRYPOINT, OPEN_FILES, start_command
from tests.pure.manifest_support import cluster_spec, head_of, workers_of

COMPAT = "/usr/local/cuda/compat"


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A folder with an entrypoint that does what the image's does on an old driver, and a ``ray`` that tells what it got."""
    entrypoint, ray = tmp_path / "entrypoint.sh", tmp_path / "ray"
    entrypoint.write_text(f'#!/bin/bash\nexport LD_LIBRARY_PATH={COMPAT}:$LD_LIBRARY_PATH\nexec "$@"\n')
    ray.write_text(
        "#!/bin/bash\n"
        'printf "%s\\n" "pid=$$" "library=$LD_LIBRARY_PATH" "files=$(ulimit -n)" > "$OUT"\n'
        'for a in "$@"; do printf "arg=%s\\n" "$a" >> "$OUT"; done\n'
        '[ -z "$HOLD" ] && exit 0\n'
        'trap \'echo "signal=TERM" >> "$OUT"; exit 0\' TERM\n'
        'echo ready >> "$OUT"\nwhile :; do sleep 0.05; done\n'
    )
    entrypoint.chmod(0o755)
    ray.chmod(0o755)
    return tmp_path


def _environment(stubs: Path, generated: str, **extra: str) -> dict[str, str]:
    return {
        "PATH": f"{stubs}:{os.environ['PATH']}",
        "OUT": str(stubs / "out"),
        "LD_LIBRARY_PATH": "/opt/amazon/ofi-nccl/lib64",
        "KUBERAY_GEN_RAY_START_CMD": generated,
        **extra,
    }


def _command(stubs: Path) -> list[str]:
    command, args = start_command(entrypoint=str(stubs / "entrypoint.sh"))
    return [*command, *args]


def _run(stubs: Path, generated: str) -> list[str]:
    # Starts with a low soft limit, as containers do, so that the command's own setting is what is seen.
    low = ["bash", "-c", 'ulimit -Sn 1024; exec "$@"', "low", *_command(stubs)]
    subprocess.run(low, env=_environment(stubs, generated), check=True, timeout=30)
    return (stubs / "out").read_text().splitlines()


def test_head_and_workers_run_this_command_under_the_images_entrypoint() -> None:
    manifest = ray_cluster(cluster_spec())
    assert manifest["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    for template in (head_of(manifest), *workers_of(manifest)):
        container = template["spec"]["containers"][0]
        assert (container["command"], container["args"]) == start_command()
        assert container["command"] == [ENTRYPOINT]
        assert template["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"


def test_library_path_and_file_limit_arrive_in_the_final_process(stubs: Path) -> None:
    seen = _run(stubs, "ray start --head --block --num-cpus=0")
    assert f"library={COMPAT}:/opt/amazon/ofi-nccl/lib64" in seen
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    allowed = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    assert allowed > 1024
    assert f"files={allowed}" in seen
    assert [line for line in seen if line.startswith("arg=")] == ["arg=start", "arg=--head", "arg=--block", "arg=--num-cpus=0"]


def test_quoted_arguments_of_the_operator_stay_whole(stubs: Path) -> None:
    """KubeRay quotes JSON for a shell; plain word splitting would tear it apart."""
    seen = _run(stubs, """ray start --resources='{"a b": 1}' --labels="x=y z" """)
    assert [line for line in seen if line.startswith("arg=")] == ["arg=start", 'arg=--resources={"a b": 1}', "arg=--labels=x=y z"]


def test_an_operator_that_still_puts_ulimit_before_ray_works_too(stubs: Path) -> None:
    """Older operators' generated command starts with it."""
    seen = _run(stubs, "ulimit -n 4096; ray start --block")
    assert "files=4096" in seen
    assert "arg=--block" in seen


def test_ray_is_the_containers_first_process_and_gets_the_kubelets_signal(stubs: Path) -> None:
    out = stubs / "out"
    environment = _environment(stubs, "ray start --block", HOLD="1")
    process = subprocess.Popen(_command(stubs), env=environment)
    try:
        deadline = time.monotonic() + 20
        while not (out.exists() and "ready" in out.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert f"pid={process.pid}" in out.read_text().splitlines()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        assert "signal=TERM" in out.read_text()
    finally:
        process.kill()
        process.wait()


def test_a_failing_ray_start_fails_the_container(stubs: Path) -> None:
    done = subprocess.run(_command(stubs), env=_environment(stubs, "ray start && exit 7"), check=False, timeout=30)
    assert done.returncode == 7
