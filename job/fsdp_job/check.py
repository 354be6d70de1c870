"""What can be wrong with a command line, told without a cluster: ``python -m fsdp_job.check ARGS`` ends with 0 or 2.

With ``--elsewhere`` before ARGS the files that they name lie on other machines and are not looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fsdp_job.architecture import read_architecture
from fsdp_job.config import JobConfig
from fsdp_job.errors import EXIT_OK, EXIT_USAGE, JobUsageError
from fsdp_job.flags import parse_args


def check_files(cfg: JobConfig) -> None:
    """Raises JobUsageError where the model's configuration or a data set of this machine cannot be read."""
    if cfg.model_config:
        read_architecture(cfg.model_config)
    if cfg.dataset != "random" and "://" not in cfg.dataset:
        from fsdp_job.data_sources import find_sources

        find_sources(cfg.dataset)  # raises where nothing is there or nothing of it can be read


def main(argv: Sequence[str]) -> int:
    """Exit code for ``argv``; a mistake is told on stderr."""
    try:
        if argv[:1] == ["--elsewhere"]:
            parse_args(argv[1:])
        else:
            check_files(parse_args(argv))
    except JobUsageError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
