"""The app's three stacks: composition only. Every resource is made by a construct of ``eks_ray_train``."""

from .eks import EksStack
from .network import NetworkStack
from .training import TrainingStack

__all__ = ["EksStack", "NetworkStack", "TrainingStack"]
