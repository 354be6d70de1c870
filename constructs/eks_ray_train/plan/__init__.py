"""A run's memory, traffic, time and cost, before it is paid for: pure functions, no network, no clock.

``predict(Run, Cluster)`` gives the whole answer; ``memory``, ``traffic``, ``throughput`` and ``cost`` hold the formulas.
"""

from __future__ import annotations

from .hardware import cluster_of, make_chip
from .known_models import find_model, known_models
from .model_shapes import ModelShape, shape_from_config
from .predict import Advice, Prediction, advise, cheapest, compare, fastest, predict
from .run import Cluster, Run

__all__ = [
    "Advice",
    "Cluster",
    "ModelShape",
    "Prediction",
    "Run",
    "advise",
    "cheapest",
    "cluster_of",
    "compare",
    "fastest",
    "find_model",
    "known_models",
    "make_chip",
    "predict",
    "shape_from_config",
]
