"""KubeRayOperator: the operator that turns RayCluster objects into pods, once a cluster, on the system nodes."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import Annotations
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct, IDependable

from .cluster_type import AnyCluster, check_cluster
from .helm import HelmRelease, kuberay_operator_release
from .helm_install import claim_release, helm_install
from .node_labels import SYSTEM_NODE_SELECTOR
from .system_sizing import OPERATOR
from .versions import KUBERAY_VERSION


class KubeRayOperator(Construct):
    """KubeRay's operator chart with its CRDs, pinned to the system nodes so that it never takes room on a GPU node.

    Helm installs the CRDs once and never upgrades them: after a change of ``version`` run what
    :attr:`crd_upgrade_command` says. Raises SettingsError where the cluster object already has an operator of ours.

    :param node_selector: where the operator runs; default: our system nodes. Empty: anywhere without a taint.
    :param depends_on: what must exist first, for example the system nodes: the deploy waits until the operator runs.
    :param chart_repositories: key ``kuberay``: another repository's URL or a local ``.tgz``.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: AnyCluster,
        version: str = KUBERAY_VERSION,
        node_selector: Mapping[str, str] | None = None,
        depends_on: IDependable | None = None,
        chart_repositories: Mapping[str, str] | None = None,
    ) -> None:
        check_cluster(cluster)
        super().__init__(scope, id)
        self.version = version
        self.release: HelmRelease = kuberay_operator_release(version, chart_repositories)
        claim_release(cluster, self, self.release)
        requests = {"cpu": f"{OPERATOR.cpu_millis}m", "memory": f"{OPERATOR.memory_mib}Mi"}
        self.chart: eks.HelmChart = helm_install(
            self,
            "Chart",
            cluster=cluster,
            release=self.release,
            values={
                "nodeSelector": dict(SYSTEM_NODE_SELECTOR if node_selector is None else node_selector),
                "resources": {"requests": requests, "limits": requests},
            },
            # A green deploy with the operator Pending would leave every RayCluster unnoticed.
            wait=True,
        )
        if depends_on is not None:
            self.chart.node.add_dependency(depends_on)
        if version.lstrip("v") != KUBERAY_VERSION:
            Annotations.of(self).add_warning_v2(
                "eks-ray-train:kuberay-crds",
                f"KubeRay {version} is not the version whose CRDs this library was tested with ({KUBERAY_VERSION}). On a cluster that "
                f"has KubeRay already, Helm keeps the old CRDs: run this before the deploy: {self.crd_upgrade_command}",
            )

    @property
    def namespace(self) -> str:
        """Where the operator's pods run: network policies let its requests to the dashboard in."""
        return self.release.namespace

    @property
    def ready(self) -> IDependable:
        return self.chart

    @property
    def crd_upgrade_command(self) -> str:
        """Client-side apply fails on CRDs of this size; server-side apply works."""
        tag = f"v{self.version.lstrip('v')}"
        return f'kubectl apply --server-side --force-conflicts -k "github.com/ray-project/kuberay/ray-operator/config/crd?ref={tag}"'
