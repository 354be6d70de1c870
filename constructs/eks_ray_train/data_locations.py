"""Places in S3 that a job may read, as people write them: ``s3://bucket/prefix`` or an ARN. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import SettingsError

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ARN = re.compile(r"arn:aws[a-z-]*:s3:::(.+)")
_EXAMPLE = "for example s3://my-data/text or arn:aws:s3:::my-data/text"


@dataclass(frozen=True, kw_only=True)
class DataLocation:
    """A bucket, and the object or folder in it that may be read; ``prefix`` empty: the whole bucket."""

    bucket: str
    prefix: str = ""

    @property
    def objects(self) -> list[str]:
        """``bucket/key`` patterns: the object of that name, and everything below the folder of that name."""
        if not self.prefix:
            return [f"{self.bucket}/*"]
        return [f"{self.bucket}/{self.prefix}", f"{self.bucket}/{self.prefix}/*"]

    @property
    def listed(self) -> list[str]:
        """What ``s3:prefix`` may be when the bucket is listed."""
        return [self.prefix, f"{self.prefix}/*"] if self.prefix else ["*"]


def data_location(text: str, *, asked_by: str = "data_buckets") -> DataLocation:
    """``text`` read. Raises SettingsError that says what is wrong with it."""
    arn = _ARN.fullmatch(text)
    rest = arn[1] if arn else text.removeprefix("s3://")
    if not arn and not text.startswith("s3://"):
        raise SettingsError(f"{asked_by} must hold s3:// addresses or S3 ARNs, got {text!r}; {_EXAMPLE}")
    bucket, _, prefix = rest.partition("/")
    prefix = "" if prefix == "*" else prefix.removesuffix("/*").strip("/")
    if not _BUCKET.fullmatch(bucket):
        raise SettingsError(
            f"{asked_by}: {bucket!r} in {text!r} is no name of a bucket (3 to 63 lower-case letters, digits, . or -); {_EXAMPLE}"
        )
    if re.search(r"[*?${}\s]", prefix):
        raise SettingsError(
            f"{asked_by}: {text!r} has a wildcard, a variable or a space inside; name the folder, everything below it may be read: {_EXAMPLE}"
        )
    return DataLocation(bucket=bucket, prefix=prefix)


def location_problems(texts: Sequence[str]) -> list[str]:
    """What is wrong with the setting ``data_buckets``; empty where nothing is."""
    problems = []
    for text in texts:
        try:
            data_location(text)
        except SettingsError as error:
            problems += error.problems
    if len(set(texts)) != len(texts):
        problems.append("data_buckets names a place twice; name each once")
    return problems
