"""Fixture: the command line in an application's folder, with stand-ins for EKS, STS, the Kubernetes API and Ray behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kube_stub import StubKubernetes
from tests.ray_stub import StubCloud, StubRay, serve

TOKEN = "the-operator-made-this"


@dataclass
class Deployed:
    """Both stand-ins: the cloud in front, Ray behind it."""

    cloud: StubCloud
    ray: StubRay

    @property
    def kubernetes(self) -> StubKubernetes:
        return self.cloud.kubernetes


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    ray = StubRay(token=TOKEN)
    with serve(ray.app()) as dashboard:
        cloud = StubCloud(("127.0.0.1", dashboard), token=TOKEN)
        with serve(cloud.app()) as port:
            cloud.url = f"http://127.0.0.1:{port}"
            for name in (
                "AWS_PROFILE",
                "AWS_SESSION_TOKEN",
                "AWS_DEFAULT_REGION",
                "RAY_AUTH_TOKEN",
                "EKS_RAY_TRAIN_ENDPOINT",
            ):
                monkeypatch.delenv(name, raising=False)
            for name, value in {
                "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "example", "AWS_REGION": "us-east-1",
                "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_ENDPOINT_URL_EKS": cloud.url, "AWS_ENDPOINT_URL_STS": cloud.url, "AWS_ENDPOINT_URL_CLOUDFORMATION": cloud.url,
            }.items():  # fmt: skip
                monkeypatch.setenv(name, value)
            write_settings(tmp_path)
            (tmp_path / "job").mkdir()
            (tmp_path / "job" / "train.py").write_text("print('hello')\n")
            monkeypatch.chdir(tmp_path)
            yield Deployed(cloud, ray)


def write_settings(folder: Path, **values: Any) -> None:
    """The application's cdk.json."""
    (folder / "cdk.json").write_text(json.dumps({"context": {"eks-ray-train": {"region": "us-east-1", **values}}}))
