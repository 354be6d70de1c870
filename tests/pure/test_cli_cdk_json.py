"""What is written into cdk.json: the changed values and no other byte, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eks_ray_train.cli.cdk_json import Changes, Spelled, edit, write_settings
from eks_ray_train.errors import UsageError
from eks_ray_train.settings import load_settings

BOM = b"\xef\xbb\xbf"
CDK_JSON = """{
  "app": "python3 app.py",
  "context": {
    "eks-ray-train": {
      "region":   null,
      "availability_zones": [
        "us-west-2a",
        "us-west-2b"
      ],
      "gpu_node_count": 2
    },
    "mine": {"region": "x"}
  }
}
"""


@pytest.fixture
def cdk_json(tmp_path: Path) -> Path:
    path = tmp_path / "cdk.json"
    path.write_text(CDK_JSON)
    return path


@pytest.mark.parametrize("mark", [b"", BOM])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_byte_order_mark_and_the_files_line_ends_stay_and_new_members_have_them(
    cdk_json: Path, mark: bytes, line_end: str
) -> None:
    cdk_json.write_bytes(mark + CDK_JSON.replace("\n", line_end).encode())
    assert write_settings(cdk_json, {"gpu_node_count": 4, "max_hours": 6}) == {
        "gpu_node_count": (2, 4),
        "max_hours": (None, 6),
    }
    expected = CDK_JSON.replace('"gpu_node_count": 2', '"gpu_node_count": 4,\n      "max_hours": 6')
    assert cdk_json.read_bytes() == mark + expected.replace("\n", line_end).encode()
    assert load_settings(cdk_json).max_hours == 6


@pytest.mark.parametrize("text", ['{"context": {"eks-ray-train": {}}}', '{\r\n "context": {"eks-ray-train": {\r\n }}}'])
def test_an_empty_block_takes_members_in_order(cdk_json: Path, text: str) -> None:
    cdk_json.write_bytes(text.encode())
    write_settings(cdk_json, {"region": "us-west-2", "max_hours": 6})
    assert list(json.loads(cdk_json.read_bytes())["context"]["eks-ray-train"].items()) == [
        ("region", "us-west-2"),
        ("max_hours", 6),
    ]
    assert cdk_json.read_bytes().count(b"\r\n") == (4 if "\r" in text else 0)


@pytest.mark.parametrize(
    ("call", "number", "says"),
    [("mkstemp", errno.EACCES, "Permission denied"), ("fsync", errno.ENOSPC, "No space left on device")],
)
def test_a_file_that_cannot_be_written_is_wrong_use_with_the_remedy_and_stays_whole(
    cdk_json: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, says: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile if call == "mkstemp" else os, call, fail)
    with pytest.raises(UsageError) as caught:
        write_settings(cdk_json, {"max_hours": 6})
    assert f"cannot be written ({says}) and is as it was; make the folder {cdk_json.parent} writable" in str(
        caught.value
    )
    assert cdk_json.read_text() == CDK_JSON and [p.name for p in cdk_json.parent.iterdir()] == ["cdk.json"]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (CDK_JSON.encode("utf-16"), "store it as UTF-8"),
        (CDK_JSON.replace('"app"', "// mine\n").encode(), "restore it"),
        (b'{"context": {"eks-ray-train": null}}', "it is null, not an object"),
        (b'{"context": []}', "restore it"),
        (b"[" * 100_000, "restore it"),
        (None, "make it a readable file"),
    ],
)
def test_a_file_that_cannot_be_edited_is_told_with_the_remedy(cdk_json: Path, raw: bytes | None, says: str) -> None:
    cdk_json.unlink()
    if raw is None:
        cdk_json.mkdir()
    else:
        cdk_json.write_bytes(raw)
    with pytest.raises(UsageError, match=says):
        write_settings(cdk_json, {"max_hours": 6})


# -- put back -----------------------------------------------------------------------------------------------------------
def test_what_was_written_is_put_back_to_the_byte_with_members_that_were_absent_gone(cdk_json: Path) -> None:
    changes = Changes(cdk_json)
    changes.write({"region": "us-west-2", "availability_zones": ["us-west-2c", "us-west-2d"], "gpu_zone": "us-west-2c"})
    changes.write({"region": "us-east-2", "availability_zones": ["us-east-2a", "us-east-2b"], "gpu_zone": "us-east-2a"})
    assert load_settings(cdk_json).gpu_zone == "us-east-2a"
    changes.put_back()
    assert cdk_json.read_text() == CDK_JSON


def test_only_values_that_nobody_changed_since_are_put_back(cdk_json: Path) -> None:
    changes = Changes(cdk_json)
    changes.write({"region": "us-west-2", "gpu_node_count": 4, "gpu_zone": "us-west-2a"})
    document = json.loads(cdk_json.read_text())
    document["context"]["eks-ray-train"] |= {"region": "eu-west-1", "gpu_instance_type": "g5.12xlarge"}
    document["other"] = "mine"
    cdk_json.write_text(json.dumps(document))
    changes.put_back()
    found = json.loads(cdk_json.read_text())
    assert found["other"] == "mine"
    assert found["context"]["eks-ray-train"] == {
        "region": "eu-west-1",
        "availability_zones": ["us-west-2a", "us-west-2b"],
        "gpu_node_count": 2,
        "gpu_instance_type": "g5.12xlarge",
    }


def test_an_edit_between_two_writes_is_what_is_put_back(cdk_json: Path) -> None:
    changes = Changes(cdk_json)
    changes.write({"region": "us-west-2"})
    write_settings(cdk_json, {"region": "eu-west-1"})
    changes.write({"region": "us-east-2"})
    changes.put_back()
    assert cdk_json.read_text() == CDK_JSON.replace("null", '"eu-west-1"')


@settings(max_examples=50, deadline=None)
@given(
    before=st.dictionaries(
        st.sampled_from("abcd"), st.none() | st.integers() | st.lists(st.text(max_size=3), max_size=2)
    ),
    new=st.dictionaries(st.sampled_from("abcdef"), st.integers() | st.text(max_size=3), min_size=1),
    indent=st.sampled_from([None, 1, 4]),
    line_end=st.sampled_from(["\n", "\r\n"]),
)
def test_put_back_is_the_exact_reverse_of_write(
    before: dict[str, Any], new: dict[str, Any], indent: int | None, line_end: str
) -> None:
    text = json.dumps({"context": {"x": 1, "eks-ray-train": before}, "y": []}, indent=indent).replace("\n", line_end)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cdk.json")
        path.write_bytes(text.encode())
        changes = Changes(path)
        changes.write(new)
        assert json.loads(path.read_bytes())["context"]["eks-ray-train"] == before | new
        changes.put_back()
        assert path.read_bytes() == text.encode()


@pytest.mark.parametrize(
    ("key", "left"),
    [("a", '{ "b": 2, "c": 3 }'), ("b", '{ "a": 1, "c": 3 }'), ("c", '{ "a": 1, "b": 2 }'), ("z", None)],
)
def test_a_member_is_taken_out_with_one_comma(key: str, left: str | None) -> None:
    block = '{ "a": 1, "b": 2, "c": 3 }'
    around = '{"context": {"eks-ray-train": %s}}'
    assert edit(around % block, {key: Spelled(None)}) == around % (left or block)
