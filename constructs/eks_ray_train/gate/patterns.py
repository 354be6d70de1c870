"""The formats that the gate reads, as patterns over bytes; ``lines`` gives them their meaning.

NCCL ``src/debug.cc`` and ``src/transport/*.cc`` (https://github.com/NVIDIA/nccl), aws-ofi-nccl
``src/nccl_ofi_net.cpp`` (https://github.com/aws/aws-ofi-nccl), Ray's worker prefix and deduplication
(https://docs.ray.io/en/latest/ray-observability/user-guides/configure-logging.html).
"""

from __future__ import annotations

import re

from eks_ray_train.gate.evidence import Net

# The second form is a colour whose escape character was lost on the way (copied from a terminal, or a log collector).
ANSI = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\[\d{1,2}(?:;\d{1,3})*m|\x1b")
REPEATED = re.compile(rb"\s*\[repeated(?: (\d+)x)?[^\]]*(?:\].*)?$")

TIME = rb"(?:\d{4}-\d\d-\d\d[T ]|\d\d/\d\d/\d{2,4} )?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
# What only NCCL's own prefix, Ray's or an event looks like: a collector's words before it are then no prose.
_OWN = rb"(?=(?:\[\w{1,64}\]:? ?)?[^\s:()\[\]]+:\d+:\d+ \[-?\d+\]|\((?:[^()\n]{1,120} )?pid=\d|\{\")"
TOKEN = re.compile(
    rb"\s+|\xef\xbb\xbf"  # the second is a byte order mark, at the head of each file that was joined into one
    rb"|\[(?:[\w.-]+@)?\d+,(?P<mpi>\d+)\](?:\[[\w.:-]+\])?<std(?:out|err)>:?"  # Open MPI; 5 with its own name
    rb"|\((?:(?P<actor>[\w.:\- >]{1,120}?(?:\([^()\n]{0,80}(?:\([^()\n]{0,80}\)[^()\n]{0,80})?\))?) )?"
    rb"pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\)"
    # `aws logs tail`: time and stream. A stream's name has a hyphen, slash or digit, which tells it from a word.
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) (?=[^\s:]*[-/\d])[^\s:()\[\]*]{1,512} " + _OWN +
    # stern: pod and container, at the very head. A pod's name has two hyphens, or one and a digit.
    rb"|\A(?=\S*-\S*[-\d]|\S*\d\S*-)[a-z0-9][a-z0-9.-]{0,252} [a-z0-9][a-z0-9-]{0,62} (?:" + TIME + rb" )?" + _OWN +
    rb"|\[?" + TIME + rb"\]?(?: std(?:out|err) [FP](?= ))?"
    rb"|\[(?:(?:rank|default)?\d+|pod/[\w./-]+)\](?::|(?=[ \t]))"
    rb"|\[[A-Za-z_]\w{0,60}\d\]:"  # torchrun --tee: the role and its rank, and no space
    rb"|(?:rank)?\d+: "
    rb"|[IWE]\d{4} "  # glog's letter and date, before its time
    rb"|[A-Z][a-z][a-z] [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w./-]+(?:\[\d+\])?: "  # syslog
    rb"|[\w.-]{0,80}\d[\w.-]{0,80}: (?=\S+:\d+:\d+ |INFO: |WARN: |NCCL |NET/)"
    rb"|[\w.-]{1,80} +\| "
    rb"|(?:INFO|WARN|TRACE): Function: \w+ Line: \d+: "
)  # fmt: skip
MARKER = re.compile(rb"NCCL (?:INFO|WARN) ?")
HEAD = re.compile(
    rb"(?:^|(?<=[\s>)\]]))(?P<host>[^\s:()\[\]]+):(?P<pid>\d+):\d+ \[(?P<dev>-?\d+)\]"
    rb"(?P<code> [^\r\n]{1,200}:\d+)? $"
)
# The same behind the end of another line: what of its first word is the host's name is not known.
HEAD_GLUED = re.compile(rb"(?P<host>[^\s:()\[\]]+):(?P<pid>\d+):\d+ \[-?\d+\](?: [^\r\n]{1,200}:\d+)? $")
HEAD_SHORT = re.compile(rb"(?:^|(?<=[\s>)\]]))(?P<host>[A-Za-z][\w.-]*) \[(?P<dev>\d+)\] $")
# A line that broke off inside NCCL's own prefix: it still says which process there is.
CUT_HEAD = re.compile(
    rb"(?:^|(?<=[\s>)\]:]))(?P<host>[^\s:()\[\]]*[A-Za-z>][^\s:()\[\]]*):(?P<pid>\d+):\d*"
    rb"(?: (?:\[(?:\d+(?:\](?: (?:N(?:C(?:C(?:L(?: (?:I(?:N(?:F)?)?|W(?:A(?:R)?)?)?)?)?)?)?)?)?)?)?)?)?$"
)

# What is left of NCCL's marker where a line lost its head within it.
MARKER_REST = re.compile(rb"(?:(?:CCL|CL|L) )?(?:INFO|NFO|FO|O|WARN|ARN|RN|N) ")
# Statements against EFA that count wherever they stand in a line of NCCL's, whatever was written before, behind or into it.
AGAINST = re.compile(
    rb"(?:(?:\[(?:send|receive)\]|-> \d+(?:\[\w+\])?) via NET/|Using network |Assigned NET plugin )(?P<net>Socket|IB)"
    rb"|Selected [Pp]rovider is (?P<provider>efa;\w+|tcp|sockets|verbs|cxi|udp|psm\d|opx|shm|gni|lnx|ucx)"
)

