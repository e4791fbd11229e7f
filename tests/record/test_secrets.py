"""What of the serving arguments reaches the trace."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.record.secrets import REMOVED, scrub

SECRETS = [
    "api_key",
    "admin_api_key",
    "apiKey",
    "hf_token",
    "token",
    "accessToken",
    "ssl_keyfile",
    "ssl_keyfile_password",
    "ssl_certfile",
    "password",
    "passphrase",
    "client_secret",
    "aws_secret_access_key",
    "aws_credentials",
    "auth_token",
    "cache_salt",
    "watermark_key",
    "watermark_key_b",
    "watermark_config",
    "X-Amz-Signature",
]


@pytest.mark.parametrize("name", SECRETS)
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
        ("tbo_token_distribution_threshold", 0.48),
        ("watermark_context_window", 4),
        ("num_hash_tokens", 3),
        ("api_key", None),
        ("dist_init_addr", "10.0.0.1:5000"),
        ("url", "http://host:80/v1/model@main"),
        ("model_path", "hf://org/model@abc123"),
        ("speculative_num_draft_tokens", 4),
        ("override", '{"max_tokens": 5, "tokenizer": "a b"}'),
        ("command", ["--port", "30000", "--model-path", "/m"]),
        ("otlp_traces_endpoint", "localhost:4317"),
        ("chat_template", "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: x"),
    ],
)
def test_others_stay(name: str, value: object) -> None:
    assert scrub({name: value}) == {name: value}


def test_an_objects_text_is_not_recorded() -> None:
    config = type("Config", (), {"__repr__": lambda _self: "s3cr3t"})()
    assert scrub({"object": config}) == {"object": "(Config)"}


def test_what_stands_beside_a_secret_stays() -> None:
    args = {
        "dist_init_addr": "http://bob:s3cr3t@host:80",
        "nested": {"storage": {"secret_key": "s3cr3t", "size": 7}},
        "extra": '{"api_key": "s3cr3t", "mode": 1}',
        "header": "Authorization: Bearer s3cr3t\nAccept: json",
    }
    assert scrub(args) == {
        "dist_init_addr": "http://host:80",
        "nested": {"storage": {"secret_key": REMOVED, "size": 7}},
        "extra": json.dumps({"api_key": REMOVED, "mode": 1}),
        "header": f"Authorization: {REMOVED}\nAccept: json",
    }


#: Places where a secret may stand in an argument whose own name tells nothing.
PLACES: dict[str, Any] = {
    "list": lambda name, secret: [{"x": 1}, {name: secret}],
    "dict in dict": lambda name, secret: {"a": {"b": {name: secret}}},
    "below the name": lambda name, secret: {name: {"x": secret, "y": [secret]}},
    "json": lambda name, secret: json.dumps({"a": [{name: secret}], "b": "c d"}),
    "json below the name": lambda name, secret: json.dumps({name: {"x": secret}}),
    "json in json": lambda name, secret: json.dumps({"a": json.dumps({name: secret})}),
    "python": lambda name, secret: str({"a": {name: secret}, "b": 1}),
    "python below the name": lambda name, secret: str({name: {"x": secret}, "b": 1}),
    "option=value": lambda name, secret: ["--x", f"--{name}={secret}"],
    "option, value": lambda name, secret: ["--x", "y", f"--{name}", secret, "z"],
}
#: The same, for a secret that is one word.
WORD_PLACES: dict[str, Any] = {
    "assignment": lambda name, secret: f"run url: {name}={secret} mode=1",
    "yaml": lambda name, secret: f"a: b\n{name}: {secret}\nc: d",
    "command line": lambda name, secret: f"serve --x y --{name} {secret} --z",
    "query": lambda name, secret: f"https://host/path?a=b&{name}={secret}&c=d",
    "environment": lambda name, secret: f"A=b {name.upper()}={secret}",
}


@given(
    name=st.sampled_from(SECRETS),
    place=st.sampled_from(sorted(PLACES)),
    tail=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12),
)
def test_no_secret_is_recorded_wherever_it_stands(name: str, place: str, tail: str) -> None:
    secret = f"s3{tail}cr3t"
    said = json.dumps(scrub({"argument": PLACES[place](name, secret)}))
    assert "cr3t" not in said


@given(
    name=st.sampled_from([name for name in SECRETS if name != "X-Amz-Signature"]),
    place=st.sampled_from(sorted(WORD_PLACES)),
    tail=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12),
)
def test_no_secret_is_recorded_within_text(name: str, place: str, tail: str) -> None:
    secret = f"s3{tail}cr3t"
    said = json.dumps(scrub({"argument": WORD_PLACES[place](name, secret)}))
    assert "cr3t" not in said


@given(tail=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12))
def test_no_login_of_an_address_is_recorded(tail: str) -> None:
    password = f"s{tail}cr3t"
    addresses = [f"redis://bob:{password}@host:6379/0"]
    if "/" not in tail:  # what follows is a path otherwise
        addresses.append(f"x http://{password}@host/v1 y")
    assert "cr3t" not in json.dumps(scrub({"arguments": addresses}))


@pytest.mark.parametrize(
    "text",
    [
        "sk-proj-s3cr3t0",
        "use hf_AbCdEfGhIjs3cr3t here",
        "AKIAABCDEFGHIJKLMNOP",
        "Bearer s3cr3t",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.s3cr3t",
        "bob:s3cr3t@host",
        "-----BEGIN PRIVATE KEY-----\ns3cr3t\n-----END PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_key_is_taken_out_under_any_name(text: str) -> None:
    said = json.dumps(scrub({"argument": text, "list": [text], text: 1}))
    assert "s3cr3t" not in said
    assert "ABCDEFGHIJKLMNOP" not in said
