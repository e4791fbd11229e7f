"""What of the serving arguments reaches the trace."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.record.secrets import REMOVED, scrub


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "admin_api_key",
        "hf_token",
        "token",
        "ssl_keyfile",
        "ssl_keyfile_password",
        "ssl_certfile",
        "password",
        "client_secret",
        "aws_credentials",
        "auth_token",
        "cache_salt",
    ],
)
def test_secret_arguments_lose_their_value(name: str) -> None:
    assert scrub({name: "s3cr3t"}) == {name: REMOVED}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_total_tokens", 4096),
        ("tokenizer_path", "/models/m"),
        ("skip_tokenizer_init", False),
        ("max_prefill_tokens", 16384),
        ("kv_canary", "log"),
        ("num_hash_tokens", 3),
        ("api_key", None),
    ],
)
def test_others_stay(name: str, value: object) -> None:
    assert scrub({name: value}) == {name: value}


def test_secrets_within_values_are_removed() -> None:
    args = {
        "dist_init_addr": "http://bob:s3cr3t@host:80",
        "extra": '{"api_key": "s3cr3t", "mode": 1}',
        "nested": {"storage": {"secret_key": "s3cr3t", "size": 7}},
        "command": ["--token=s3cr3t", "--x"],
        "object": type("Config", (), {"__repr__": lambda _self: "s3cr3t"})(),
    }
    text = json.dumps(scrub(args))
    assert "s3cr3t" not in text
    assert '"size": 7' in text
    assert "host:80" in text
