"""Names that pods, policies, the command line and the job agree on. Changing one changes a pod template or a contract."""

from __future__ import annotations

# A label of our own on head, workers and RayJob submitters: KubeRay's ``ray.io/cluster`` is missing on the submitter and
# has a random suffix under a RayJob, so network policies cannot select by it.
CLUSTER_LABEL = "eks-ray-train/cluster"
MANAGED_BY = {"app.kubernetes.io/managed-by": "eks-ray-train"}

# On the RayCluster object (never on a pod template, where a change restarts all pods).
ACTIVE_RUN_ANNOTATION = "eks-ray-train/active-run"
ALLOW_INTERRUPT_ANNOTATION = "eks-ray-train/allow-interrupt"
OVERWRITE_COMMAND_ANNOTATION = "ray.io/overwrite-container-cmd"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

GPU_RESOURCE = "nvidia.com/gpu"
EFA_RESOURCE = "vpc.amazonaws.com/efa"

# Where things lie in every Ray pod.
JOB_DIR = "/opt/eks-ray-train/job"
CLUSTER_FACTS_DIR = "/opt/eks-ray-train/cluster"
EXPECTED_GPUS_KEY = "expected_gpus"
EXPECTED_GPUS_FILE = f"{CLUSTER_FACTS_DIR}/{EXPECTED_GPUS_KEY}"
FSX_MOUNT = "/fsx"
RAY_TMP = "/tmp/ray"
# Where the hub's libraries keep what they download (HF_HOME).
HF_CACHE_DIR = "/opt/eks-ray-train/hf"
CHECKPOINTED_FILE = f"{RAY_TMP}/eks-ray-train-checkpointed"

# Environment that the job reads (the job and the library never import each other: these names are the contract).
# The number itself is never in a pod template; it is the user's override of the file (submit --env).
ENV_EXPECTED_GPUS_FILE = "EKS_RAY_TRAIN_EXPECTED_GPUS_FILE"
ENV_GPUS_PER_NODE = "EKS_RAY_TRAIN_GPUS_PER_NODE"
ENV_INSTANCE_TYPE = "EKS_RAY_TRAIN_INSTANCE_TYPE"
ENV_STORAGE_PATH = "EKS_RAY_TRAIN_STORAGE_PATH"
ENV_CHECKPOINTED_FILE = "EKS_RAY_TRAIN_CHECKPOINTED_FILE"

# Ray's ports (https://docs.ray.io/en/latest/ray-core/configure.html#ports-configurations).
GCS_PORT = 6379
DASHBOARD_PORT = 8265
CLIENT_PORT = 10001
METRICS_PORT = 8080


def hf_cache_claim(ray_cluster_name: str) -> str:
    """Name of the claim on the nodes' folder for downloaded models and datasets."""
    return f"{ray_cluster_name}-hf-cache"


def cluster_facts_name(ray_cluster_name: str) -> str:
    """Name of the ConfigMap that says how many GPUs the cluster is declared to have."""
    return f"{ray_cluster_name}-facts"
