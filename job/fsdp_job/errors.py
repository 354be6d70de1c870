"""Errors of the job: each carries the exit code of ``train.py`` and says whether another attempt could help.

The library's errors are not imported: the job runs alone in the pods, and the command line between them is the contract.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_UNEXPECTED = 1
EXIT_USAGE = 2
EXIT_FAILED = 4
EXIT_STOPPED = 143  # 128 + SIGTERM


class JobError(Exception):
    """Root of what the job raises itself.

    ``retryable`` False: the same input would fail again, so no restart. ``alike`` True: every rank meets it at the same
    place, so the attempt can end in order instead of by an exception.
    """

    exit_code = EXIT_FAILED
    retryable = False
    alike = False


class JobUsageError(JobError, ValueError):
    """Wrong flag, file or combination of flags (exit code 2)."""

    exit_code = EXIT_USAGE
    alike = True


class ModelError(JobUsageError):
    """A model that this job cannot train as asked: no blocks found, unknown head, missing weights."""


class CheckpointError(JobError):
    """A checkpoint that was asked for is missing, incomplete or damaged, or cannot be written."""


class NonFiniteLossError(JobError):
    """The loss or the gradient norm became NaN or infinite; carries the step and the last good checkpoint in its text."""

    alike = True


class ClusterWaitError(JobError):
    """The GPUs or CPUs that the job needs did not join in time."""
