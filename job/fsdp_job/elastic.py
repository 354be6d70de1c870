"""Ray Train's elastic trainer, with numbers of ranks that divide the global batch.

Ray takes as many ranks as it can place. Of four nodes of eight GPUs three are left after a loss, and 24 ranks share no power of two: the
run would end there, on a number that nobody chose. Where Ray decides is internal to it (ray/train/v2/_internal, the same in 2.58 as in
the image): a test holds this module against it.
"""

from __future__ import annotations

from typing import Any

from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy
from ray.train.v2.torch.torch_trainer import TorchTrainer

from fsdp_job.room import fitting


class DividingPolicy(ElasticScalingPolicy):
    """Rounds the number of ranks down to one that shares ``global_batch`` sequences equally."""

    def __init__(self, scaling_config: Any, global_batch: int) -> None:
        super().__init__(scaling_config)
        self._global_batch = global_batch

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        return fitting(int(super()._count_possible_workers(reserved_resources)), self._global_batch)


def elastic_trainer(global_batch: int) -> type[TorchTrainer]:
    """A kind of TorchTrainer whose elastic groups have such sizes."""

    class ElasticTrainer(TorchTrainer):
        def _initialize_and_run_controller(self, **kwargs: Any) -> Any:
            policy = DividingPolicy(self.scaling_config, global_batch)
            return super()._initialize_and_run_controller(**{**kwargs, "scaling_policy": policy})

    return ElasticTrainer
