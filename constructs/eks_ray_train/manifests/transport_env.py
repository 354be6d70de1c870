"""Environment variables that decide how NCCL and gloo talk between nodes.

Never ``LD_LIBRARY_PATH``: setting it replaces the image's own value, NCCL no longer finds the EFA plugin and silently
uses TCP. No tuning variables either: aws-ofi-nccl sets NCCL's buffers and protocol for each platform by itself.
``NCCL_NET`` stays unset, so that a comparison over TCP can set it; the gate refuses a run that fell back to sockets.
Sources: AWS's Ray Train image documentation; aws-ofi-nccl v1.21.1; NCCL 2.29 environment variables
(https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
"""

from __future__ import annotations

import re

from eks_ray_train.errors import SettingsError

from .tokens import is_token

POD_INTERFACE = "eth0"
# Interfaces of an EKS host that no other node can reach: loopback, container bridges, the CNI's pod ends (eni…), the Pod
# Identity agent's link-local interface (169.254.170.x), kube-proxy's and the DNS cache's dummies. NCCL matches prefixes.
UNREACHABLE_INTERFACES = ("lo", "docker", "veth", "eni", "pod-id-link0", "nodelocaldns", "kube-ipvs", "dummy")
_ONE_INTERFACE = re.compile(r"=?([a-z][a-z0-9-]*[0-9])")


def nccl_socket_ifname(socket_ifname: str | None, *, host_network: bool) -> str:
    """Value of ``NCCL_SOCKET_IFNAME`` (bootstrap and TCP traffic of NCCL).

    None means: ``eth0``, the one interface of a pod, or with host networking everything except what cannot reach another
    node (hosts have ens5, enp…, never eth0). An exclusion list given by the user gets ``pod-id-link0`` added where it is
    missing, since ranks would otherwise offer each other a link-local address. Raises SettingsError for eth0 on hosts.
    """
    if socket_ifname is None:
        return "^" + ",".join(UNREACHABLE_INTERFACES) if host_network else POD_INTERFACE
    if is_token(socket_ifname):
        return socket_ifname
    value = socket_ifname.strip()
    if not value.strip("^=,"):
        raise SettingsError(
            f"socket_ifname must name an interface (eth0) or an exclusion list (^lo,docker), got {socket_ifname!r}; "
            f"leave it out to get the right one"
        )
    if value.startswith("^"):
        names = [name.strip() for name in value[1:].split(",") if name.strip()]
        covered = any("pod-id-link0".startswith(name) for name in names)
        return "^" + ",".join(names if covered else [*names, "pod-id-link0"])
    if host_network and any(name.strip("= ").startswith("eth") for name in value.split(",")):
        raise SettingsError(
            f"socket_ifname {socket_ifname!r} with host_network: EKS hosts have no eth0 (theirs are ens5, enp…), so NCCL would "
            f"find no interface; leave socket_ifname out (everything but unreachable interfaces is then used)"
        )
    return value


def transport_env(*, socket_ifname: str | None = None, host_network: bool = False) -> dict[str, str]:
    """The transport variables of a worker pod, in a stable order."""
    nccl_ifname = nccl_socket_ifname(socket_ifname, host_network=host_network)
    env = {
        "FI_PROVIDER": "efa",
        "NCCL_NET_PLUGIN": "ofi",
        "NCCL_SOCKET_IFNAME": nccl_ifname,
        "NCCL_DEBUG": "INFO",  # the gate reads these lines
        # Processes that fork after libfabric started (data loaders) otherwise fail with "Cannot allocate memory".
        "FI_EFA_USE_HUGE_PAGE": "0",
    }
    # Gloo needs the exact name of one interface and crashes on an exclusion list or a prefix.
    exact = None if is_token(nccl_ifname) else _ONE_INTERFACE.fullmatch(nccl_ifname)
    if exact:
        env["GLOO_SOCKET_IFNAME"] = exact.group(1)
    return env
