"""The Hugging Face token of the secret that the deployment names: read once by the driver, handed to who reads the hub.

It travels inside functions' pickled state and task arguments. A runtime environment's variables and the trainer's
``train_loop_config`` would be readable in Ray's dashboard (ray/train/v2/_internal/state/schema.py, RunSettings, Ray 2.58).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, MutableMapping
from typing import Any

from fsdp_job.errors import JobUsageError

TOKEN_ENV = "HF_TOKEN"
SECRET_ENV = "HF_TOKEN_SECRET_ARN"
"""Set in the pods by the construct where ``hf_token_secret_arn`` is given."""


def load_token(environment: MutableMapping[str, str] = os.environ) -> None:
    """Put the secret's token into ``HF_TOKEN``; does nothing where that is set already or no secret is named.

    The secret holds the token as it is, or JSON ``{"HF_TOKEN": "…"}``. Raises JobUsageError, in one line and without the
    value, where it cannot be read or holds neither.
    """
    arn = environment.get(SECRET_ENV, "").strip()
    if arn and not environment.get(TOKEN_ENV):
        environment[TOKEN_ENV] = _token_in(_read(arn), arn)


def give_token(token: str | None) -> None:
    """In a worker: what the driver handed over, unless this process has a token of its own."""
    if token and not os.environ.get(TOKEN_ENV):
        os.environ[TOKEN_ENV] = token


def with_token(function: Callable[[dict[str, Any]], Any], token: str | None) -> Callable[[dict[str, Any]], Any]:
    """``function`` of one argument that first gives its process the token."""
    if not token:
        return function

    def worker(settings: dict[str, Any]) -> Any:
        give_token(token)
        return function(settings)

    return worker


def _read(arn: str) -> str:
    problem: Exception
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise JobUsageError(f"{SECRET_ENV} is set, but boto3 is not installed to read it ({error}); set {TOKEN_ENV}") from error
    parts = arn.split(":")
    if len(parts) < 7 or parts[2] != "secretsmanager":
        raise JobUsageError(f"{SECRET_ENV} must be the ARN of a Secrets Manager secret, got {arn!r}")
    bounded = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})
    try:
        answer = boto3.client("secretsmanager", region_name=parts[3], config=bounded).get_secret_value(SecretId=arn)
        if answer.get("SecretString"):
            return str(answer["SecretString"])
        raise JobUsageError(f"the secret {arn} has no text; store the token as plain text or as {{\"{TOKEN_ENV}\": …}}")
    except ClientError as error:
        code, problem = error.response.get("Error", {}).get("Code", ""), error
    except BotoCoreError as error:
        code, problem = "", error
    remedy = {
        "AccessDeniedException": "give the pods' role secretsmanager:GetSecretValue on it (and kms:Decrypt on its key)",
        "ResourceNotFoundException": "create it, or correct hf_token_secret_arn",
    }.get(code, "check the pods' role and their way to Secrets Manager")
    reason = " ".join(str(problem).split())
    raise JobUsageError(f"the Hugging Face token cannot be read from {arn}: {reason}; {remedy}") from problem


def _token_in(text: str, arn: str) -> str:
    token: Any = text.strip()
    if token.startswith("{"):
        try:
            token = json.loads(token).get(TOKEN_ENV)
        except json.JSONDecodeError:
            token = None  # said below, without the value that a parser's message may quote
    if not isinstance(token, str) or not token.strip() or any(c.isspace() for c in token.strip()):
        raise JobUsageError(f"the secret {arn} holds no token; store it as plain text or as JSON {{\"{TOKEN_ENV}\": \"…\"}}")
    return token.strip()
