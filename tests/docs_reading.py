"""Reads the documentation as a user does: its pages, commands, flags and links. Shared by the tests of docs, site and CI files."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

REPO = Path(__file__).resolve().parents[1]
PAGES = sorted([*REPO.glob("*.md"), *(REPO / "docs").glob("*.md"), *(REPO / "examples").glob("*.md"), *(REPO / "bench").glob("*.md")])
# Pages that name settings and commands; the changelog tells of the past.
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def load_reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_reference", REPO / "docs" / "reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = load_reference()


def ids(page: Path) -> str:
    return page.relative_to(REPO).as_posix()


def code_lines(text: str) -> list[str]:
    """Lines of fenced blocks that are no program, a continued line joined, and every span of inline code."""
    lines: list[str] = []
    for language, body in FENCE.findall(text):
        if language != "python":
            lines += re.sub(r"\\\n\s*", "", body).splitlines()
    return [*(line.strip() for line in lines), *spans(text)]


def spans(text: str) -> list[str]:
    return [span.replace("\\|", "|") for span in re.findall(r"`([^`\n]+)`", FENCE.sub("", text))]


def slug(heading: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"`|\[|\]\([^)]*\)", "", heading).lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#{1,6} (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        name = slug(heading.strip())
        found.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return found


def broken_links(page: Path, text: str) -> list[str]:
    bad = []
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            bad.append(target)
    return bad


def job_flags() -> set[str]:
    from fsdp_job.flags import build_parser

    return {option for action in build_parser()._actions for option in action.option_strings}


COMMANDS = REFERENCE.commands()
JOB_FLAGS = job_flags()
OPTIONS = {name: {o for action in parser._actions for o in action.option_strings} for name, parser in COMMANDS.items()}


def problems_of(line: str) -> list[str]:
    """What is wrong with the commands in a line of code: unknown names and flags."""
    found = []
    for part in re.split(r"&&|\|\s|[>;#]", line):
        try:
            words = shlex.split(part.replace("…", " "))
        except ValueError:
            words = part.split()
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words[:1] == ["run:"]:
            words = words[1:]
        if words[:2] == ["-", "run:"]:
            words = words[2:]
        if words[:2] in (["python", "job/train.py"], ["python", "train.py"]):
            found += [word for word in words[2:] if word.startswith("--") and not is_job_flag(word)]
        if words[:1] != ["eks-ray-train"] or len(words) == 1 or words[1] in ("COMMAND", "--help", "--version"):
            continue
        name = next((n for n in (" ".join(words[1:3]), words[1]) if n in COMMANDS), None)
        if name is None:
            if words[1] not in {n.split()[0] for n in COMMANDS}:
                found.append(words[1])
            continue
        cut = words.index("--") if "--" in words else len(words)
        own, further = words[:cut], words[cut + 1 :]
        takes_job_flags = name == "train"
        for word in own:
            flag = word.partition("=")[0]
            if word.startswith("--") and flag not in OPTIONS[name] and not (takes_job_flags and is_job_flag(flag)):
                found.append(f"{name} {flag}")
        if name == "bench nccl":
            found += [word for word in further if word.startswith("--") and word not in nccl_bench_flags()]
        else:
            found += [word for word in further if word.startswith("--") and not is_job_flag(word)]
    return found


def nccl_bench_flags() -> set[str]:
    """The second program of ``job/`` builds its parser inside a function: its flags are read from the text."""
    return set(re.findall(r'add_argument\("(--[\w-]+)"', (REPO / "job" / "fsdp_job" / "nccl_bench_flags.py").read_text(encoding="utf-8")))


def is_job_flag(word: str) -> bool:
    name = word.partition("=")[0]
    return "--" + name[2:].replace("_", "-") in JOB_FLAGS
