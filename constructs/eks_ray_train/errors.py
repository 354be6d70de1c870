"""One error root for the whole library; each error carries the process exit code of the command line.

Constructs, builders and commands raise these and never catch them: only ``cli/__main__.py`` turns an error into
text on stderr and an exit code. A message says what is wrong, what was given, what is allowed and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every ``eks-ray-train`` command (public contract)."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    GATE_FAILED = 3
    JOB_FAILED = 4
    NO_CAPACITY = 5
    CLUSTER_NOT_READY = 6
    LEFT_BEHIND = 7


class EksRayTrainError(Exception):
    """Root of all errors a user can cause or must act on. ``exit_code`` is what the command line ends with."""

    exit_code: ExitCode = ExitCode.UNEXPECTED


class UsageError(EksRayTrainError, ValueError):
    """Wrong flag, argument, file or setting (exit code 2)."""

    exit_code = ExitCode.USAGE


class SettingsError(UsageError):
    """One or several wrong settings, all reported at once (exit code 2).

    Also a ``ValueError``, so that another CDK app that passes a wrong construct property meets an ordinary Python error.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems: list[str] = [problems] if isinstance(problems, str) else list(problems)
        if len(self.problems) == 1:
            text = self.problems[0]
        else:
            text = f"{len(self.problems)} problems:\n" + "\n".join(f"  - {p}" for p in self.problems)
        super().__init__(text)


class JobFailedError(EksRayTrainError):
    """The job failed, was stopped, or vanished (exit code 4)."""

    exit_code = ExitCode.JOB_FAILED


class NoCapacityError(EksRayTrainError):
    """No place has the wanted GPUs, or the quota is too small (exit code 5)."""

    exit_code = ExitCode.NO_CAPACITY


class ClusterNotReadyError(EksRayTrainError):
    """The cluster, its endpoint, its dashboard or its nodes cannot be reached or are not ready (exit code 6)."""

    exit_code = ExitCode.CLUSTER_NOT_READY
