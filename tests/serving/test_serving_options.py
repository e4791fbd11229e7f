"""The option table: spellings by version, abbreviations, successors, values."""

from __future__ import annotations

import pytest

from kvcanary_cli.serving.numbers import parse_human_int, parse_int
from kvcanary_cli.serving.option_facts import CHOICES, DEFAULTS, REACHES_CAPACITIES, REPLACED_BY
from kvcanary_cli.serving.option_values import parse_option_value
from kvcanary_cli.serving.options import (
    OptionError,
    did_you_mean,
    is_option_name,
    known_spellings,
    lookup,
    normalise,
    option_named,
    spelling_of,
    successor_of,
)

NEW = "0.5.23"


@pytest.mark.parametrize(
    ("spelling", "version", "name"),
    [
        ("--model", NEW, "model_path"),
        ("--tensor-parallel-size", "0.4.3", "tp_size"),
        ("--pipeline-parallel-size", NEW, "pp_size"),
        ("--data-parallel-size", NEW, "dp_size"),
        ("--attention-data-parallel-size", "0.5.22", "attn_dp_size"),
        ("--ep", NEW, "ep_size"),
        ("--cuda-graph-max-bs", "0.5.13", "cuda_graph_max_bs_decode"),
        ("--cuda-graph-max-bs", "0.5.18", "cuda_graph_max_bs_decode"),
        ("--cuda-graph-max-bs-decode", "0.5.14", "cuda_graph_max_bs_decode"),
        ("--cuda-graph-bs", "0.4.5", "cuda_graph_bs_decode"),
        ("--speculative-draft-model", NEW, "speculative_draft_model_path"),
        ("--enable-hicache", NEW, "enable_hierarchical_cache"),
        ("--kv-canary", "0.5.13", "kv_canary"),
        ("--trust-remote-code", NEW, "trust_remote_code"),
    ],
)
def test_alias(spelling: str, version: str, name: str) -> None:
    option = lookup(spelling, version)
    assert (option.spelling, option.name, option.abbreviated) == (spelling, name, None)


@pytest.mark.parametrize(
    ("text", "version", "spelling"),
    [
        ("--tp", NEW, "--tp-size"),
        ("--dp", NEW, "--dp-size"),
        ("--pp", "0.4.7", "--pp-size"),
        ("--mem-frac", NEW, "--mem-fraction-static"),
        ("--max-running", NEW, "--max-running-requests"),
        ("--context", "0.5.20", "--context-length"),
        ("--chunked", NEW, "--chunked-prefill-size"),
    ],
)
def test_abbreviation(text: str, version: str, spelling: str) -> None:
    option = lookup(text, version)
    assert (option.spelling, option.abbreviated) == (spelling, text)


def test_ambiguous_abbreviation_names_all() -> None:
    with pytest.raises(OptionError) as caught:
        lookup("--pp", NEW)
    assert caught.value.reason == "ambiguous"
    assert caught.value.message == (
        "ambiguous option: --pp could match --pp-async-batch-depth, --pp-max-micro-batch-size, "
        "--pp-size"
    )


@pytest.mark.parametrize("version", ["0.5.20", "0.5.22", NEW])
def test_short_graph_option_is_gone_since_0520(version: str) -> None:
    with pytest.raises(OptionError) as caught:
        lookup("--cuda-graph-max-bs", version)
    assert caught.value.message.startswith(
        "ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, "
        "--cuda-graph-max-bs-prefill"
    )
    assert caught.value.candidates == ("--cuda-graph-max-bs-decode",)
    assert "--cuda-graph-max-bs-decode" in str(caught.value.hint)


def test_deprecated_alias_names_successor() -> None:
    option = lookup("--cuda-graph-max-bs", "0.5.14")
    assert option.deprecated
    assert option.successor == "--cuda-graph-max-bs-decode"
    assert not lookup("--cuda-graph-max-bs", "0.5.13").deprecated


def test_option_from_a_later_version() -> None:
    with pytest.raises(OptionError) as caught:
        lookup("--cuda-graph-max-bs-decode", "0.5.13")
    assert caught.value.reason == "not_in_version"
    assert "it exists since 0.5.14" in caught.value.message
    assert caught.value.hint == "write --cuda-graph-max-bs instead"


@pytest.mark.parametrize(
    ("spelling", "version", "successor"),
    [
        ("--disable-piecewise-cuda-graph", NEW, "--cuda-graph-backend-prefill=disabled"),
        ("--cuda-graph-bs", NEW, "--cuda-graph-bs-decode"),
        ("--cuda-graph-bs-decode", "0.5.9", "--cuda-graph-bs"),
        ("--attn-dp-size", "0.5.16", "--enable-dp-attention"),
        ("--no-such-option", NEW, ""),
    ],
)
def test_successor(spelling: str, version: str, successor: str) -> None:
    assert successor_of(spelling, version) == successor


