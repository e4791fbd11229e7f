"""Suggestions hold as they are printed: read again together with the launch they are for."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.report.capacities_text import render
from kvcanary_cli.report.suggest_text import flags_line, suggest_summary
from kvcanary_cli.serving.check_report import build_report
from kvcanary_cli.serving.demand import observed_demands, stated_demands
from kvcanary_cli.serving.read_command import read_words
from kvcanary_cli.serving.read_log import read_log
from kvcanary_cli.serving.read_sources import Reading, merge
from kvcanary_cli.serving.read_yaml import read_yaml
from kvcanary_cli.serving.suggest import Outcome, suggest, with_fixes
from kvcanary_cli.serving.values import Given
from tests.capacities.test_check_rules import H100, model

if TYPE_CHECKING:
    from kvcanary_cli.serving.demand import Demand

MACHINE = (
    Given("gpu_memory_mib", H100, "--gpu-mem", None, "override"),
    Given("kv_tokens", 400_000, "--set", None, "override"),
    model("gqa_8b"),
)


def launched(words: str, version: str) -> Reading:
    one = read_words(["--model-path", "m", *shlex.split(words)])
    return merge([one], MACHINE, version=version)


def flags(outcome: Outcome) -> list[str]:
    return [flags_line(found) for found in outcome.suggestions]


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("--cuda-graph-bs-decode 1 2 4 8", "--cuda-graph-bs-decode 1 2 4 8 12"),
        (
            '--cuda-graph-config \'{"decode": {"max_bs": 8}}\'',
            '--cuda-graph-config \'{"decode": {"max_bs": 12}}\'',
        ),
        (
            '--cuda-graph-config \'{"decode": {"bs": [1, 8]}, "prefill": {"max_bs": 64}}\'',
            '--cuda-graph-config \'{"decode": {"bs": [1, 8, 12]}, "prefill": {"max_bs": 64}}\'',
        ),
        (
            '--cuda-graph-config \'{"prefill": {"backend": "full"}}\' --cuda-graph-max-bs-decode 8',
            "--cuda-graph-max-bs-decode 12",
        ),
        ("--cuda-graph-max-bs-decode 8", "--cuda-graph-max-bs-decode 12"),
    ],
)
def test_the_option_that_decides_is_changed(words: str, first: str) -> None:
    one = launched(f"{words} --max-running-requests 8", "0.5.23")
    outcome = suggest(one, stated_demands(peak_batch_size=12, peak_tokens=None))
    assert flags(outcome) == [first, "--max-running-requests 12"]


def test_a_list_in_a_file_is_changed_as_a_list() -> None:
    text = "cuda-graph-config:\n  decode: {bs: [1, 8]}\nmax-running-requests: 8\n"
    one = merge([read_yaml(text, "c.yaml")], MACHINE, version="0.5.23")
    outcome = suggest(one, stated_demands(peak_batch_size=12, peak_tokens=None))
    assert outcome.suggestions[0].given[0].value == {"decode": {"bs": [1, 8, 12]}}


parts = st.lists(
    st.sampled_from(
        [
            "--cuda-graph-max-bs-decode 8",
            "--cuda-graph-bs-decode 1 2 8",
            '--cuda-graph-config \'{"decode": {"max_bs": 8}}\'',
            '--cuda-graph-config \'{"decode": {"bs": [1, 8]}}\'',
            '--cuda-graph-config \'{"decode": {"bs": [1, 8], "max_bs": 16}}\'',
            '--cuda-graph-config \'{"decode": {"max_bs": 5000}}\'',
            "--cuda-graph-bs-decode 1 5000",
            "--max-running-requests 8",
            "--max-running-requests 3 --tp-size 8 --attn-dp-size 4",
            "--chunked-prefill-size 32768",
            "--speculative-algorithm EAGLE --speculative-num-draft-tokens 64 "
            "--speculative-eagle-topk 8 --speculative-num-steps 5",
            "--kv-canary log",
        ]
    ),
    max_size=5,
)


@settings(max_examples=80, deadline=None)
@given(
    parts,
    st.sampled_from(["0.5.22", "0.5.23"]),
    st.none() | st.integers(1, 6000),
    st.none() | st.integers(1, 40000),
)
def test_printed_flags_behind_the_launch_pass(
    words: list[str], version: str, batch: int | None, tokens: int | None
) -> None:
    """The last of an option counts, so the printed line is what a user would add."""
    demands = stated_demands(peak_batch_size=batch, peak_tokens=tokens)
    for found in suggest(launched(" ".join(words), version), demands).suggestions:
        again = launched(f"{' '.join(words)} {flags_line(found)}", version)
        assert not build_report(again, demands).failing


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        ("0.5.13", "--disable-piecewise-cuda-graph"),
        ("0.5.14", "--cuda-graph-backend-prefill disabled"),
    ],
)
def test_a_mandatory_flag_is_offered_without_the_model(version: str, flag: str) -> None:
    one = merge([read_words(["--kv-canary", "log"])], version=version)
    outcome = suggest(one, [])
    assert not outcome.passes_already
    assert flags(outcome) == [flag]
    assert suggest_summary(outcome).startswith(f"set {flag}; otherwise not checked: ")


def test_unknown_checks_are_no_passed_checks() -> None:
    one = merge([read_words(["--max-running-requests", "16"])], version="0.5.23")
    outcome = suggest(one, [])
    assert outcome.passes_already
    summary = suggest_summary(outcome)
    assert "every check passes" not in summary
    assert "KVC-B04 token_count" in summary


def logged(text: str) -> tuple[Reading, list[Demand]]:
    one = merge([read_log(text, "s.log")])
    demands = [each for name, seen in one.observed for each in observed_demands(name, seen, 0)]
    return one, demands


READY = (
    "max_total_num_tokens=400000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests={}, context_len=32768, available_gpu_mem=17.22 GB\n"
)
ARGUMENTS = (
    "server_args={{'model_path': 'm', 'tp_size': 1, 'chunked_prefill_size': 8192, "
    "'max_prefill_tokens': 16384, 'max_running_requests': {}, 'cuda_graph_config': "
    "{{'decode': {{'backend': 'full', 'max_bs': 8, 'bs': [1, 2, 4, 8]}}, "
    "'prefill': {{'backend': 'breakable'}}}}, 'kv_canary': 'raise'}}\n"
)
DECODE = "Decode batch, #running-req: 12, #token: 87282, token usage: 1.00, #queue-req: 13\n"


@pytest.mark.parametrize(
    ("asked", "effective", "offered"),
    [
        (64, 8, ["--cuda-graph-max-bs-decode 12"]),
        (8, 8, ["--cuda-graph-max-bs-decode 12", "--max-running-requests 12"]),
    ],
)
def test_requests_that_the_server_cut_are_not_asked_for_again(
    asked: int, effective: int, offered: list[str]
) -> None:
    text = ARGUMENTS.format(asked) + READY.format(effective) + DECODE
    outcome = suggest(*logged(text))
    assert outcome.before.failing
    assert flags(outcome) == offered


def test_a_log_of_one_message_gets_the_flag_that_covers_it() -> None:
    text = (
        "RuntimeError: kv-canary: forward_batch.batch_size=12 exceeds pre-allocated "
        "write_req_capacity=8; raise --cuda-graph-max-bs-decode or check "
        "CanaryLaunchCapacities.from_args\n"
    )
    outcome = suggest(*logged(text))
    assert flags(outcome) == ["--cuda-graph-max-bs-decode 12", "--max-running-requests 12"]
    assert not any("running canary was built from other" in line for line in outcome.advice)


def test_an_empty_share_of_requests_gets_one_each() -> None:
    one = launched("--tp-size 8 --attn-dp-size 8 --max-running-requests 4", "0.5.22")
    assert flags(suggest(one, [])) == ["--max-running-requests 8"]


def test_draft_tokens_make_one_flag_enough() -> None:
    words = (
        "--max-running-requests 300 --speculative-algorithm EAGLE --speculative-num-steps 5 "
        "--speculative-eagle-topk 8 --speculative-num-draft-tokens 64"
    )
    outcome = suggest(
        launched(words, "0.5.23"), stated_demands(peak_batch_size=None, peak_tokens=30000)
    )
    assert flags(outcome) == [
        "--cuda-graph-max-bs-decode 480",
        "--max-running-requests 469",
        "--chunked-prefill-size 30000 --max-prefill-tokens 30000",
    ]


def test_a_value_that_is_large_enough_is_not_part_of_the_change() -> None:
    one = launched("--chunked-prefill-size 2048 --max-prefill-tokens 16384", "0.5.23")
    demands = stated_demands(peak_batch_size=None, peak_tokens=9000)
    assert flags(suggest(one, demands))[0] == "--chunked-prefill-size 9000"


def test_a_refusal_is_advised_once() -> None:
    one = launched("--kv-canary-sweep-interval 10", "0.5.23")
    report = with_fixes(build_report(one), one, [])
    text = "\n".join(str(part) for part in render(report, width=200, verbose=False))
    helps = text.partition("what helps:\n")[2].splitlines()
    assert [line for line in helps if line.startswith("  KVC-A02: ")]
    assert not [line for line in helps if line.startswith("  KVC-A02 refused: ")]
