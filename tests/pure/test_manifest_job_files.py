"""The job's folder as a ConfigMap."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from eks_ray_train.errors import SettingsError
from eks_ray_train.manifests.job_files import SIZE_LIMIT_BYTES, JobFiles, job_config_map
from eks_ray_train.manifests.ray_cluster import ray_cluster
from tests.pure.manifest_support import cluster_spec, head_of, workers_of


def _folder(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def _render(folder: Path, **changes: object) -> JobFiles:
    return job_config_map(folder, name="ray-train-job", namespace="ray-train", **changes)  # type: ignore[arg-type]


def _mounted(files: JobFiles) -> dict[str, bytes]:
    """What the kubelet would write: path below the mount -> content."""
    data = {key: text.encode() for key, text in files.manifest["data"].items()}
    data |= {key: base64.b64decode(text) for key, text in files.manifest.get("binaryData", {}).items()}
    return {path: data[key] for key, path in files.items.items()}


def test_every_file_comes_back_at_its_place_byte_for_byte(tmp_path: Path) -> None:
    content: dict[str, str | bytes] = {
        "train.py": "print('ä')\n",
        "pkg/__init__.py": "",
        "pkg/deep/er/mod.py": "x = '<&>'\r\n",
        "weights.bin": bytes(range(256)),
    }
    files = _render(_folder(tmp_path, content))
    assert _mounted(files) == {name: c if isinstance(c, bytes) else c.encode() for name, c in content.items()}


def test_keys_are_legal_and_sub_folders_are_mapped(tmp_path: Path) -> None:
    files = _render(_folder(tmp_path, {"train.py": "", "fsdp_job/loop.py": ""}))
    assert files.items == {"train.py": "train.py", "fsdp_job--loop.py": "fsdp_job/loop.py"}


def test_compiled_hidden_and_cache_files_stay_behind(tmp_path: Path) -> None:
    _folder(tmp_path, {"train.py": "", ".git/config": "", "__pycache__/a.pyc": b"\0", "a.pyc": b"\0", ".env": "SECRET=1"})
    assert list(_render(tmp_path).items.values()) == ["train.py"]


def test_size_and_order_depend_on_nothing_but_the_files(tmp_path: Path) -> None:
    names = ["train.py", "b.py", "a/c.py"]
    one = _render(_folder(tmp_path / "one", {name: name for name in names}))
    two = _render(_folder(tmp_path / "two", {name: name for name in reversed(names)}))
    assert one == two


def test_the_digest_changes_with_content_and_with_names(tmp_path: Path) -> None:
    digests = {
        _render(_folder(tmp_path / str(index), files)).digest
        for index, files in enumerate([{"train.py": "a"}, {"train.py": "b"}, {"train.py": "a", "x.py": ""}, {"train.py": "", "x.py": "a"}])
    }
    assert len(digests) == 4


def test_the_size_is_that_of_the_compact_json(tmp_path: Path) -> None:
    files = _render(_folder(tmp_path, {"train.py": "def f() -> ä: a < b & c\n"}))
    assert files.size_bytes == len(json.dumps(files.manifest, separators=(",", ":"), ensure_ascii=False).encode())


def test_characters_that_kubectl_escapes_count_against_the_annotations_limit(tmp_path: Path) -> None:
    """Go's encoder writes <, > and & as six characters; 50,000 of them are 300,000 in the annotation."""
    assert _render(_folder(tmp_path, {"train.py": "x" * 50_000})).size_bytes < 51_000
    with pytest.raises(SettingsError, match=r"300,\d{3} bytes as kubectl writes it .* at most 259,999 fit; biggest files: train\.py"):
        _render(_folder(tmp_path, {"train.py": "<>" * 25_000}))


def test_just_below_the_limit_is_accepted_and_at_the_limit_refused(tmp_path: Path) -> None:
    empty = _render(_folder(tmp_path, {"train.py": ""})).size_bytes
    room = SIZE_LIMIT_BYTES - 1 - empty
    assert _render(_folder(tmp_path, {"train.py": "x" * room})).size_bytes == SIZE_LIMIT_BYTES - 1
    with pytest.raises(SettingsError):
        _render(_folder(tmp_path, {"train.py": "x" * (room + 1)}))


