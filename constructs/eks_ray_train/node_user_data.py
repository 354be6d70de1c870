"""User data of GPU nodes: what EKS merges with its own bootstrap configuration."""

from __future__ import annotations

import base64
import json
import textwrap

from .instances import AmiFamily

_BOUNDARY = "EKS-RAY-TRAIN"
# Where nodeadm's strategy RAID0 mounts the array of NVMe disks; the kubelet's and containerd's folders are bound to it.
# https://github.com/awslabs/amazon-eks-ami (setup-local-disks)
LOCAL_NVME_DIR = "/mnt/k8s-disks/0"


def node_user_data(family: AmiFamily, *, local_nvme: bool) -> str:
    """Base64 text for ``LaunchTemplateData.UserData``.

    AL2023: a MIME document with one nodeadm ``NodeConfig``; ``local_nvme`` puts containerd's and the kubelet's files on
    the node's NVMe disks as RAID0, so that images and the Hugging Face cache do not fight over the root volume.
    Bottlerocket: TOML that does the same through bootstrap commands.
    """
    text = _bottlerocket(local_nvme) if family == "bottlerocket" else _al2023(local_nvme)
    return base64.b64encode(text.encode()).decode()


def _al2023(local_nvme: bool) -> str:
    # https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/ : FastImagePull pulls and unpacks layers in parallel; nodeadm
    # ignores it on small instances.
    spec: dict[str, object] = {
        "featureGates": {"FastImagePull": True},
        "kubelet": {"config": {"serializeImagePulls": False}},
    }
    if local_nvme:
        spec["instance"] = {"localStorage": {"strategy": "RAID0"}}
    # JSON is YAML: no YAML library at synth.
    config = json.dumps({"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}, indent=2)
    return (
        "MIME-Version: 1.0\n"
        f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"\n\n'
        f"--{_BOUNDARY}\n"
        "Content-Type: application/node.eks.aws\n\n"
        f"{config}\n"
        f"--{_BOUNDARY}--\n"
    )


def _bottlerocket(local_nvme: bool) -> str:
    # https://bottlerocket.dev/en/os/latest/#/api/settings/kubernetes/ and .../bootstrap-commands/
    text = "[settings.kubernetes]\nallowed-unsafe-sysctls = []\n"
    if local_nvme:
        text += textwrap.dedent(
            """
            [settings.bootstrap-commands.local-nvme]
            commands = [
              ["apiclient", "ephemeral-storage", "init"],
              ["apiclient", "ephemeral-storage", "bind", "--dirs", "/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"],
            ]
            mode = "always"
            essential = true
            """
        )
    return text
