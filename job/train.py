"""Train a causal language model with FSDP2 on a Ray cluster: ``python train.py --model_id … --steps …`` (see ``--help``)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from fsdp_job.driver import main
from fsdp_job.ending import Ending, telling
from fsdp_job.errors import JobUsageError
from fsdp_job.flags import parse_args

PACKAGES = ("ray", "torch", "transformers")


def start(argv: Sequence[str]) -> int:
    """Exit code of the run, or 2 where this Python lacks what every run needs (``--help`` needs none of it)."""
    lacking = [name for name in PACKAGES if find_spec(name) is None]
    if not lacking or {"-h", "--help"} & set(argv):
        return main(argv)
    ending = Ending()
    with telling(ending, "train.py"):
        parse_args(argv)  # a mistake in the flags is told first, as everywhere
        raise JobUsageError(
            f"{sys.executable} lacks {', '.join(lacking)}; in a checkout run make venv && source .venv/bin/activate, elsewhere "
            "pip install -r requirements.txt, or run it on the cluster: eks-ray-train submit"
        )
    return ending.code


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
