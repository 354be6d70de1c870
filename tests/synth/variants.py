"""Variants of the application that scanners look at: together they make every resource that some setting makes."""

from __future__ import annotations

from typing import Any

EXISTING_CLUSTER = {
    "name": "theirs",
    "kubectl_role_arn": "arn:aws:iam::123456789012:role/kubectl",
    "security_group_id": "sg-0123456789abcdef0",
    "vpc_id": "vpc-0123456789abcdef0",
    "availability_zones": ["us-east-2a", "us-east-2b"],
    "private_subnet_ids": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
}

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "hold-lustre": {"gpu_instance_type": "p5.48xlarge", "capacity": "hold", "storage": "fsx", "observability": "cloudwatch"},
    "block-nothing-kept": {
        "gpu_instance_type": "p5en.48xlarge",
        "capacity": "block",
        "capacity_reservation_id": "cr-0123456789abcdef0",
        "keep_storage": False,
        "storage": "fsx",
        "observability": "cloudwatch",
    },
    "open-bottlerocket": {
        "region": "us-east-2",
        "ami_family": "bottlerocket",
        "public_access_cidrs": ("203.0.113.7/32",),
        "admin_principals": ("arn:aws:iam::123456789012:role/Admin",),
        "container_mirror": "123456789012.dkr.ecr.us-east-2.amazonaws.com/public",
        "hf_token_secret_arn": "arn:aws:secretsmanager:us-east-2:123456789012:secret:hf-AbCdEf",
        "data_buckets": ("s3://shared-data/text", "arn:aws:s3:::whole-bucket"),
        "placement_group": True,
        "capacity": "none",
        "queue_name": "gpus",
    },
    "existing-cluster": {"existing_cluster": EXISTING_CLUSTER, "storage": "none", "max_hours": 0},
}
