"""Telling CDK tokens apart from values, without importing CDK.

CDK hands over values that exist only at deploy time as strings that hold ``${Token[…]}`` and as numbers near
-1.888e+289 (https://docs.aws.amazon.com/cdk/v2/guide/tokens.html). No manifest has such a number of its own.
"""

from __future__ import annotations

import re
from typing import Any

_STRING = re.compile(r"\$\{Token\[[^\]]*\]\}")
_NUMBER_BELOW = -1e280


def is_token(value: object) -> bool:
    """True where ``value`` is, or contains, something only CDK can resolve."""
    if isinstance(value, str):
        return _STRING.search(value) is not None
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value < _NUMBER_BELOW


def without_token_ids(value: Any) -> Any:
    """``value`` with every token replaced by one fixed text, for hashes: CDK numbers tokens anew at each synth, in the order
    in which they are made, so that a hash over them would change with unrelated code."""
    if isinstance(value, dict):
        return {key: without_token_ids(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_token_ids(entry) for entry in value]
    if isinstance(value, str):
        return _STRING.sub("<token>", value)
    return "<token>" if is_token(value) else value
