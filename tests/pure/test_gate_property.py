"""A generator of runs whose per-rank truth is written down first: however their logs are mangled, nothing false passes."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eks_ray_train.gate import LogParser, Verdict, judge

EFA, SOCKET, TCP, IB, LOCAL = "efa", "socket", "ofi-other", "ib", "none"
WITHIN = "within"  # chose EFA, and uses it within its node only, as NCCL does without P2P and shared memory
STYLES = ("old", "mid", "new", "direct")


@dataclass(frozen=True)
class Line:
    """One line and the rank that printed it."""

    rank: int
    text: str


def host(node: int) -> str:
    return f"gpu-worker-{node}"


def selection(kind: str, style: str, gdr: bool) -> list[str]:
    """What a rank says about its network, per NCCL's and the plugin's versions."""
    name = "AWS Libfabric" if style in ("old", "mid") else "Libfabric"
    provider = {EFA: "efa", LOCAL: "efa", WITHIN: "efa", TCP: "tcp;ofi_rxm" if style == "old" else "tcp"}.get(kind)
    if provider:
        tail = {
            "old": f"Selected Provider is {provider}",
            "mid": f"Selected Provider is {provider} (found 4 nics)",
            "new": f"Selected provider is {provider}, fabric is {provider} (found 1 nics)",
            "direct": f"Selected provider is {provider}, fabric is {provider}-direct",
        }[style]
        lines = [f"NET/OFI {tail}", f"Using network {name}"]
        return lines + (["Assigned NET plugin Libfabric to comm"] if style in ("new", "direct") else [])
    if kind == SOCKET:
        return [
            "NET/Plugin: Could not find: libnccl-net-ofi.so",
            "NET/Socket : Using [0]eth0:10.0.0.7<0>",
            "Using network Socket",
        ]
    return ["NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.7<0>", "Using network IB"]


def channels(kind: str, style: str, rank: int, per_node: int, world: int, gdr: bool) -> list[str]:
    name = {SOCKET: "Socket", IB: "IB"}.get(kind, "AWS Libfabric" if style in ("old", "mid") else "Libfabric")
    gpu, back = rank % per_node, (rank - per_node) % world
    near = rank - gpu + (gpu + 1) % per_node
    sub = "" if style == "old" else "/0"
    suffix = "/GDRDMA" if gdr and kind == EFA else ""
    lines = []
    for channel in range(2):
        if per_node > 1 and kind == WITHIN:
            lines.append(
                f"Channel {channel:02d}{sub} : {rank}[{gpu}] -> {near}[{near % per_node}] [send] via NET/{name}/0/Shared"
            )
        elif per_node > 1:
            lines.append(f"Channel {channel:02d}{sub} : {rank}[{gpu}] -> {near}[{near % per_node}] via P2P/CUMEM/read")
        if kind not in (LOCAL, WITHIN):
            lines.append(
                f"Channel {channel:02d}{sub} : {back}[{gpu}] -> {rank}[{gpu}] [receive] via NET/{name}/{channel}{suffix}"
            )
    if kind in (LOCAL, WITHIN) and per_node == 1:
        lines.append(f"Channel 00{sub} : {rank}[0] -> {rank}[0] via SHM/direct/direct")
    return lines


@dataclass(frozen=True)
class Run:
    """The truth: each rank's transport."""

    nodes: int
    per_node: int
    kinds: tuple[str, ...]
    style: str
    gdr: bool

    def lines(self) -> list[Line]:
        found: list[Line] = []
        for rank, kind in enumerate(self.kinds):
            gpu, pid = rank % self.per_node, 1000 + rank
            head = f"{host(rank // self.per_node)}:{pid}:{pid + 9} [{gpu}] NCCL INFO "
            texts = ["cudaDriverVersion 12080", *selection(kind, self.style, self.gdr)]
            texts.append(
                f"comm 0x55d7869cef50 rank {rank} nRanks {len(self.kinds)} cudaDev {gpu} busId 101c0 - Init COMPLETE"
            )
            texts += channels(kind, self.style, rank, self.per_node, len(self.kinds), self.gdr)
            texts.append("Connected all rings")
            found += [Line(rank, head + text) for text in texts]
        return found

    def transport(self) -> set[str]:
        """Right answers. A rank that chose EFA may stay within its node; where a whole node does, nothing is shown of it."""
        if set(self.kinds) <= {LOCAL, WITHIN}:
            return {LOCAL}
        kinds = {EFA if kind in (LOCAL, WITHIN) else kind for kind in self.kinds}
        if len(kinds) > 1:
            return {"mixed"}
        return {LOCAL} if self.lonely() else kinds

    def lonely(self) -> bool:
        """Whether all ranks of some node stay within it."""
        by_node = [self.kinds[at : at + self.per_node] for at in range(0, len(self.kinds), self.per_node)]
        return any(set(kinds) <= {LOCAL, WITHIN} for kinds in by_node)

    def passes(self) -> bool:
        return set(self.kinds) <= {EFA, LOCAL, WITHIN} and not self.lonely()


