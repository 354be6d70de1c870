"""How fast and in how little memory the gate judges a big log: 1 GB from 1,024 ranks, made on the fly.

    python bench/gate_speed.py                       # the claim: under 30 s and under 200 MiB on one core
    python bench/gate_speed.py --gb 0.1 --mix nccl   # quick, and only NCCL lines

Three mixes: ``run`` (a training job's stream: its own lines, progress and NCCL's channels, as Ray prefixes them), ``nccl``
(nothing but NCCL lines) and ``stamped`` (the same with a different timestamp on each line). The judge runs in a process of its
own, whose wall time and peak resident memory are measured; each run's verdict is checked before it counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
RANKS, PER_NODE = 1024, 8
LIMIT_SECONDS, LIMIT_MIB = 30.0, 200.0


def prefix(rank: int) -> str:
    """Ray's prefix and NCCL's of one rank."""
    node, pid = rank // PER_NODE, 20_000 + rank
    ip = f"10.0.{node // 200}.{node % 200 + 10}"
    return f"(RayTrainWorker pid={pid}, ip={ip}) gpu-worker-{node:04d}:{pid}:{pid + 7} [{rank % PER_NODE}] NCCL INFO "


def opening(rank: int) -> Iterator[str]:
    """What a rank prints once."""
    head = prefix(rank)
    yield head + "NET/OFI Initializing aws-ofi-nccl 1.20.0"
    yield head + "NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)"
    yield head + "Assigned NET plugin Libfabric to comm"
    yield head + "Using network Libfabric"
    yield (
        head + f"comm 0x55d7869cef50 rank {rank} nRanks {RANKS} nNodes {RANKS // PER_NODE} localRanks {PER_NODE} "
        f"localRank {rank % PER_NODE} MNNVL 0"
    )


def body(mix: str, seed: int) -> Iterator[str]:
    """Endless lines of all ranks, interleaved at random."""
    draw = random.Random(seed)
    while True:
        rank = draw.randrange(RANKS)
        gpu, channel, peer = rank % PER_NODE, draw.randrange(32), (rank + PER_NODE) % RANKS
        kind = draw.random()
        if mix == "run" and kind < 0.6:
            who = prefix(rank).split(")")[0]
            yield (
                f"{who}) step {draw.randrange(9999)} loss {draw.random():.4f} tokens/s {draw.randrange(99999)} "
                + "·" * 20
            )
        elif kind < 0.8:
            line = f"Channel {channel:02d}/0 : {rank}[{gpu}] -> {peer}[{gpu}] [send] via NET/Libfabric/{channel}/GDRDMA"
            yield prefix(rank) + line
        else:
            yield prefix(rank) + f"Channel {channel:02d}/0 : {rank}[{gpu}] -> {rank ^ 1}[{gpu ^ 1}] via P2P/CUMEM/read"


def write_log(path: Path, size: int, mix: str) -> int:
    """Write at least ``size`` bytes; returns the number of lines. A block of 20 MB is repeated to make the writing quick."""
    lines = [line for rank in range(RANKS) for line in opening(rank)]
    source, block, length = body(mix, 1), [], 0
    while length < min(size, 20_000_000):
        line = next(source)
        block.append(line)
        length += len(line.encode()) + 1
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
        count, second = len(lines), 0
        while file.tell() < size:
            if mix == "stamped":
                second += 1
                stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(1_790_000_000 + second))
                file.writelines(f"{stamp}.{number % 1_000_000:06d}Z {line}\n" for number, line in enumerate(block))
            else:
                file.write("\n".join(block) + "\n")
            count += len(block)
    return count


def measure(path: Path) -> dict[str, float]:
    """Judge one file in a process of its own."""
    arguments = ["gate", str(path), "--json", "--nodes", str(RANKS // PER_NODE), "--job-status", "SUCCEEDED"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--child", *arguments], capture_output=True, text=True, check=False
    )
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    verdict = json.loads(done.stdout)
    if verdict["verdict"] != "pass" or verdict["ranks_seen"] != RANKS or done.returncode != 0:
        raise SystemExit(f"wrong verdict, so the time means nothing: {done.stdout[:500]} {done.stderr[-500:]}")
    peak = next(float(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("peak-mib "))
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "peak_mib": round(peak, 1)}


def child(arguments: list[str]) -> int:
    """The judge itself, which then says how much memory it needed at most."""
    from eks_ray_train.cli.__main__ import main

    code = main(arguments)
    print(f"peak-mib {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}", file=sys.stderr)
    return int(code or 0)


def main() -> int:
    """Measure and write the result beside the other ones."""
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=1.0, help="size of each log, 10^9 bytes")
    parser.add_argument("--mix", choices=["run", "nccl", "stamped", "all"], default="all")
    parser.add_argument("--out", type=Path, default=REPO / "bench" / "results" / "gate_speed.json")
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    for mix in ["run", "nccl", "stamped"] if args.mix == "all" else [args.mix]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.log"
            lines = write_log(path, int(args.gb * 1e9), mix)
            size = path.stat().st_size
            load = round(os.getloadavg()[0], 1)
            result: dict[str, Any] = {"mix": mix, "bytes": size, "lines": lines, "ranks": RANKS, **measure(path)}
            result["load_average_before"] = load  # wall time is only as good as the machine was idle
        result["mb_per_s"] = round(size / 1e6 / result["wall_s"], 1)
        print(result, flush=True)
        results.append(result)
    held = all(r["wall_s"] < LIMIT_SECONDS and r["peak_mib"] < LIMIT_MIB for r in results)
    document = {
        "what": "the gate on a big log: wall time and peak resident memory of one process",
        "command": "python bench/gate_speed.py " + " ".join(sys.argv[1:]),
        "limits": {"wall_s": LIMIT_SECONDS, "peak_mib": LIMIT_MIB},
        "held": held,
        "python": platform.python_version(),
        "processor": next(
            (line.split(":", 1)[1].strip() for line in _cpu_info() if line.startswith("model name")), platform.machine()
        ),
        "results": results,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0 if held else 1


def _cpu_info() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


if __name__ == "__main__":
    raise SystemExit(main())