def test_a_folder_too_large_is_an_error_with_the_biggest_files_and_the_way_out(tmp_path: Path) -> None:
    _folder(tmp_path, {"train.py": "", "data/a.txt": "x" * 200_000, "b.bin": b"\xff" * 90_000, "c.py": "y" * 5_000, "d.py": "z" * 10})
    with pytest.raises(SettingsError) as caught:
        _render(tmp_path)
    (problem,) = caught.value.problems
    assert problem.index("data/a.txt (200,002 bytes)") < problem.index("b.bin (120,002 bytes)") < problem.index("c.py (5,002 bytes)")
    assert "d.py" not in problem
    for way_out in ("S3", "image", "eks-ray-train submit"):
        assert way_out in problem


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no file"),
        ({"main.py": ""}, r"holds no train\.py at its top"),
        ({"pkg/train.py": ""}, r"holds no train\.py at its top"),
        ({"train.py": "", "a b.py": ""}, "'a b.py': a ConfigMap's key"),
        ({"train.py": "", "ä.py": ""}, "a ConfigMap's key"),
        ({"train.py": "", "a/b.py": "", "a--b.py": ""}, "would share the key 'a--b.py'"),
    ],
)
def test_a_folder_that_cannot_be_a_config_map_is_an_error_that_names_the_file(
    tmp_path: Path, files: dict[str, str | bytes], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        _render(_folder(tmp_path, files))


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is not a folder"):
        _render(tmp_path / "nowhere")


def test_the_job_of_this_repository_fits(repo: Path) -> None:
    files = _render(repo / "job", max_objects=2)
    assert "train.py" in {path for items in files.items_by_map.values() for path in items.values()}
    assert files.size_bytes < SIZE_LIMIT_BYTES


def test_a_folder_over_the_limit_is_spread_over_more_objects_only_where_allowed(tmp_path: Path) -> None:
    content = {"train.py": "t", **{f"pkg/m{number}.py": chr(96 + number) * 20_000 for number in range(1, 16)}}
    _folder(tmp_path, content)
    with pytest.raises(SettingsError, match=r"at most 239,999 fit; biggest"):
        _render(tmp_path)
    files = _render(tmp_path, max_objects=2)
    assert [manifest["metadata"]["name"] for manifest in files.manifests] == ["ray-train-job", "ray-train-job-2"]
    mounted: dict[str, str] = {}
    for manifest, items in zip(files.manifests, files.items_by_map.values(), strict=True):
        assert set(manifest["data"]) == set(items)
        mounted |= {items[key]: text for key, text in manifest["data"].items()}
    assert mounted == content


def test_an_edit_moves_no_file_between_objects(tmp_path: Path) -> None:
    content = {"train.py": "t", **{f"pkg/m{number}.py": "x" * 20_000 for number in range(15)}}
    before = _render(_folder(tmp_path, content), max_objects=2)
    after = _render(_folder(tmp_path, {"pkg/m0.py": "y" * 15_000, "train.py": "tt"}), max_objects=2)
    assert before.items_by_map == after.items_by_map
    assert before.digest != after.digest


def test_one_file_over_the_limit_is_an_error_however_many_objects_are_allowed(tmp_path: Path) -> None:
    _folder(tmp_path, {"train.py": "", "big.txt": "x" * 240_000})
    with pytest.raises(SettingsError, match=r"spread over 3 it does not fit either\); biggest files: big\.txt"):
        _render(tmp_path, max_objects=3)


def test_the_pods_see_all_objects_as_one_folder(tmp_path: Path) -> None:
    files = _render(_folder(tmp_path, {"train.py": "", **{f"m{number}.py": "x" * 20_000 for number in range(15)}}), max_objects=2)
    manifest = ray_cluster(cluster_spec(job_items=files.items, job_further_items=files.further_items))
    for template in (head_of(manifest), *workers_of(manifest)):
        (volume,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == "job"]
        sources = [source["configMap"] for source in volume["projected"]["sources"]]
        assert [source["name"] for source in sources] == ["ray-train-job", "ray-train-job-2"]
        assert sorted(item["path"] for source in sources for item in source["items"]) == sorted(
            path.name for path in tmp_path.iterdir()
        )