@st.composite
def runs(draw: st.DrawFn) -> Run:
    nodes, per_node = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    shape = draw(st.sampled_from(["one kind", "efa but one rank", "by node", "any"]))
    any_kind = st.sampled_from([EFA, SOCKET, TCP, IB, LOCAL, WITHIN])
    world = nodes * per_node
    if shape == "one kind":
        kinds = [draw(any_kind)] * world
    elif shape == "efa but one rank":
        kinds = [EFA] * world
        kinds[draw(st.integers(0, world - 1))] = draw(any_kind)
    elif shape == "by node":
        by_node = [draw(any_kind) for _ in range(nodes)]
        kinds = [by_node[rank // per_node] for rank in range(world)]
    else:
        kinds = [draw(any_kind) for _ in range(world)]
    return Run(nodes, per_node, tuple(kinds), draw(st.sampled_from(STYLES)), draw(st.booleans()))


def dressed(line: Line, how: int, run: Run, draw: random.Random) -> str:
    """The line with one launcher's or collector's prefix."""
    node, pid = line.rank // run.per_node, 1000 + line.rank
    return {
        0: line.text,
        1: f"(RayTrainWorker pid={pid}, ip=10.0.3.{node + 1}) {line.text}",
        2: f"\x1b[36m(RayTrainWorker pid={pid}, ip=10.0.3.{node + 1})\x1b[0m {line.text}",
        3: f"[1,{line.rank}]<stdout>:{line.text}",
        4: f"[2026-01-15 02:30:{draw.randrange(60):02d}] {line.text}",
        5: f"2026-01-15T02:30:45.{draw.randrange(1000):03d}Z {line.text}",
        6: f"[{line.rank}] {line.text}",
        7: f"\x1b[32m{line.text}\x1b[0m",
        8: f"[36m(pid={pid})[0m {line.text}",
        9: f"2026-01-15T02:30:45.123456789Z stdout F {line.text}",
    }[how]


NOISE = (
    "step 12 loss 3.21 tokens/s 10234",
    "Using network Libfabric would be nice, said the config",
    "I saw: x:1:2 [0] NCCL INFO Using network Libfabric",
    "  5%|▌         | 3/60 [00:01<00:22,  2.5it/s]",
    "NCCL version 2.29.7+cuda12.8",
    "",
    "\x00\xff binary \x1b[2K rubbish",
    "libfabric:18564:1733296782::efa:ep_ctrl:efa_rdm_ep_open():1410<warn> FI_OPT set to false",
)


def mangled(run: Run, draw: random.Random, *, prefix: str, crlf: bool, shuffle: bool, noise: bool) -> list[Line]:
    ordered = run.lines()
    one = draw.randrange(10)
    by_rank = {rank: draw.randrange(10) for rank in range(len(run.kinds))}
    if shuffle:
        draw.shuffle(ordered)
    lines = []
    for line in ordered:
        how = {"none": 0, "one": one, "by rank": by_rank[line.rank], "any": draw.randrange(10)}[prefix]
        text = dressed(line, how, run, draw)
        if noise and draw.random() < 0.3:
            lines.append(Line(-1, draw.choice(NOISE)))
        lines.append(Line(line.rank, text + ("\r" if crlf else "")))
    return lines


def verdict_of(lines: list[str], run: Run, *, chunks: bool) -> Verdict:
    """The verdict; besides, no mangled name may ever make up a node more than the run had."""
    parser = LogParser()
    if chunks:
        parser.feed_chunk("\n".join(lines).encode("utf-8", "surrogatepass"))
    else:
        for line in lines:
            parser.feed(line + "\n")
    more = judge(parser.evidence(), job_status="SUCCEEDED", nodes_expected=run.nodes + 1, expected="efa")
    assert more.outcome == "fail"
    return judge(parser.evidence(), job_status="SUCCEEDED", nodes_expected=run.nodes, expected="efa")


mangling = {
    "run": runs(),
    "seed": st.integers(0, 2**32),
    "prefix": st.sampled_from(["none", "one", "by rank", "any"]),
    "crlf": st.booleans(),
    "shuffle": st.booleans(),
    "noise": st.booleans(),
    "chunks": st.booleans(),
}
many = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(**mangling)
def test_any_order_prefix_and_colour_gives_the_true_verdict(
    run: Run, seed: int, prefix: str, crlf: bool, shuffle: bool, noise: bool, chunks: bool
) -> None:
    lines = mangled(run, random.Random(seed), prefix=prefix, crlf=crlf, shuffle=shuffle, noise=noise)
    verdict = verdict_of([line.text for line in lines], run, chunks=chunks)
    assert (verdict.outcome == "pass") == run.passes(), verdict.reasons
    assert verdict.to_json()["transport"] in run.transport(), verdict.reasons
    assert all(len(node.evidence) <= 5 for node in verdict.nodes)


@many
@given(cut_ranks=st.sampled_from(["some lines", "all lines of a rank", "all lines"]), **mangling)
def test_truncated_lines_give_the_true_verdict_or_an_honest_none(
    cut_ranks: str, run: Run, seed: int, prefix: str, crlf: bool, shuffle: bool, noise: bool, chunks: bool
) -> None:
    draw = random.Random(seed)
    lines = mangled(run, draw, prefix=prefix, crlf=crlf, shuffle=shuffle, noise=noise)
    # The rank that differs from the others is the one whose lines must not get lost unnoticed.
    odd = min(range(len(run.kinds)), key=lambda rank: (run.kinds.count(run.kinds[rank]), rank))
    texts = []
    for line in lines:
        text, cut = line.text, False
        if line.rank >= 0:
            cut = {"some lines": draw.random() < 0.3, "all lines of a rank": line.rank == odd, "all lines": True}[
                cut_ranks
            ]
        if cut:
            # A line keeps at least what names its process: a process of which no trace is left, no log can tell of.
            process = f":{1000 + line.rank}:"
            least = text.find(process) + len(process)
            text = text[: draw.randrange(least, len(text) + 1)]
        texts.append(text)
    verdict = verdict_of(texts, run, chunks=chunks)
    if verdict.outcome == "pass":
        assert run.passes()
    # Of a mixed run, the part that is left may be all on one wrong transport: still a fail, and still true of what is shown.
    assert verdict.to_json()["transport"] in run.transport() | {"none"} | (set(run.kinds) - {EFA, WITHIN}), (
        verdict.reasons
    )


@many
@given(mangle=st.sampled_from(["head", "glue", "split", "drop"]), **mangling)
def test_lost_heads_glued_split_and_dropped_lines_never_make_a_pass(
    mangle: str, run: Run, seed: int, prefix: str, crlf: bool, shuffle: bool, noise: bool, chunks: bool
) -> None:
    draw = random.Random(seed)
    lines = mangled(run, draw, prefix=prefix, crlf=crlf, shuffle=shuffle, noise=noise)
    texts: list[str] = []
    kept: set[tuple[int, str]] = set()
    for line in lines:
        # One whole line of each kind stays of every rank: what nobody says, no log can tell of.
        kind = next((word for word in ("Selected", "Using network", "via NET", "via") if word in line.text), "")
        if line.rank < 0 or draw.random() < 0.5 or (kind and (line.rank, kind) not in kept):
            texts.append(line.text)
            kept.add((line.rank, kind))
        elif mangle == "head":
            texts.append(line.text[draw.randrange(len(line.text)) :])
        elif mangle in ("glue", "split") and texts:
            at = draw.randrange(len(texts[-1]) + 1) if mangle == "split" else len(texts[-1])
            texts[-1] = texts[-1][:at] + line.text + texts[-1][at:]
            kept = {entry for entry in kept if entry[1] not in ("Selected", "Using network", "via NET", "via")}
    verdict = verdict_of(texts, run, chunks=chunks)
    if verdict.outcome == "pass":
        assert run.passes()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=40))
