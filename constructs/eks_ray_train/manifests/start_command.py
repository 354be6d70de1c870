"""What a Ray container runs: the image's own entrypoint around KubeRay's start command, and the drain on the way out.

KubeRay replaces a container's command and arguments, so that the image's entrypoint, which makes CUDA forward
compatibility work, would never run. With the annotation ``ray.io/overwrite-container-cmd`` it keeps ours and hands its
own over in ``KUBERAY_GEN_RAY_START_CMD``; that one lacks the ``ulimit -n`` of the default command (KubeRay 1.7.0).
"""

from __future__ import annotations

ENTRYPOINT = "/usr/local/bin/entrypoint.sh"
OPEN_FILES = 65_536

# Seconds between the end of the hook's wait and the pod's kill, in which Ray itself shuts down.
SHUTDOWN_MARGIN_SECONDS = 15
DRAIN_TIMEOUT_SECONDS = 30


def start_command(entrypoint: str = ENTRYPOINT) -> tuple[list[str], list[str]]:
    """Command and arguments of a Ray container.

    The last process is ``ray start`` itself: ``bash -c`` of a single command replaces itself by it, so that the kubelet's
    SIGTERM reaches Ray and not a shell that ignores it as process 1. Where the container's hard limit of open files is lower
    than ours, the hard limit is taken (raising it needs a capability, and the pods have none).
    """
    limit = f"ulimit -n {OPEN_FILES} 2>/dev/null || ulimit -n hard"
    return [entrypoint], ["bash", "-c", f'{limit}; exec bash -c "$KUBERAY_GEN_RAY_START_CMD"']


def drain_hook(*, grace_period_seconds: int, proc: str = "/proc") -> list[str]:
    """preStop command of a worker: tells Ray that this node goes away, then waits for the job's checkpoint.

    Ray Train shows the drain to the training function (``ray.train.get_preemption_info()``); neither KubeRay nor a managed
    node group sends one. The wait ends when the job has touched the file named by ``EKS_RAY_TRAIN_CHECKPOINTED_FILE`` (after
    a checkpoint that followed the drain), when no training worker runs on this node, or shortly before the grace period ends.
    The node's id is read from the arguments of Ray's processes (``proc`` is for tests): without it the command would start a
    driver of its own to ask, and that driver may find another node than this one.
    Ends with 1, shown as a FailedPreStopHook event, where the drain was not accepted; termination goes on either way.
    """
    wait = max(grace_period_seconds - SHUTDOWN_MARGIN_SECONDS, 1)
    # [R] keeps grep from finding this very script among the processes.
    script = f"""\
marker="${{EKS_RAY_TRAIN_CHECKPOINTED_FILE:-}}"
if [ -n "$marker" ]; then rm -f "$marker"; fi
if ! grep -qs '[R]ayTrainWorker' {proc}/[0-9]*/cmdline; then exit 0; fi
node=$(cat {proc}/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | sed -n 's/^--node[-_]id=//p' | head -n 1)
if [ -z "$node" ] || ! timeout {DRAIN_TIMEOUT_SECONDS} ray drain-node --address "$RAY_ADDRESS" --node-id "$node" \\
  --reason DRAIN_NODE_REASON_PREEMPTION --reason-message 'the pod is being terminated' --deadline-remaining-seconds {wait}
then
  echo "eks-ray-train: Ray did not accept the drain of node '$node'; no checkpoint before this pod ends" >&2
  exit 1
fi
while [ "$SECONDS" -lt {wait} ]; do
  if [ -n "$marker" ] && [ -e "$marker" ]; then exit 0; fi
  if ! grep -qs '[R]ayTrainWorker' {proc}/[0-9]*/cmdline; then exit 0; fi
  sleep 1
done
"""
    return ["bash", "-c", script]
