"""DevicePlugins, KubeRayOperator and add-ons: charts and values, once a cluster, in the right order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train import DevicePlugins, KubeRayOperator, SettingsError, kubectl_layer
from eks_ray_train.instances import CATALOGUE
from tests.synth.template_reading import CHART, chart_values, depends_on, of_type

Isolated = Callable[[Callable[[Any, Any], Any]], dict[str, Any]]
CHARTS = ("nvidia-device-plugin", "aws-efa-k8s-device-plugin", "kuberay-operator")


@pytest.fixture(scope="module")
def eks(default_app: dict[str, Any]) -> dict[str, Any]:
    template: dict[str, Any] = default_app["eks"]
    return template


def _chart(template: dict[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    (found,) = [(n, r) for n, r in of_type(template, CHART).items() if r["Properties"]["Chart"] == name]
    return found


@pytest.mark.parametrize("chart", CHARTS)
def test_a_release_states_version_namespace_name_and_timeout(eks: dict[str, Any], chart: str) -> None:
    properties = _chart(eks, chart)[1]["Properties"]
    assert {"Version", "Namespace", "Release", "Timeout", "Repository"} <= set(properties)
    assert len(properties["Release"]) <= 53


def test_there_is_one_release_of_each_chart(eks: dict[str, Any]) -> None:
    assert sorted(r["Properties"]["Chart"] for r in of_type(eks, CHART).values()) == sorted(CHARTS)


@pytest.mark.parametrize("chart", CHARTS[:2])
def test_device_plugins_run_on_our_gpu_nodes_only_and_tolerate_their_taint(eks: dict[str, Any], chart: str) -> None:
    values = chart_values(eks, chart)
    assert values["nodeSelector"] == {"eks-ray-train/role": "gpu"}
    assert {"key": "nvidia.com/gpu", "operator": "Equal", "value": "true", "effect": "NoSchedule"} in values[
        "tolerations"
    ]


def test_the_efa_charts_allow_list_holds_the_whole_catalogue(eks: dict[str, Any]) -> None:
    values = chart_values(eks, "aws-efa-k8s-device-plugin")
    assert set(values["supportedInstanceLabels"]["values"]) >= set(CATALOGUE)


def test_the_nvidia_plugin_does_not_hand_out_infiniband_devices(eks: dict[str, Any]) -> None:
    assert chart_values(eks, "nvidia-device-plugin")["mofedEnabled"] is False


def test_bottlerocket_nodes_get_no_second_nvidia_plugin(isolated: Isolated) -> None:
    template = isolated(lambda stack, cluster: DevicePlugins(stack, "P", cluster=cluster, ami_family="bottlerocket"))
    assert [r["Properties"]["Chart"] for r in of_type(template, CHART).values()] == ["aws-efa-k8s-device-plugin"]


def test_the_operator_is_pinned_to_the_system_nodes_and_waits_for_them(eks: dict[str, Any]) -> None:
    name, chart = _chart(eks, "kuberay-operator")
    assert chart_values(eks, "kuberay-operator")["nodeSelector"] == {"eks-ray-train/role": "system"}
    assert chart["Properties"]["Wait"] is True and chart["Properties"]["Version"] == "1.7.0"
    assert set(of_type(eks, "AWS::EKS::Nodegroup")) <= depends_on(eks, name)


def test_device_plugins_wait_for_no_node_so_that_charts_and_nodes_come_up_beside_each_other(
    eks: dict[str, Any],
) -> None:
    for chart in CHARTS[:2]:
        assert not set(of_type(eks, "AWS::EKS::Nodegroup")) & depends_on(eks, _chart(eks, chart)[0])


@pytest.mark.parametrize("kind", [DevicePlugins, KubeRayOperator])
def test_a_second_one_on_the_same_cluster_is_an_error_that_names_the_first(isolated: Isolated, kind: Any) -> None:
    def build(stack: Any, cluster: Any) -> None:
        kind(stack, "First", cluster=cluster)
        kind(stack, "Second", cluster=cluster)

    with pytest.raises(SettingsError, match="already installed on this cluster by Isolated/First; Isolated/Second"):
        isolated(build)


def test_a_release_name_does_not_grow_with_the_path(isolated: Isolated) -> None:
    from constructs import Construct

    def build(stack: Any, cluster: Any) -> None:
        scope = stack
        for _ in range(8):
            scope = Construct(scope, "AVeryLongNameOfAScope")
        KubeRayOperator(scope, "Operator", cluster=cluster)

    (chart,) = of_type(isolated(build), CHART).values()
    assert chart["Properties"]["Release"] == "kuberay-operator"


def test_a_vendored_chart_is_an_asset_without_repository_and_version(isolated: Isolated, tmp_path: Path) -> None:
    archive = tmp_path / "kuberay-operator-1.7.0.tgz"
    archive.write_bytes(b"not opened at synth")
    template = isolated(
        lambda stack, cluster: KubeRayOperator(
            stack, "O", cluster=cluster, chart_repositories={"kuberay": str(archive)}
        )
    )
    (chart,) = of_type(template, CHART).values()
    assert "ChartAssetURL" in chart["Properties"]
    assert not {"Repository", "Version", "Chart"} & set(chart["Properties"])


def test_a_vendored_chart_that_is_missing_is_an_error(isolated: Isolated) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        isolated(
            lambda stack, cluster: KubeRayOperator(
                stack, "O", cluster=cluster, chart_repositories={"kuberay": "/no/such.tgz"}
            )
        )


def test_a_missing_kubectl_layer_names_the_package_to_install(isolated: Isolated) -> None:
    with pytest.raises(SettingsError, match=r"pip install aws-cdk\.lambda-layer-kubectl-v35"):
        isolated(lambda stack, _: kubectl_layer(stack, "Other", minor=35))


def test_no_custom_resource_definition_travels_in_a_manifest(default_app: dict[str, Any]) -> None:
    assert "CustomResourceDefinition" not in json.dumps(default_app)


def test_managed_addons_overwrite_the_self_managed_copies(eks: dict[str, Any]) -> None:
    addons = {r["Properties"]["AddonName"]: r["Properties"] for r in of_type(eks, "AWS::EKS::Addon").values()}
    assert set(addons) == {"vpc-cni", "kube-proxy", "coredns", "eks-pod-identity-agent", "eks-node-monitoring-agent"}
    assert {a["ResolveConflicts"] for a in addons.values()} == {"OVERWRITE"}
    assert json.loads(addons["vpc-cni"]["ConfigurationValues"]) == {"enableNetworkPolicy": "true"}


def test_coredns_waits_for_the_system_nodes(eks: dict[str, Any]) -> None:
    (coredns,) = [n for n, r in of_type(eks, "AWS::EKS::Addon").items() if r["Properties"]["AddonName"] == "coredns"]
    assert set(of_type(eks, "AWS::EKS::Nodegroup")) <= depends_on(eks, coredns)
