"""``eks-ray-train dashboard``: Ray's dashboard of the deployed cluster on this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import sys

from .connect import add_address
from .numbers import whole

EXAMPLES = """\
examples:
  eks-ray-train dashboard                  prints a URL on 127.0.0.1, forwards until Ctrl-C
  eks-ray-train dashboard --port 8265
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's flags."""
    parser = subparsers.add_parser("dashboard", help="forward Ray's dashboard to this machine", epilog=EXAMPLES)
    parser.add_argument("--port", type=whole(0, 65535, remedy="0 takes a free port"), default=0, metavar="N", help="local port (default: a free one)")
    add_address(parser)


def run(args: argparse.Namespace) -> int:
    """With ``--address``: check and print it. Else forward through the EKS API until Ctrl-C (exit code 0)."""
    import json

    from .connect import connect

    with connect(args.address, local_port=args.port) as target:
        url = target.client.address
        if args.json:
            print(json.dumps({"url": url, "cluster": target.name, "ray_version": target.ray_version}), flush=True)
        else:
            print(url, flush=True)
        if args.address is None:
            print(
                f"{target.name}, Ray {target.ray_version}; the page asks for Ray's token: kubectl get secret shows it, "
                "and `submit`, `status` and `logs` send it by themselves. Ctrl-C ends the forwarding.",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            wait_for_interrupt()
    return 0


def wait_for_interrupt() -> None:
    """Return when Ctrl-C is pressed."""
    import threading

    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print("", file=sys.stderr)