def test_unknown_option_is_told_with_the_nearest() -> None:
    with pytest.raises(OptionError) as caught:
        lookup("--max-runing-requests", NEW)
    assert caught.value.reason == "unknown"
    assert caught.value.candidates[0] == "--max-running-requests"
    with pytest.raises(OptionError) as caught:
        lookup("--zzqq", NEW)
    assert caught.value.hint is None


def test_spelling_follows_the_version() -> None:
    assert spelling_of("cuda_graph_max_bs_decode", "0.5.13") == "--cuda-graph-max-bs"
    assert spelling_of("cuda_graph_max_bs_decode", "0.5.14") == "--cuda-graph-max-bs-decode"
    assert spelling_of("kv_canary", "0.5.12") is None
    assert option_named("kv_canary", NEW) is not None
    assert option_named("kv_canary", "0.5.12") is None
    assert normalise("tp_size") == normalise("--tp-size") == "--tp-size"
    assert did_you_mean("chunked_prefil_size", NEW)[0] == "--chunked-prefill-size"


def test_every_version_knows_what_never_changed() -> None:
    for version in ("0.4.0", "0.4.6", "0.5.2", "0.5.12", NEW):
        assert {"--tp-size", "--model-path", "--chunked-prefill-size"} <= set(
            known_spellings(version)
        )


def test_hand_written_names_are_options() -> None:
    for name in (*REACHES_CAPACITIES, *DEFAULTS, *CHOICES, *REPLACED_BY):
        assert is_option_name(name), name


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16384", 16384),
        (" 7 ", 7),
        ("-1", -1),
        ("128k", 128_000),
        ("25.6k", 25_600),
        ("1M", 1_000_000),
        ("2G", 2_000_000_000),
        ("1.5T", 1_500_000_000_000),
        ("128Ki", 131_072),
        ("1Mi", 1 << 20),
        ("1Gi", 1 << 30),
        ("1Ti", 1 << 40),
    ],
)
def test_human_int(text: str, number: int) -> None:
    assert parse_human_int(text, (0, 5, 10)) == number


@pytest.mark.parametrize(
    "text", ["128K", "1m", "1.5Ki", "k", "", "1 k", "0x10", "1e3", "8.0", "9" * 50, "128kk", "-1k"]
)
def test_not_a_human_int(text: str) -> None:
    with pytest.raises(ValueError, match="in"):
        parse_human_int(text, (0, 5, 23))


def test_suffixes_since_0510() -> None:
    with pytest.raises(ValueError, match="write 128000"):
        parse_human_int("128k", (0, 5, 9))
    assert parse_human_int("128", (0, 5, 9)) == 128


def test_values() -> None:
    def value(spelling: str, *words: str, version: str = NEW) -> object:
        return parse_option_value(lookup(spelling, version), words, version)

    assert value("--max-prefill-tokens", "32k") == 32_000
    assert value("--tp-size", "8") == 8
    assert value("--mem-fraction-static", "0.85") == 0.85
    assert value("--cuda-graph-bs-decode", "1", "2", "4") == [1, 2, 4]
    assert value("--disable-radix-cache") is True
    assert value("--cuda-graph-config", '{"decode": {"max_bs": 8}}') == {"decode": {"max_bs": 8}}
    assert value("--kv-canary", "log") == "log"


@pytest.mark.parametrize(
    ("spelling", "words", "text"),
    [
        ("--tp-size", ["eight"], "argument --tp-size: invalid int value: 'eight'"),
        ("--tp-size", ["1k"], "argument --tp-size: invalid int value: '1k'"),
        ("--tp-size", [], "expected one argument, got none"),
        ("--tp-size", ["1", "2"], "expected one argument, got 2"),
        ("--mem-fraction-static", ["high"], "invalid float value: 'high'"),
        ("--mem-fraction-static", ["nan"], "a finite number"),
        ("--disable-radix-cache", ["true"], "takes no value"),
        ("--kv-canary", ["warn"], "invalid choice: 'warn' (choose from 'none', 'log', 'raise')"),
        ("--cuda-graph-config", ["{"], "invalid JSON"),
        ("--cuda-graph-bs-decode", ["1", "x"], "invalid int value: 'x'"),
    ],
)
def test_bad_value(spelling: str, words: list[str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_option_value(lookup(spelling, NEW), words, NEW)
    assert caught.value.reason == "value"
    assert text in caught.value.message


def test_withdrawn_option_stops_old_versions_only() -> None:
    with pytest.raises(OptionError, match="withdrawn"):
        parse_option_value(lookup("--enable-ep-moe", "0.5.3"), [], "0.5.3")
    option = lookup("--enable-piecewise-cuda-graph", "0.5.12")
    assert option.kind == "withdrawn"
    parse_option_value(option, [], "0.5.12")


def test_plain_int() -> None:
    assert parse_int("1_000") == 1000
    with pytest.raises(ValueError, match="invalid int value"):
        parse_int("1.0")
