"""``eks-ray-train doctor``: what stands between the deployed cluster and a run, in the order in which one rests on the other."""

from __future__ import annotations

import argparse
import sys

DESCRIPTION = """\
Look at everything that a run needs, from credentials to the image in the pods; one line each: ok, wrong (with what to do),
or unknown (with the reason). Reads only; inside a worker it writes one small file to the storage path and removes it.
Exit code 0 where nothing is wrong, 6 otherwise.
"""
EXAMPLES = """\
examples:
  eks-ray-train doctor
  eks-ray-train doctor --json | jq '.checks[] | select(.state != "ok")'
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command takes no flags of its own."""
    subparsers.add_parser(
        "doctor", help="what stands between this cluster and a run", description=DESCRIPTION, epilog=EXAMPLES
    )


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 6 where anything is wrong. Raises UsageError for wrong settings."""
    import contextlib
    import json
    from pathlib import Path
    from typing import Any

    from eks_ray_train.errors import ExitCode
    from eks_ray_train.settings import load_settings

    from .doctor_checks import ClusterFacts, checks
    from .doctor_report import Result, State, line, run_checks, summary
    from .eks_access import make_session
    from .kube import open_described
    from .kube_objects import KubeObjects

    settings = load_settings(Path("cdk.json"))
    out = sys.stderr if args.json else sys.stdout

    def tell(result: Result) -> None:
        print(line(result), file=out, flush=True)

    with contextlib.ExitStack() as stack:

        def open_objects(eks: Any, session: Any) -> KubeObjects:
            return KubeObjects(stack.enter_context(open_described(settings, eks, session)))

        facts = ClusterFacts(settings, lambda: make_session(settings.region), open_objects)
        results = run_checks(checks(), facts, tell)
    print(summary(results), file=out)
    bad = any(result.finding.state is State.WRONG for result in results)
    code = ExitCode.CLUSTER_NOT_READY if bad else ExitCode.OK
    if args.json:
        print(json.dumps({"ok": not bad, "exit_code": int(code), "checks": [result.to_json() for result in results]}))
    return int(code)
