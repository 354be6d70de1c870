"""EksStack: the cluster with its system nodes and everything that runs once a cluster."""

from __future__ import annotations

from aws_cdk import Annotations, CfnOutput, CrossStackReferences, Environment, ReferenceStrength, Stack
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from eks_ray_train import ClusterAddons, DevicePlugins, KubeRayOperator, Settings, SystemNodeGroup, TrainingCluster
from eks_ray_train.cluster_type import AnyCluster
from eks_ray_train.training_cluster import existing_cluster


class EksStack(Stack):
    """Control plane (own, or an existing one), system nodes, add-ons, device plugins and the KubeRay operator."""

    def __init__(self, scope: Construct, id: str, *, settings: Settings, vpc: ec2.IVpc, env: Environment) -> None:
        super().__init__(
            scope, id, env=env, description="eks-ray-train: cluster, system nodes, operator, device plugins"
        )
        CrossStackReferences.of(self).consume(ReferenceStrength.WEAK)
        own = not settings.existing_cluster
        self.cluster: AnyCluster
        if own:
            self.cluster = TrainingCluster(
                self,
                "Eks",
                vpc=vpc,
                cluster_name=settings.cluster_name,
                kubernetes_version=settings.kubernetes_version,
                admin_principals=settings.admin_principals,
                public_access_cidrs=settings.public_access_cidrs,
                upgrade_policy=settings.upgrade_policy,
                deletion_protection=settings.deletion_protection,
                kubectl_minor=settings.kubectl_layer_minor,
            ).cluster
        else:
            self.cluster = existing_cluster(
                self, "Eks", vpc=vpc, attributes=settings.existing_cluster, kubectl_minor=settings.kubectl_layer_minor
            )
        if own and not settings.public_access_cidrs:
            Annotations.of(self).add_info(
                "The cluster's endpoint is private: submit and kubectl reach it from inside the VPC or through a tunnel. "
                "eks-ray-train init writes your address to public_access_cidrs."
            )
        self.system_nodes = SystemNodeGroup(
            self,
            "SystemNodes",
            cluster=self.cluster,
            subnets=vpc.private_subnets,
            instance_type=settings.system_instance_type,
            node_count=settings.system_node_count,
            node_repair=settings.node_repair,
            container_mirror=settings.container_mirror,
        )
        ClusterAddons(
            self,
            "Addons",
            cluster=self.cluster,
            system_nodes=self.system_nodes.ready,
            basic=own,
            lustre=settings.storage == "fsx",
            cloudwatch=settings.observability == "cloudwatch",
        )
        DevicePlugins(
            self,
            "DevicePlugins",
            cluster=self.cluster,
            ami_family=settings.ami_family,
            nvidia_version=settings.nvidia_device_plugin_version,
            efa_version=settings.efa_device_plugin_version,
            chart_repositories=settings.chart_repositories,
        )
        self.operator = KubeRayOperator(
            self,
            "KubeRay",
            cluster=self.cluster,
            version=settings.kuberay_version,
            depends_on=self.system_nodes.ready,
            chart_repositories=settings.chart_repositories,
        )
        CfnOutput(
            self,
            "KubeconfigCommand",
            description="Gives kubectl access (for the admin_principals)",
            value=f"aws eks update-kubeconfig --region {self.region} --name {self.cluster.cluster_name}",
        )
        CfnOutput(
            self,
            "KubeRayCrdUpgradeCommand",
            description="After a change of kuberay_version: Helm never upgrades CRDs",
            value=self.operator.crd_upgrade_command,
        )