NODES = rb"(?P<a>\d+)(?:\[(?P<a_dev>\w+)\])? -> (?P<b>\d+)(?:\[(?P<b_dev>\w+)\])?(?: \[(?P<way>send|receive)\])? via "
CHANNEL = re.compile(rb"(?:Channel|Ring) \d+(?:/\d+)? : " + NODES + rb"(?P<via>\S.*?)\s*$")
CHANNEL_TAIL = re.compile(
    rb"(?:-> \d+(?:\[\w+\])?(?: \[(?:send|receive)\])? |\[(?:send|receive)\] |^\s*(?=via NET/\w+/\d))via NET/(?P<name>[A-Za-z][^/\n]*)"
)
RING_LIST = re.compile(rb"Channel \d+(?:/\d+)? :\s{2,}\d")
VIA_NET = re.compile(rb"NET/(?P<name>[^/]+)/\d+(?:\(\d+\))?(?P<more>(?:/[\w()=.,:-]+)*)(?: comm \w+ nRanks \d+)?$")
SELECTED = re.compile(
    rb"NET/OFI Selected [Pp]rovider is (?P<provider>[\w;.+-]+)(?:,? fabric is [^\s(]+)?(?: \(found (?P<nics>\d+) nics?\))?$"
)
SELECTED_ANY = re.compile(rb"NET/OFI Selected [Pp]rovider is (?P<provider>[\w;.+-]*)(?P<more>.*)$")
SELECTED_CUT = re.compile(rb",? ?(?:f[abric]*(?: i?s?)?)?|,? fabric is [^\s(]*(?: (?:\([a-z0-9 ]*)?)?| \([a-z0-9 ]*")
NETWORK = re.compile(
    rb"(?:Using network (?P<using>.*)|Assigned NET plugin (?P<assigned>.*?)(?P<to> to comm)?|Initialized NET plugin (?P<init>.*))$"
)
SELF_TEST = re.compile(rb"NET/OFI Process rank (?P<rank>\d+) started\. NCCLNet device used on \S+ is (?P<name>.+?)\.?$")
COMM = re.compile(rb"comm 0x[0-9a-f]+ rank (?P<rank>\d+) n[Rr]anks (?P<size>\d+)(?: nNodes (?P<nodes>\d+))?")
PLUGIN_FAILED = re.compile(
    rb"NET/OFI.{0,300}(?:initialization failed|Initializing plugin failed|OFI NCCL failure|Only EFA provi|No eligible provider"
    rb"|Couldn't find any optimal provider)|Failed to initialize (?:any )?NET plugin"
)
REFUSED = b"Failed to initialize any NET plugin"  # plugin/net.cc of NCCL: initialization ends here
ERROR = re.compile(
    rb"NCCL WARN|completed with error|[Cc]ouldn't open|Unresponsive receiver|will abort|rdma-read|GDR disabled"
    # NCCL looks for plugins of other kinds too and does well without them.
    rb"|(?<!ENV/Plugin: )(?<!TUNER/Plugin: )(?<!PROFILER/Plugin: )[Cc]ould not find|[Nn]o plugin found|Plugin load|No device found"
)
NO_PLUGIN = re.compile(
    rb"NET/Plugin.{0,300}(?:[Nn]o plugin found|using internal implementation|Plugin load .*returned|[Cc]ould not find)"
    rb"|NET/Socket ?: Using|NET/IB ?: No device found"
)
IB_HINT = re.compile(rb"NET/IB ?: Using ")
# How NCCL's and the plugin's messages begin; a bare line that begins otherwise is somebody else's.
BARE = re.compile(
    rb"NET/|Using network |Assigned NET plugin |Initialized NET plugin |Channel \d+(?:/\d*)?(?: :|$)|Bootstrap : |comm 0x"
    rb"|Failed to initialize (?:any )?NET plugin"
)
PHRASES = (
    b"NET/OFI Selected provider is ",
    b"NET/OFI Selected Provider is ",
    b"Using network ",
    b"Assigned NET plugin ",
    b"Initialized NET plugin ",
)
CHANNEL_START = b"Channel "
PROVIDERS = (
    b"efa", b"tcp", b"tcp;ofi_rxm", b"sockets", b"sockets;ofi_rxd", b"verbs", b"verbs;ofi_rxm", b"verbs;ofi_rxd", b"cxi", b"udp",
    b"udp;ofi_rxd", b"psm2", b"psm3", b"opx", b"shm", b"gni", b"lnx", b"ucx", b"efa-direct",
)  # fmt: skip
NAMES = {b"AWS Libfabric": Net.OFI, b"Libfabric": Net.OFI, b"Socket": Net.SOCKET, b"IB": Net.IB}
IB_LIKE = re.compile(rb"(?:IB|ib|UCX|ucx|NCCL RDMA|RDMA|SHARP|Mellanox|NVIDIA)\b|IBext", re.ASCII)
LOCAL = re.compile(rb"P2P|SHM|direct shared memory|NVLS|CUMEM|direct pointer")
COLLNET = re.compile(rb"COLLNET/\w")  # in-network reduction: crosses the network, and not over EFA
