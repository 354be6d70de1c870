"""Typed settings of the application: cdk.json, ``-c`` and defaults, read in one place, all errors reported at once.

``-c eks-ray-train:KEY=VALUE`` arrives as text, cdk.json as typed JSON: both are coerced here and nowhere else.
Constructs never take ``Settings``; the stacks hand them typed properties.
"""

from __future__ import annotations

import datetime as dt
import difflib
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from .errors import SettingsError
from .settings_rules import check, warnings_of
from .versions import (
    DEFAULT_KUBERNETES,
    DLC_IMAGE,
    EFA_DEVICE_PLUGIN_VERSION,
    KUBERAY_VERSION,
    NVIDIA_DEVICE_PLUGIN_VERSION,
    RAY_VERSION,
    minor_of,
)

BLOCK = "eks-ray-train"

Capacity = Literal["probe", "hold", "reservation", "block", "none"]


def _coerce_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("true or false")


def _coerce_int(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return int(value.strip())
        except ValueError:
            pass
    raise ValueError("a whole number")


def _coerce_str(value: Any) -> str:
    # cdk.json may hold 1.36 as a number; 1.30 would have lost its zero, so numbers are refused, not guessed.
    if isinstance(value, str):
        return value.strip()
    raise ValueError('text (in quotes, for example "1.36")')


def _coerce_list(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        if value.strip().startswith("["):
            value = json.loads(value)
        else:
            value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise ValueError("a list of text (or text with commas)")


def _coerce_map(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else {}
    if isinstance(value, Mapping):
        return dict(value)
    raise ValueError("a JSON object")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of the application, checked. ``None`` and empty have the meaning stated in the comment.

    Raises SettingsError (a ValueError) with all problems at once.
    """

    cluster_name: str = "eks-ray-train"  # at most 63 characters: it is also a label value
    region: str | None = None  # None: the environment's (CDK_DEFAULT_REGION), else chosen at deploy
    kubernetes_version: str = DEFAULT_KUBERNETES
    system_instance_type: str = "m7i.xlarge"
    system_node_count: int | None = None  # None: derived from what must run there
    gpu_instance_type: str = "g6.12xlarge"
    gpu_node_count: int = 2
    availability_zones: tuple[str, ...] = ()  # empty: the region's first two
    gpu_zone: str | None = None  # None: chosen at deploy by the capacity claim
    dlc_image: str = DLC_IMAGE
    ray_version: str = RAY_VERSION
    kuberay_version: str = KUBERAY_VERSION
    nvidia_device_plugin_version: str = NVIDIA_DEVICE_PLUGIN_VERSION
    efa_device_plugin_version: str = EFA_DEVICE_PLUGIN_VERSION
    chart_repositories: dict[str, str] = field(default_factory=dict)  # keys kuberay, nvidia, efa: URL or .tgz path
    namespace: str = "ray-train"
    ray_cluster_name: str = "ray-train"
    capacity: Capacity = "probe"
    capacity_reservation_id: str | None = None
    admin_principals: tuple[str, ...] = ()  # IAM role or user ARNs that administer the cluster
    public_access_cidrs: tuple[str, ...] = ()  # empty: private endpoint only
    max_hours: int = 12  # spending limit of the GPU nodes; 0: none
    storage: Literal["s3", "fsx", "none"] = "s3"
    keep_storage: bool = True
    data_buckets: tuple[str, ...] = ()  # s3://bucket/prefix or S3 ARNs that the job may read besides; empty: its own prefix only
    ami_family: Literal["al2023", "bottlerocket"] = "al2023"
    placement_group: bool = False
    node_repair: bool = True
    upgrade_policy: Literal["standard", "extended"] = "standard"
    deletion_protection: bool = False
    kubectl_layer: str | None = None  # None: the cluster's minor; "v30" selectable
    existing_vpc_id: str | None = None
    existing_cluster: dict[str, Any] = field(default_factory=dict)  # empty: the app makes its own cluster
    observability: Literal["none", "cloudwatch"] = "none"
    container_mirror: str | None = None  # registry prefix that replaces public.ecr.aws (an ECR pull-through cache)
    hf_token_secret_arn: str | None = None
    queue_name: str | None = None  # Kueue local queue
    accept_unverified_layout: bool = False

    def __post_init__(self) -> None:
        problems = check(self)
        if problems:
            raise SettingsError(problems)

    def warnings(self, today: dt.date | None = None) -> list[str]:
        """What is legal but worth knowing (paid extended support, kubectl skew, an open endpoint)."""
        return warnings_of(self, today or dt.date.today())

    @property
    def kubectl_layer_minor(self) -> int:
        """Minor version of the kubectl layer's package: the cluster's own unless ``kubectl_layer`` says otherwise."""
        return int(self.kubectl_layer.lstrip("v")) if self.kubectl_layer else minor_of(self.kubernetes_version)


_HINTS = typing.get_type_hints(Settings)


def _coercer(name: str) -> tuple[Callable[[Any], Any], bool]:
    """The reader of a field's type and whether the field may be absent (None)."""
    hint = _HINTS[name]
    args = get_args(hint)
    optional = type(None) in args
    if optional:
        hint = next(a for a in args if a is not type(None))
    origin = get_origin(hint)
    if origin is tuple:
        return _coerce_list, optional
    if origin is dict:
        return _coerce_map, optional
    if hint is bool:
        return _coerce_bool, optional
    if hint is int:
        return _coerce_int, optional
    return _coerce_str, optional  # str and Literal (the rules check Literal's values)


def _nearest(key: str) -> str:
    """The known name that shares most words with ``key`` (nodes is node), among those the one of the most alike letters."""
    words = {word.rstrip("s") for word in key.lower().replace("-", "_").split("_")}

    def likeness(name: str) -> tuple[int, float]:
        shared = words & {word.rstrip("s") for word in name.split("_")}
        return len(shared), difflib.SequenceMatcher(None, key, name).ratio()

    return max(_HINTS, key=likeness)


def from_mapping(values: Mapping[str, Any]) -> Settings:
    """Settings from one mapping of names to JSON values or text; unknown keys and wrong types are errors, all at once."""
    problems: list[str] = []
    kwargs: dict[str, Any] = {}
    for key, value in values.items():
        if key not in _HINTS:
            problems.append(f"unknown setting {key!r} in {BLOCK!r}; the nearest known one is {_nearest(key)!r}: use that, or remove it")
            continue
        read, optional = _coercer(key)
        if value is None or (optional and isinstance(value, str) and not value.strip()):
            if optional:
                kwargs[key] = None
            elif value is None:
                problems.append(f"{key} must not be null; leave it out to get its default")
            continue
        try:
            kwargs[key] = read(value)
        except ValueError as error:
            allowed = "valid JSON" if isinstance(error, json.JSONDecodeError) else str(error)
            problems.append(f"{key} must be {allowed}, got {value!r}; set {key} in cdk.json's {BLOCK!r} block")
    if problems:
        # The values that could be read are checked too, so that everything wrong is told in one go.
        try:
            Settings(**kwargs)
        except SettingsError as error:
            problems += error.problems
        raise SettingsError(problems)
    return Settings(**kwargs)


def from_context(context: Mapping[str, Any]) -> Settings:
    """Settings from a CDK context: the block ``eks-ray-train``, overridden by ``eks-ray-train:KEY`` entries.

    A bare key that equals or nearly equals one of ours is an error that shows the prefix; keys of CDK itself (they hold
    ``:``, ``/`` or ``@``) and unrelated keys of the user are left alone.
    """
    block = context.get(BLOCK, {})
    if isinstance(block, str):
        try:
            block = json.loads(block)
        except json.JSONDecodeError:
            block = None
    if not isinstance(block, Mapping):
        raise SettingsError(
            f"context {BLOCK!r} must be a JSON object of settings, got {context.get(BLOCK)!r}; "
            "write it as in the repository's cdk.json"
        )
    values = dict(block)
    problems = []
    for key, value in context.items():
        if key.startswith(BLOCK + ":"):
            values[key[len(BLOCK) + 1 :]] = value
        elif key != BLOCK and not set(key) & set(":/@"):
            close = difflib.get_close_matches(key.replace("-", "_").lower(), _HINTS, n=1, cutoff=0.88)
            if close:
                problems.append(
                    f"context key {key!r} would be ignored; use the prefix: -c {BLOCK}:{close[0]}=… (or the block in cdk.json)"
                )
    try:
        settings = from_mapping(values)
    except SettingsError as error:
        problems += error.problems
    if problems:
        raise SettingsError(problems)
    return settings


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON whose keys are all different: with two of a name the last would win in silence."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice in one object; keep one")
        found[key] = value
    return found


def read_cdk_document(path: Path) -> dict[str, Any]:
    """A cdk.json file whose ``context``, if any, is an object. Raises SettingsError: missing, unreadable, not JSON, not that."""
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_no_doubles)
    except FileNotFoundError:
        raise SettingsError(f"no {path.name} in {path.parent}; run from the application's folder") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}; make it a readable JSON file") from None
    except (ValueError, RecursionError) as error:  # JSON, UTF-8, a number of thousands of digits
        raise SettingsError(f"{path.name} is not JSON: {error}; correct it there") from None
    context = document.get("context", {}) if isinstance(document, dict) else None
    if not isinstance(context, dict):
        raise SettingsError(f'{path.name}: "context" must be an object; restore it: {{"context": {{"{BLOCK}": {{…}}}}}}')
    return dict(document)


def read_cdk_json(path: Path) -> dict[str, Any]:
    """The ``context`` of a cdk.json file. Raises as ``read_cdk_document`` does."""
    context: dict[str, Any] = read_cdk_document(path).get("context", {})
    return context


def load_settings(cdk_json: Path, context: Mapping[str, Any] | None = None) -> Settings:
    """The application's settings: ``context`` (what the CDK CLI hands over) where it has our block, else cdk.json's,
    since plain ``python app.py`` sees neither cdk.json nor ``-c``."""
    context = dict(context or {})
    if BLOCK not in context and cdk_json.exists():
        context = {**read_cdk_json(cdk_json), **context}
    return from_context(context)


def setting_names() -> list[str]:
    """Names of all settings, in the order of the documentation."""
    return [f.name for f in fields(Settings)]
