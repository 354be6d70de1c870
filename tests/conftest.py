"""Fixtures every room of the test suite shares."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
# Tools of the virtual environment (node, cdk, ruff …) for the subprocesses that tests start, also where it is not activated.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"

# A shell starts its background jobs with SIGINT ignored, and every process started from them inherits that; tests that send
# Ctrl-C to a command would then wait for ever (POSIX: https://pubs.opengroup.org/onlinepubs/9699919799/utilities/V3_chap02.html#tag_18_11).
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def repo() -> Path:
    """Root of the checkout."""
    return REPO


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of facts and cases beside the checkout; tests that need it skip where it is absent."""
    path = REPO.parent / "shared"
    if not path.is_dir():
        pytest.skip("needs ../shared (facts and cases), which is not beside this checkout")
    return path
