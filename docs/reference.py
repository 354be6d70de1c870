"""Writes the tables of the documentation that follow from the code: commands, flags, constructs' properties, example files.

    python docs/reference.py            # rewrites the blocks between markers in docs/*.md
    python docs/reference.py --check    # changes nothing; ends with 1 and the pages' names where a block is out of date

A block begins with ``<!-- reference: KIND NAME -->`` and ends with ``<!-- end -->``. Constructs are read as text (ast): no jsii,
no Node.js. A test runs ``outdated()``.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
LIBRARY = REPO / "constructs" / "eks_ray_train"
sys.path[:0] = [path for path in (str(REPO / "constructs"), str(REPO / "job")) if path not in sys.path]

BLOCK = re.compile(r"(<!-- reference: (?P<kind>[\w-]+) ?(?P<name>[^>]*?) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)

# Properties that constructs share, and whose name says almost everything, are described here and not in each docstring.
COMMON = {
    "accept_unverified_layout": "allows a type whose network interface layout no source confirms",
    "ami_family": "`al2023` or `bottlerocket`",
    "capacity": "`probe`, `hold`, `reservation`, `block` or `none`",
    "capacity_reservation_id": "the reservation or Capacity Block (`cr-…`) to launch into",
    "cloudwatch": "installs the CloudWatch observability add-on",
    "cluster": "an `aws_eks_v2` cluster, own or imported",
    "cluster_name": "the cluster's name",
    "deletion_protection": "EKS refuses to delete the cluster",
    "disk_size_gib": "root volume in GiB",
    "disk_throughput_mib": "throughput of the root volume in MiB/s",
    "efa_version": "chart version of the EFA device plugin",
    "env": "further environment variables of the pods; `LD_LIBRARY_PATH` is refused",
    "head_node_selector": "labels of the nodes for the Ray head; default: our system nodes",
    "heads": "Ray heads that must fit",
    "image": "container image of head and workers",
    "instance_type": "EC2 instance type",
    "job_env": "variables of the run alone",
    "kubernetes_version": "Kubernetes version of the control plane",
    "labels": "further node labels",
    "name": "name of the Ray cluster or of the run",
    "namespace": "Kubernetes namespace",
    "node_count": "number of nodes",
    "node_repair": "EKS replaces broken nodes",
    "nvidia_version": "chart version of NVIDIA's device plugin",
    "quota_code": "Service Quotas code of the type's On-Demand quota",
    "ray_version": "Ray inside the image",
    "start_deadline": "end of the wait until the run starts; default 1 hour",
    "version": "chart version",
    "vcpus_per_node": "default vCPUs of the type",
    "vpc": "the VPC",
    "basic": "installs vpc-cni, kube-proxy, pod identity agent, node monitoring agent and coredns; false on a cluster that has them",
    "bucket": "the bucket that the files are exported to",
    "manage_security_group_rules": "adds the two self rules to `security_group`; false where it has them already",
    "nodes": "the GPU node group",
    "ray": "the Ray cluster",
    "service_account": "name of the Kubernetes service account",
    "storage": "where checkpoints go; absent: nowhere",
    "claim": "the capacity claim; absent: no outputs about zone and limit",
    "subnet_id": "the subnet's id",
    "container_mirror": "registry that replaces `public.ecr.aws`; absent: none",
}


def _cell(text: str) -> str:
    """Text inside a table cell: one line, pipes escaped."""
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", text)  # Sphinx's references mean nothing in Markdown
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


# ---- constructs ---------------------------------------------------------------------------------------------------------
def _class(name: str) -> tuple[ast.ClassDef, Path]:
    """A class of the library and the file that it stands in."""
    for path in sorted(LIBRARY.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node, path
    raise LookupError(f"no class {name} in {LIBRARY}")


def described(docstring: str, known: set[str]) -> dict[str, str]:
    """``:param name: text`` of a docstring; after ``; ``other`` `` the text goes on about another property, of which the common
    description is used where there is one (the sentence may lean on the one before)."""
    found: dict[str, str] = {}
    for name, text in re.findall(r":param (\w+): (.*?)(?=\n\s*:param |\Z)", docstring, re.DOTALL):
        cuts = [m for m in re.finditer(r"; ``(\w+)``:? ", text) if m[1] in known]
        found[name] = text[: cuts[0].start()] if cuts else text
        ends = [cut.start() for cut in cuts[1:]] + [len(text)]
        for cut, end in zip(cuts, ends, strict=False):
            found.setdefault(cut[1], COMMON.get(cut[1]) or text[cut.end() : end])
    return found


def properties(name: str) -> list[tuple[str, str, str, str]]:
    """(name, type, default, meaning) of every keyword-only property of a construct; an empty default: required."""
    node, _ = _class(name)
    init = next(n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    known = described(ast.get_docstring(node) or "", {a.arg for a in init.args.kwonlyargs})
    rows = []
    for argument, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True):
        meaning = known.get(argument.arg) or COMMON.get(argument.arg)
        if meaning is None:
            raise LookupError(f"{name}.{argument.arg} has no description: add a :param to its docstring")
        kind = ast.unparse(argument.annotation) if argument.annotation else ""
        rows.append((argument.arg, kind, "" if default is None else ast.unparse(default), meaning.replace("``", "`")))
    return rows


def construct_table(name: str) -> str:
    rows = [
        (f"`{prop}`", f"`{_cell(kind)}`", f"`{_cell(default)}`" if default else "required", _cell(meaning).rstrip("."))
        for prop, kind, default, meaning in properties(name)
    ]
    source = _class(name)[1].relative_to(REPO).as_posix()
    return _table(("property", "type", "default", "meaning"), rows) + f"\nSource: [{source}](../{source})\n"


# ---- commands and flags -------------------------------------------------------------------------------------------------
def commands() -> dict[str, argparse.ArgumentParser]:
    """``capacity find`` -> its parser, for every command that is installed, nested ones apart."""
    from eks_ray_train.cli.__main__ import available_commands, build_parser

    found: dict[str, argparse.ArgumentParser] = {}

    def add(name: str, parser: argparse.ArgumentParser) -> None:
        nested = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        for action in nested:
            for child, sub in action.choices.items():
                add(f"{name} {child}", sub)
        if not nested:
            found[name] = parser

    for command in available_commands():
        top = next(a for a in build_parser(command)[0]._actions if isinstance(a, argparse._SubParsersAction))
        add(command, top.choices[command])
    return found


def flags_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """(how it is typed, what it does) of every argument of a parser but ``--help``."""
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        if not action.option_strings:
            word = action.metavar if isinstance(action.metavar, str) else action.dest
            yield f"`{word}`", action.help or ""
            continue
        # One spelling: underscores are accepted wherever dashes are.
        names = [n for n in action.option_strings if "_" not in n]
        value = ""
        if action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction):
            metavar = action.metavar if isinstance(action.metavar, str) else None
            value = " " + (metavar or ("\\|".join(map(str, action.choices)) if action.choices else action.dest.upper()))
        yield ", ".join(f"`{name}{value}`" for name in names).replace("\\|", "|"), _help(action)


def _help(action: argparse.Action) -> str:
    # Python before 3.12 adds this to on/off flags by itself.
    return (action.help or "").removesuffix(" (default: %(default)s)").replace("%%", "%")


def command_tables(_name: str) -> str:
    parts = []
    for name, parser in commands().items():
        rows = [(_cell(typed), _cell(text)) for typed, text in flags_of(parser)]
        about = re.sub(r"\s+", " ", (parser.description or "").strip())
        parts.append(f"### {name}\n\n" + (f"{about}\n\n" if about else "") + _table(("argument", "does"), rows))
    return "\n".join(parts)


def job_flag_table(_name: str) -> str:
    from fsdp_job.flags import build_parser

    return _table(("flag", "does"), [(_cell(typed), _cell(text)) for typed, text in flags_of(build_parser())])


# ---- instance types -----------------------------------------------------------------------------------------------------
def instance_table(_name: str) -> str:
    from eks_ray_train.instances import CATALOGUE

    def row(t: Any) -> tuple[str, ...]:
        price = "-" if t.usd_per_hour is None else f"{t.usd_per_hour:.2f}"
        link = f"NVLink {t.nvlink_gb_s:.0f} GB/s" if t.nvlink_gb_s else "one GPU" if t.gpus == 1 else "PCIe"
        return (
            f"`{t.name}`" + ("" if t.layout_verified else " (unverified layout)"), f"{t.gpus} × {t.gpu_model}",
            f"{t.gpu_memory_mib / 1024:.0f}", f"{t.bf16_tflops:.0f}" if t.bf16_tflops else "-", link, f"{t.network_gbps:g}",
            str(t.efa_interfaces), "yes" if t.gpudirect_rdma else "no", "yes" if t.capacity_block else "no", price,
        )  # fmt: skip

    head = ("type", "GPUs", "GiB a GPU", "TFLOP/s", "inside the node", "Gbit/s", "EFA", "GPUDirect", "Capacity Blocks", "USD an hour")
    return _table(head, [row(t) for t in CATALOGUE.values()])


def unsupported_table(_name: str) -> str:
    from eks_ray_train.instances import _UNSUPPORTED_FAMILIES

    rows = [(f"`{family}`", _cell(reason), f"`{nearest}`") for family, (reason, nearest) in _UNSUPPORTED_FAMILIES.items()]
    return _table(("family", "why not", "nearest that works"), rows)


# ---- files --------------------------------------------------------------------------------------------------------------
def file_block(name: str) -> str:
    return f"```python\n{(REPO / name).read_text(encoding='utf-8').rstrip()}\n```\n"


KINDS = {"construct": construct_table, "commands": command_tables, "job-flags": job_flag_table, "instances": instance_table, "unsupported": unsupported_table, "file": file_block}


def rendered(page: str) -> str:
    """The page's text with every block as the code has it now. Raises LookupError for an unknown kind or name."""

    def fill(match: re.Match[str]) -> str:
        if match["kind"] not in KINDS:
            raise LookupError(f"unknown reference {match['kind']!r}; known: {', '.join(KINDS)}")
        return f"{match[1]}{KINDS[match['kind']](match['name'])}{match[5]}"

    return BLOCK.sub(fill, page)


def pages() -> list[Path]:
    return [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]


def outdated() -> list[Path]:
    """Pages whose blocks differ from the code."""
    return [page for page in pages() if rendered(text := page.read_text(encoding="utf-8")) != text]


if __name__ == "__main__":
    stale = outdated()
    if "--check" in sys.argv[1:]:
        sys.exit("out of date, run python docs/reference.py: " + ", ".join(p.name for p in stale) if stale else 0)
    for page in stale:
        page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"written: {page.relative_to(REPO)}")
