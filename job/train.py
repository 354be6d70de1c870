"""Train a causal language model with FSDP2 on a Ray cluster: ``python train.py --model_id … --steps …`` (see ``--help``)."""

from __future__ import annotations

import sys

from fsdp_job.driver import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
