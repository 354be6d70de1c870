"""What the EKS API knows of GPU nodes that never came: a node group's size and its failed launches."""

from __future__ import annotations

from typing import Any

from eks_ray_train.node_labels import GPU_ROLE, ROLE_LABEL


def launch_problems(session: Any, *, cluster: str, region: str, wanted: int) -> list[str]:
    """Lines that say why GPU nodes are missing; empty where the groups are as wanted, or where this identity may not ask.

    ``wanted``: GPU nodes. An InsufficientInstanceCapacity shows here and nowhere in Kubernetes
    (https://docs.aws.amazon.com/eks/latest/APIReference/API_Issue.html).
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from .eks_access import client_config

    lines: list[str] = []
    sizes: dict[str, int] = {}
    try:
        client = session.client("eks", region_name=region, config=client_config())
        for name in client.list_nodegroups(clusterName=cluster).get("nodegroups", []):
            group = client.describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
            if (group.get("labels") or {}).get(ROLE_LABEL) != GPU_ROLE:
                continue
            sizes[name] = int((group.get("scalingConfig") or {}).get("desiredSize") or 0)
            if group.get("status") not in ("ACTIVE", None):
                lines.append(f"node group {name} is {group['status']}")
            for issue in (group.get("health") or {}).get("issues") or []:
                lines.append(
                    f"node group {name}: {issue.get('code')}: {' '.join(str(issue.get('message', '')).split())[:300]}"
                )
    except (BotoCoreError, ClientError):
        return []  # an additional answer: without permission for it the rest still holds
    if sizes and sum(sizes.values()) < wanted:
        lines.insert(
            0,
            f"the GPU node groups are set to {sum(sizes.values())} of {wanted} nodes (max_hours sets them to 0); "
            f"eks-ray-train scale {wanted} starts them",
        )
    elif not sizes:
        lines.append("there is no GPU node group; deploy the training stack")
    return lines
