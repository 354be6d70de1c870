"""CPU time of `python app.py` against that of a CDK app with one empty stack, measured in turn.

Counted: user and system time of the interpreter and of Node.js, which it starts (jsii). Both are run once before, since jsii
unpacks its packages on the first use. Each then runs ``--repeat`` times, alternating, so that a busy moment hits both; the
medians are compared. ``--out FILE`` writes the result as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 2.0
EMPTY_APP = """
import aws_cdk as cdk

app = cdk.App(outdir="cdk.out")
cdk.Stack(app, "Empty")
app.synth()
"""


def cpu_seconds(command: list[str], cwd: Path, outdir: Path) -> float:
    """User plus system time of ``command`` and all its children. Raises CalledProcessError where it fails."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "CDK_", "JSII_", "NODE_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"  # both find the same Node.js
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, cwd=cwd, env={**kept, "PATH": path, "CDK_OUTDIR": str(outdir)}, check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(repeat: int) -> dict[str, object]:
    """Medians of both apps in seconds and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder)
        (temporary / "empty.py").write_text(EMPTY_APP)
        apps = {
            "app": ([sys.executable, "app.py"], ROOT, temporary / "app.out"),
            "empty": ([sys.executable, "empty.py"], temporary, temporary / "empty.out"),
        }
        for command, cwd, out in apps.values():
            cpu_seconds(command, cwd, out)
        runs: dict[str, list[float]] = {name: [] for name in apps}
        for _ in range(repeat):
            for name, (command, cwd, out) in apps.items():
                runs[name].append(round(cpu_seconds(command, cwd, out), 3))
    app, empty = (statistics.median(runs[name]) for name in ("app", "empty"))
    return {
        "command": "python bench/synth_time.py " + " ".join(sys.argv[1:]),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "app_cpu_s": app,
        "empty_stack_cpu_s": empty,
        "ratio": round(app / empty, 3),
        "limit": LIMIT,
        "runs": runs,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.repeat)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    return 0 if float(str(result["ratio"])) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
