"""The job's error root. Each error carries the exit code that `train.py` ends with (docs: exit codes of the job)."""

from __future__ import annotations


class JobError(Exception):
    """Something outside the user's command went wrong (storage, a damaged file, a lost peer). One clear message."""

    exit_code = 1


class JobUsageError(JobError):
    """The user's arguments or data cannot work. The message says what, got, allowed and remedy; no traceback."""

    exit_code = 2
