"""`hf://owner/name[@revision][/path or pattern]`: files of a data set on the Hugging Face hub.

Uses huggingface_hub, which transformers brings along, not the `datasets` package: its cache would live on the driver's
node alone, while every task here fetches just the files that it reads, at one fixed revision.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from fsdp_job.data_formats import Source
from fsdp_job.data_sources import choose_readable, glob_to_regex, is_hidden
from fsdp_job.data_store import StorageError, first_line
from fsdp_job.errors import JobUsageError

FORM = "hf://owner/name[@revision][/path or pattern]"
_ADDRESS = re.compile(r"hf://(?:datasets/)?(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[^/]+))?(?:/(?P<path>.+))?")


def find_hub(dataset: str) -> list[Source]:
    """Files of the data set; of those the training split where names tell splits apart. JobUsageError where
    unreachable."""
    repo, revision, path = _parse(dataset)
    try:
        info = _api().dataset_info(repo, revision=revision, files_metadata=True, timeout=30)
    except Exception as error:  # the hub client raises errors of its own, of httpx and of the system
        raise JobUsageError(
            f"--dataset {dataset} cannot be reached on the hub: {first_line(error)}; check the name "
            f"({FORM}), the network "
            "and HF_HUB_OFFLINE, set HF_TOKEN for a private one, or copy the files to s3:// or a shared folder"
        ) from error
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or [] if not is_hidden(file.rfilename)}
    wanted = list(sizes)
    if path:
        pattern = glob_to_regex(path)
        wanted = [name for name in sizes if pattern.fullmatch(name) or name.startswith(path.rstrip("/") + "/")]
        if not wanted:
            some = ", ".join(sorted(sizes)[:8]) + (" …" if len(sizes) > 8 else "")
            raise JobUsageError(f"--dataset {dataset}: no file of {repo} matches {path}; name one of {some}")
    names = choose_readable(dataset, wanted, explicit=path is not None and path in wanted)
    train = {name for name in names if "train" in PurePosixPath(name).name or "/train/" in f"/{name}"}
    names = train or names
    folders = sorted({str(PurePosixPath(name).parent) for name in names})
    if path is None and len(folders) > 1:
        raise JobUsageError(
            f"--dataset {dataset} holds several configurations: {', '.join(folders[:12])}; "
            f"name one, for example hf://{repo}/{folders[0]}, or all by hf://{repo}/**"
        )
    place = f"hf://{repo}@{info.sha}"
    return [
        Source(name=name, location=f"{place}/{name}", size=sizes[name], stamp=f"revision {info.sha}") for name in names
    ]


def download(location: str) -> Path:
    """The file of a location that `find_hub` made, in this node's hub cache."""
    repo, revision, path = _parse(location)
    try:
        return Path(_api().hf_hub_download(repo, path or "", revision=revision, repo_type="dataset"))
    except Exception as error:  # as above
        raise StorageError(f"{location} cannot be downloaded: {first_line(error)}") from error


def _parse(address: str) -> tuple[str, str | None, str | None]:
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise JobUsageError(f"--dataset {address} is not of the form {FORM}")
    return match["repo"], match["revision"], match["path"]


def _api() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise JobUsageError(
            f"--dataset hf://… needs the package huggingface_hub, which is not installed ({error}); "
            "install it, or copy the files to s3:// or a shared folder"
        ) from error
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=os.environ.get("HF_TOKEN") or None)
