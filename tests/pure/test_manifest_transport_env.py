"""Which transport variables the workers get, and the four traps around them."""

from __future__ import annotations

import pytest

from eks_ray_train.errors import SettingsError
from eks_ray_train.manifests.ray_cluster import ray_cluster
from eks_ray_train.manifests.transport_env import transport_env
from tests.pure.manifest_support import cluster_spec, env_of, workers_of


def test_workers_get_the_transport_variables_of_the_published_articles() -> None:
    (worker,) = workers_of(ray_cluster(cluster_spec()))
    articles = {"FI_PROVIDER": "efa", "NCCL_NET_PLUGIN": "ofi", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_DEBUG": "INFO"}
    assert articles.items() <= env_of(worker).items()


def test_forked_data_loaders_do_not_run_out_of_huge_pages() -> None:
    assert transport_env()["FI_EFA_USE_HUGE_PAGE"] == "0"


def test_no_variable_overrides_what_the_plugin_tunes_by_platform() -> None:
    tuned = {"NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_PROTO", "NCCL_ALGO", "FI_EFA_USE_DEVICE_RDMA", "NCCL_TUNER_PLUGIN"}
    assert not tuned & transport_env().keys()


def test_host_networking_never_renders_eth0() -> None:
    """env-socket-ifname-hostnetwork."""
    (worker,) = workers_of(ray_cluster(cluster_spec(host_network=True)))
    env = env_of(worker)
    assert worker["spec"]["hostNetwork"] is True
    assert worker["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert env["NCCL_SOCKET_IFNAME"].startswith("^lo,docker")
    assert "GLOO_SOCKET_IFNAME" not in env
    for given in ("eth0", "=eth0", "ens5,eth0"):
        with pytest.raises(SettingsError, match="EKS hosts have no eth0"):
            transport_env(socket_ifname=given, host_network=True)


@pytest.mark.parametrize("given", ["^lo,docker", "^lo", "^lo,docker,pod-id-link0", "^lo,pod", None])
def test_every_exclusion_list_covers_the_pod_identity_interface(given: str | None) -> None:
    """env-pod-identity-link; NCCL matches prefixes."""
    value = transport_env(socket_ifname=given, host_network=True)["NCCL_SOCKET_IFNAME"]
    assert value.startswith("^")
    assert any("pod-id-link0".startswith(name) for name in value[1:].split(","))


@pytest.mark.parametrize(
    ("given", "gloo"),
    [(None, "eth0"), ("eth0", "eth0"), ("=eth1", "eth1"), ("^lo,docker", None), ("eth", None), ("eth0,eth1", None), ("^eth0", None)],
)
def test_gloo_gets_one_real_interface_or_nothing(given: str | None, gloo: str | None) -> None:
    """env-gloo-ifname-pattern: gloo crashes on a pattern."""
    assert transport_env(socket_ifname=given).get("GLOO_SOCKET_IFNAME") == gloo


def test_a_pattern_for_gloo_by_an_extra_variable_is_refused() -> None:
    with pytest.raises(SettingsError, match="GLOO_SOCKET_IFNAME must be one interface"):
        ray_cluster(cluster_spec(extra_env={"GLOO_SOCKET_IFNAME": "^lo,docker"}))


def test_the_transport_can_be_pinned_so_that_a_lost_plugin_stops_nccl() -> None:
    """env-nccl-net-not-pinned: not pinned by default (the gate judges every run), pinned by one variable."""
    (worker,) = workers_of(ray_cluster(cluster_spec()))
    assert "NCCL_NET" not in env_of(worker)
    (pinned,) = workers_of(ray_cluster(cluster_spec(extra_env={"NCCL_NET": "Libfabric"})))
    assert env_of(pinned)["NCCL_NET"] == "Libfabric"


@pytest.mark.parametrize("given", ["", " ", "^", "=", ","])
def test_an_empty_interface_is_an_error_that_says_what_is_allowed(given: str) -> None:
    with pytest.raises(SettingsError, match="leave it out"):
        transport_env(socket_ifname=given)


def test_a_token_passes_through_and_stays_away_from_gloo() -> None:
    env = transport_env(socket_ifname="${Token[TOKEN.7]}")
    assert env["NCCL_SOCKET_IFNAME"] == "${Token[TOKEN.7]}"
    assert "GLOO_SOCKET_IFNAME" not in env
