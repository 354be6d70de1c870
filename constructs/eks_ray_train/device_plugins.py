"""DevicePlugins: NVIDIA's and EFA's device plugins, on GPU nodes only, whatever taints these carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import jsii
from aws_cdk import IStableAnyProducer, Lazy
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct, IConstruct, IDependable

from .cluster_type import AnyCluster, check_cluster
from .helm import efa_device_plugin_release, nvidia_device_plugin_release
from .helm_install import claim_release, helm_install
from .instances import CATALOGUE, AmiFamily
from .node_labels import GPU_NODE_SELECTOR, GPU_TAINT, Taint, tolerations
from .versions import EFA_DEVICE_PLUGIN_VERSION, NVIDIA_DEVICE_PLUGIN_VERSION

_CRITICAL = {"key": "CriticalAddonsOnly", "operator": "Exists"}


@jsii.implements(IStableAnyProducer)
class _Tolerations:
    """Resolved at synth, when every node group has added its taints."""

    def __init__(self) -> None:
        self.taints: dict[Taint, None] = {GPU_TAINT: None}

    def produce(self) -> Any:
        return [_CRITICAL, *tolerations(self.taints)]


class DevicePlugins(Construct):
    """The plugins that make ``nvidia.com/gpu`` and ``vpc.amazonaws.com/efa`` allocatable. One a cluster.

    Both run where our GPU label is, tolerate the taints of every :class:`EfaGpuNodeGroup` on the same cluster object, and the
    EFA chart's allow-list of instance types holds the whole catalogue: its own list lags behind new types.

    :param nvidia_plugin: false where the nodes bring NVIDIA's plugin themselves; default: false for ``ami_family``
        ``bottlerocket``, which does, else true.
    :param taints: further taints of node groups that this library did not make.
    :param instance_types: further EFA types for the allow-list.
    :param chart_repositories: keys ``nvidia`` and ``efa``: another repository's URL or a local ``.tgz``.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: AnyCluster,
        ami_family: AmiFamily = "al2023",
        nvidia_plugin: bool | None = None,
        taints: Sequence[Taint] = (),
        instance_types: Sequence[str] = (),
        nvidia_version: str = NVIDIA_DEVICE_PLUGIN_VERSION,
        efa_version: str = EFA_DEVICE_PLUGIN_VERSION,
        chart_repositories: Mapping[str, str] | None = None,
    ) -> None:
        check_cluster(cluster)
        super().__init__(scope, id)
        self._tolerations = _Tolerations()
        self.tolerate(taints)
        self.nvidia: eks.HelmChart | None = None
        if nvidia_plugin if nvidia_plugin is not None else ami_family != "bottlerocket":
            release = nvidia_device_plugin_release(nvidia_version, chart_repositories)
            claim_release(cluster, self, release)
            self.nvidia = helm_install(
                self,
                "Nvidia",
                cluster=cluster,
                release=release,
                values={
                    "nodeSelector": GPU_NODE_SELECTOR,
                    "tolerations": Lazy.any(self._tolerations),
                    # Else it would hand every /dev/infiniband device to GPU pods and fight with the EFA plugin.
                    # https://github.com/NVIDIA/k8s-device-plugin/issues/1837
                    "mofedEnabled": False,
                },
            )
        release = efa_device_plugin_release(efa_version, chart_repositories)
        claim_release(cluster, self, release)
        self.efa: eks.HelmChart = helm_install(
            self,
            "Efa",
            cluster=cluster,
            release=release,
            values={
                "nodeSelector": GPU_NODE_SELECTOR,
                "tolerations": Lazy.any(self._tolerations),
                "supportedInstanceLabels": {"values": sorted({*CATALOGUE, *instance_types})},
            },
        )
        _remember(cluster, self)

    def tolerate(self, taints: Iterable[Taint]) -> None:
        """Adds tolerations for ``taints`` to both charts, any time before synth."""
        self._tolerations.taints.update(dict.fromkeys(taints))

    @property
    def ready(self) -> list[IDependable]:
        return [chart for chart in (self.nvidia, self.efa) if chart is not None]


# By the address of the cluster in its tree, for as long as that tree's root lives.
_of_cluster: WeakKeyDictionary[IConstruct, dict[str, DevicePlugins]] = WeakKeyDictionary()


def _remember(cluster: AnyCluster, plugins: DevicePlugins) -> None:
    _of_cluster.setdefault(plugins.node.root, {})[cluster.node.addr] = plugins


def device_plugins_of(cluster: AnyCluster) -> DevicePlugins | None:
    """The plugins that this library installed on ``cluster`` in the same app, if any."""
    return _of_cluster.get(cluster.node.root, {}).get(cluster.node.addr)
