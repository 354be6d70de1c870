"""Killed worker, killed node, node back again, on two GPUs that are a Ray node each: time from the kill to the next finished step.

    python bench/faults_two_gpus.py           # two GPUs; root and iproute2 for the namespaces; about five minutes

The driver is ``job/train.py`` as it is; a step that was done before the kill and again after it must have the same loss. Where
namespaces are not allowed, both nodes are on the host's loopback. Writes ``bench/results/faults_two_gpus.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "bench"), str(REPO / "constructs")]

from two_machines import PORT, RayOnTwoMachines, namespaces_problem, ray_on_two_machines  # noqa: E402

from eks_ray_train.cli.processes import descendants  # noqa: E402

COORDINATOR_S = 20
"""How old Ray's picture of the cluster may be when a run with ``--min-workers`` begins (its autoscaling coordinator looks so often):
before, it would begin with the one node that was left. Seen with Ray 2.58."""

Kill = Callable[[RayOnTwoMachines], int]


def kill_worker(cluster: RayOnTwoMachines) -> int:
    """SIGKILL to the training worker of the second node; how many processes that were."""
    found = [pid for pid in descendants([cluster.processes[1].pid]) if "RayTrainWorker" in _command(pid)]
    return _kill(found)


def kill_node(cluster: RayOnTwoMachines) -> int:
    """SIGKILL to all processes of the second node at once, as when a machine loses its power."""
    return _kill(descendants([cluster.processes[1].pid]))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def _kill(pids: list[int]) -> int:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def train(cluster: RayOnTwoMachines, flags: list[str], *, kill: Kill | None = None, kill_at: int = 0, limit_s: float = 400) -> dict[str, Any]:
    """One run of ``job/train.py`` from the first machine; what happened, told by its event lines.

    ``kill`` is called once step ``kill_at`` is done. Raises RuntimeError where the run does not end well within ``limit_s``.
    """
    env = {**cluster.environment(), "RAY_ADDRESS": f"{cluster.machines.addresses[0]}:{PORT}", "GLOO_SOCKET_IFNAME": cluster.machines.interface(0)}
    words = cluster.machines.inside(0, sys.executable, "train.py", *flags)
    job = subprocess.Popen(words, cwd=REPO / "job", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert job.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_pump, args=(job.stdout, lines), daemon=True).start()
    events: list[dict[str, Any]] = []
    others: list[str] = []
    killed_at = 0.0
    give_up = time.monotonic() + limit_s
    while True:
        try:
            line = lines.get(timeout=max(0.1, give_up - time.monotonic()))
        except queue.Empty:
            job.kill()
            raise RuntimeError(f"no end within {limit_s} s; last lines: {''.join(others[-20:])}") from None
        if line is None:
            break
        if not line.startswith('{"event"'):
            others.append(line)
            continue
        events.append(json.loads(line))
        if kill is not None and not killed_at and events[-1]["event"] == "step" and events[-1]["step"] >= kill_at:
            killed_at = time.time()
            if not kill(cluster):
                raise RuntimeError("nothing was found to kill")
    if job.wait(timeout=60):
        raise RuntimeError(f"train.py ended with {job.returncode}: {''.join(others[-30:])}")
    return summary(events, killed_at)


def _pump(source: Iterable[str], lines: queue.Queue[str | None]) -> None:
    for line in source:
        lines.put(line)
    lines.put(None)


def summary(events: list[dict[str, Any]], killed_at: float) -> dict[str, Any]:
    """World sizes, steps and losses of a run, and the seconds from the kill to the next attempt's first step."""
    restart = next((i for i, e in enumerate(events) if e["event"] == "restart" and e["time"] > killed_at), len(events))
    before = {e["step"]: e["loss"] for e in events[:restart] if e["event"] == "step"}
    steps_after = [e for e in events[restart:] if e["event"] == "step"]
    twice = [abs(e["loss"] / before[e["step"]] - 1) for e in steps_after if e["step"] in before]
    found: dict[str, Any] = {
        "world_sizes": [e["world_size"] for e in events if e["event"] == "config"],
        "last_step": max((e["step"] for e in events if e["event"] == "step"), default=0),
        "final_loss": events[-1].get("final_loss"),
        "median_step_s": _median([e["step_s"] for e in events if e["event"] == "step"]),
        "checkpoint_bytes": max((e.get("bytes") or 0 for e in events if e["event"] == "checkpoint"), default=0),
    }
    if restart < len(events):
        found["resumed_from_step"] = events[restart]["step"]
    if killed_at and steps_after:
        found |= {
            "last_step_before": max(before), "kill_to_restart_s": round(events[restart]["time"] - killed_at, 2),
            "kill_to_next_step_s": round(steps_after[0]["time"] - killed_at, 2), "steps_done_twice": len(twice),
            "largest_relative_difference": max(twice, default=None),
        }  # fmt: skip
    return found


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def main() -> int:
    """Run all; 0 where each run came to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B")
    parser.add_argument("--point", default="4x2048", help="sequences a GPU x tokens a sequence")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--gpus", type=int, choices=(0, 1), default=1, help="of each machine; 0: gloo on CPUs, to try the script")
    parser.add_argument("--out", type=Path, default=REPO / "bench" / "results" / "faults_two_gpus.json")
    args = parser.parse_args()
    problem = namespaces_problem()
    from eks_ray_train.plan.known_models import known_config

    batch, _, seq = args.point.partition("x")
    result: dict[str, Any] = {
        "command": "python bench/faults_two_gpus.py", "model": args.model, "point": args.point,
        "network": problem or "two namespaces and a cable", "runs": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="faults-", dir="/dev/shm") as name:
        config = Path(name) / "config.json"
        shape = known_config(args.model) if args.gpus else json.loads((REPO / "job" / "configs" / "qwen2-tiny.json").read_text())
        config.write_text(json.dumps(shape))
        flags = [
            f"--model-config={config}", "--dataset=random", "--tokenizer=bytes", f"--seq-len={seq}", f"--batch-size={batch}",
            f"--steps={args.steps}", "--checkpoint-every=5", "--keep=2", f"--storage-path={name}/runs", "--warmup-steps=2", "--max-failures=2",
        ]  # fmt: skip
        kill_at = args.steps // 2 + 2
        with ray_on_two_machines(gpus=args.gpus, apart=problem is None) as cluster:

            def note(what: str, found: dict[str, Any]) -> None:
                result["runs"][what] = found
                args.out.write_text(json.dumps(result, indent=1) + "\n")
                print(what, json.dumps(found), flush=True)

            note("worker killed", train(cluster, [*flags, "--run-name=worker"], kill=kill_worker, kill_at=kill_at))
            note("node killed, one left", train(cluster, [*flags, "--run-name=node", "--min-workers=1"], kill=kill_node, kill_at=kill_at))
            cluster.start_again(1)
            time.sleep(COORDINATOR_S + 5)
            more = [f"--steps={args.steps + 5}" if flag.startswith("--steps=") else flag for flag in flags]
            note("node back, same run goes on", train(cluster, [*more, "--run-name=node", "--min-workers=1"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