def test_binary_rubbish_never_raises_and_never_passes(pieces: list[bytes]) -> None:
    parser = LogParser()
    for piece in pieces:
        parser.feed(piece)
    verdict = judge(parser.evidence(), job_status="SUCCEEDED", nodes_expected=2, expected="efa")
    assert verdict.outcome == "fail"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_rubbish_between_real_lines_never_raises(data: st.DataObject) -> None:
    words = ["NCCL INFO ", "NET/OFI Selected provider is ", "efa", "Using network ", "Channel 00/0 : ", "0[0] -> 8[0] [send] via ",
             "NET/", "Libfabric/0", "Socket", "(RayTrainWorker pid=1, ip=10.0.0.1) ", "h:1:2 [0] ", "\x1b[36m", "[repeated 3x", "{\"event\": ",
             "comm 0x1 rank 1 nRanks 99999999999999999999 nNodes 2", "[1,99999999999999]<stdout>:"]  # fmt: skip
    text = "".join(data.draw(st.lists(st.one_of(st.sampled_from(words), st.text(max_size=5)), max_size=12)))
    parser = LogParser()
    parser.feed(text)
    judge(parser.evidence(), job_status="SUCCEEDED", nodes_expected=2, expected="efa").to_json()


@pytest.mark.parametrize("kind", [EFA, SOCKET, TCP, IB, LOCAL])
@pytest.mark.parametrize("style", STYLES)
def test_every_style_of_every_transport_is_known(kind: str, style: str) -> None:
    run = Run(2, 2, (kind,) * 4, style, False)
    verdict = verdict_of([line.text for line in run.lines()], run, chunks=True)
    assert verdict.to_json()["transport"] == kind
    assert verdict.outcome == ("pass" if kind == EFA else "fail")
    assert (verdict.nodes_seen, verdict.ranks_seen) == (2, 4)
