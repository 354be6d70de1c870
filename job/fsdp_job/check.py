"""What can be wrong with a command line, told without a cluster: ``python -m fsdp_job.check ARGS`` ends with 0 or 2.

With ``--elsewhere`` before ARGS the job will run on other machines, with this folder as its working folder: of the files
that ARGS name, only those inside it are looked for. With ``--nccl-bench`` ARGS are those of ``nccl_bench.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePath

from fsdp_job.architecture import check_architecture, local_architecture, read_architecture
from fsdp_job.config import JobConfig
from fsdp_job.errors import EXIT_OK, EXIT_USAGE, JobUsageError
from fsdp_job.flags import parse_args


def check_files(cfg: JobConfig, *, elsewhere: bool = False) -> None:
    """Raises JobUsageError where the model's configuration or a data set cannot be read, or the model is of no kind to train.

    ``elsewhere``: look only for what travels with the job's folder, which is the working folder.
    """
    if cfg.model_config and not (elsewhere and _is_outside(cfg.model_config)):
        check_architecture(f"--model-config {cfg.model_config}", read_architecture(cfg.model_config), elsewhere=elsewhere)
    model = cfg.effective_model_id
    if model and not cfg.model_config and not (elsewhere and _is_outside(model)):
        values = local_architecture(model)
        if values is not None:
            check_architecture(f"--model-id {model}", values, elsewhere=elsewhere)
    if cfg.dataset != "random" and "://" not in cfg.dataset and not (elsewhere and _is_outside(cfg.dataset)):
        from fsdp_job.data_sources import find_sources

        find_sources(cfg.dataset)  # raises where nothing is there or nothing of it can be read


def _is_outside(path: str) -> bool:
    return path.startswith("~") or PurePath(path).is_absolute() or ".." in PurePath(path).parts


def main(argv: Sequence[str]) -> int:
    """Exit code for ``argv``; a mistake is told on stderr."""
    try:
        if argv[:1] == ["--nccl-bench"]:
            from fsdp_job.nccl_bench_flags import parse

            parse(argv[1:])
        elif argv[:1] == ["--elsewhere"]:
            check_files(parse_args(argv[1:]), elsewhere=True)
        else:
            check_files(parse_args(argv))
    except JobUsageError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
