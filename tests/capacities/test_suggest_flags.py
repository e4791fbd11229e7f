"""``kvcanary suggest-flags``: smallest sets first, verified, in the version's spelling."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.serving.check_report import build_report
from kvcanary_cli.serving.check_result import Change
from kvcanary_cli.serving.demand import Demand, stated_demands
from kvcanary_cli.serving.read_command import read_script, read_words
from kvcanary_cli.serving.read_log import read_log
from kvcanary_cli.serving.read_source import read_source_text
from kvcanary_cli.serving.read_sources import Reading, merge
from kvcanary_cli.serving.rewrite_yaml import rewrite
from kvcanary_cli.serving.suggest import suggest, with_headroom
from kvcanary_cli.serving.values import Given
from tests.capacities.test_check_rules import H100, model
from tests.cli.conftest import ROOT, Ran, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from syrupy.assertion import SnapshotAssertion

    Run = Callable[..., Ran]

__all__ = ["run"]

LOW = "configs/low_cuda_graph_max_bs.yaml"
GPU = ("--gpu", "h100", "--model-config", "configs/models/gqa_8b.json", "--weights-bytes", "16GB")


def reading(words: str, version: str = "0.5.23", slots: int = 400_000) -> Reading:
    overrides = [
        Given("gpu_memory_mib", H100, "--gpu-mem", None, "override"),
        Given("kv_tokens", slots, "--set", None, "override"),
        model("gqa_8b"),
    ]
    return merge([read_words(["--model-path", "m", *words.split()])], overrides, version=version)


def changes(one: Reading, demands: list[Demand]) -> list[dict[str, object]]:
    return [
        {change.flag: change.after for change in found.fix.changes}
        for found in suggest(one, demands).suggestions
    ]


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        ("0.5.13", "--cuda-graph-max-bs"),
        ("0.5.14", "--cuda-graph-max-bs-decode"),
        ("0.5.23", "--cuda-graph-max-bs-decode"),
    ],
)
def test_batch_peak_gets_a_captured_size(version: str, flag: str) -> None:
    words = f"{flag} 8 --max-running-requests 8"
    if version == "0.5.13":
        words += " --disable-piecewise-cuda-graph"
    if version == "0.5.14":
        words += " --cuda-graph-backend-prefill disabled"
    found = changes(reading(words, version), stated_demands(peak_batch_size=60, peak_tokens=None))
    assert found == [{flag: 64}, {"--max-running-requests": 60}]


def test_wide_chunk() -> None:
    found = changes(reading("--chunked-prefill-size 32768"), [])
    assert found == [{"--max-prefill-tokens": 32768}, {"--chunked-prefill-size": 16384}]


def test_wide_chunk_under_attention_dp_names_the_undivided_value() -> None:
    words = "--tp-size 8 --attn-dp-size 8 --chunked-prefill-size 262144"
    found = changes(reading(words), [])
    assert found == [{"--max-prefill-tokens": 32768}, {"--chunked-prefill-size": 131072}]


def test_unchunked() -> None:
    words = "--chunked-prefill-size -1 --context-length 20000"
    found = changes(reading(words), [])
    assert found == [
        {"--max-prefill-tokens": 19994},
        {"--chunked-prefill-size": 16384},
        {"--context-length": 16384},
    ]


def test_two_problems_need_two_flags() -> None:
    words = "--chunked-prefill-size 32768 --kv-canary log --kv-canary-sweep-interval 200"
    found = changes(reading(words), [])
    assert found[0] == {"--max-prefill-tokens": 32768, "--kv-canary-sweep-interval": 100}
    assert all(len(one) == 2 for one in found)


def test_rows_over_the_plan_limit() -> None:
    assert changes(reading("--max-running-requests 5000"), []) == [{"--max-running-requests": 4096}]


def test_mandatory_flag_of_a_version() -> None:
    found = changes(reading("--kv-canary log", "0.5.13"), [])
    assert found == [{"--disable-piecewise-cuda-graph": True}]
    found = changes(reading("--kv-canary log", "0.5.14"), [])
    assert found[0] == {"--cuda-graph-backend-prefill": "disabled"}


def test_input_assert_without_its_oracle() -> None:
    one = reading("--kv-canary log")
    name = "SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT"
    switched = merge(
        [read_script(f"{name}=1 sglang serve --kv-canary log", "run.sh")],
        [given for given in one.given if given.kind == "override"],
        version="0.5.23",
    )
    assert changes(switched, []) == [{name: False}]


def test_nothing_to_change() -> None:
    outcome = suggest(reading(""), [])
    assert outcome.passes_already
    assert outcome.suggestions == ()


def test_suggestions_pass_the_checks_and_say_what_they_do() -> None:
    one = reading("--chunked-prefill-size 32768")
    outcome = suggest(one, [])
    for found in outcome.suggestions:
        assert build_report(one, [], found.given).failing == ()
        assert found.report.failing == ()
    first = outcome.suggestions[0].fix
    assert first.cost_bytes == 16 * 16384
    assert "write entry capacity 16,384 -> 32,768" in first.effects


def test_headroom_is_for_what_was_observed() -> None:
    demands = [
        Demand("batch_size", 60, "t", True),
        Demand("tokens", 100, "worst case", False),
    ]
    assert [d.value for d in with_headroom(demands, 10.0)] == [66, 100]
    assert with_headroom(demands, 0.0) == demands


def test_budget_binds() -> None:
    one = reading("--chunked-prefill-size 32768")
    outcome = suggest(one, [], budget_bytes=1000)
    assert [[c.flag for c in s.fix.changes] for s in outcome.suggestions] == [
        ["--chunked-prefill-size"]
    ]
    assert [[c.flag for c in s.fix.changes] for s in outcome.rejected] == [["--max-prefill-tokens"]]


def test_a_canary_built_from_other_arguments_is_not_blamed_on_a_flag() -> None:
    text = (
        "max_total_num_tokens=400000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=64, context_len=32768, available_gpu_mem=6.9 GB\n"
        "kv-canary: forward_batch.batch_size=12 exceeds pre-allocated write_req_capacity=8; x\n"
    )
    outcome = suggest(merge([read_log(text, "s.log")]), [])
    assert outcome.before.failing
    assert outcome.suggestions == ()
    assert "the running canary was built from other ones" in outcome.advice[0]


words = st.lists(
    st.sampled_from(
        [
            "--cuda-graph-max-bs-decode 8",
            "--max-running-requests 8",
            "--max-running-requests 5000",
            "--chunked-prefill-size 32768",
            "--chunked-prefill-size -1",
            "--context-length 40000",
            "--kv-canary log",
            "--kv-canary-sweep-interval 200",
            "--disaggregation-mode decode",
            "--tp-size 8 --attn-dp-size 4",
            "--speculative-algorithm EAGLE",
            "--max-prefill-tokens 2048",
        ]
    ),
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(words, st.none() | st.integers(1, 6000), st.none() | st.integers(1, 70000))
def test_every_suggestion_holds(parts: list[str], batch: int | None, tokens: int | None) -> None:
    """Whatever is suggested passes every check, and no part of it would do alone."""
    one = reading(" ".join(parts))
    demands = stated_demands(peak_batch_size=batch, peak_tokens=tokens)
    outcome = suggest(one, demands)
    if outcome.passes_already:
        assert not outcome.suggestions
    for found in outcome.suggestions:
        assert not build_report(one, demands, found.given).failing
        for left_out in found.given if len(found.given) > 1 else ():
            rest = [given for given in found.given if given is not left_out]
            sets = [{(g.name, g.value) for g in s.given} for s in outcome.suggestions]
            if not build_report(one, demands, rest).failing:
                assert {(g.name, g.value) for g in rest} not in sets


def test_text(run: Run, snapshot: SnapshotAssertion) -> None:
    ran = run("suggest-flags", LOW, *GPU, "--peak-batch-size", "12", "--headroom", "10%")
    assert ran.code == 0
    assert ran.out == snapshot


@pytest.mark.parametrize(
    ("args", "out"),
    [
        (["--as", "flags"], "--cuda-graph-max-bs-decode 16\n"),
        (["--as", "yaml"], "cuda-graph-max-bs-decode: 16\n"),
        (["-q"], "set --cuda-graph-max-bs-decode 16\n"),
    ],
)
def test_forms(run: Run, args: list[str], out: str) -> None:
    ran = run("suggest-flags", LOW, *GPU, "--peak-batch-size", "12", "--headroom", "10%", *args)
    assert (ran.code, ran.out) == (0, out)


def test_json(run: Run) -> None:
    ran = run("suggest-flags", LOW, *GPU, "--peak-batch-size", "12", "--format", "json")
    value = json.loads(ran.out)
    assert (value["schema_version"], value["command"]) == (1, "suggest-flags")
    first = value["suggestions"][0]
    assert first["changes"] == [{"flag": "--cuda-graph-max-bs-decode", "from": 8, "to": 12}]
    assert first["verified"] is True
    assert first["verdict_after"] == "ok"
    assert first["capacities_after"]["per_forward_write_req_capacity"] == 12


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["configs/single_gpu.yaml", *GPU], 0),
        (["configs/single_gpu.yaml"], 5),
        ([LOW, *GPU, "--peak-batch-size", "5000"], 1),
        ([LOW, *GPU, "--peak-batch-size", "12", "--budget", "0"], 1),
        ([LOW, "--headroom", "lots"], 2),
        ([LOW, "--headroom", "-5%"], 2),
        ([LOW, "--budget", "some"], 2),
        ([LOW, "--as", "flags", "--format", "json"], 2),
        ([LOW, "--as", "poem"], 2),
        (["--as", "diff", "--", "sglang", "serve"], 2),
        ([LOW, *GPU, "--peak-batch-size", "12", "--write", "/no/such/x.yaml"], 4),
    ],
)
def test_exit_code(run: Run, args: list[str], code: int) -> None:
    ran = run("suggest-flags", *args)
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err


def test_what_is_missing_is_told(run: Run) -> None:
    ran = run("suggest-flags", "configs/single_gpu.yaml")
    assert "no change is needed" not in ran.out
    assert "not checked: the capacities are unknown (" in ran.out
    assert "req_to_token_pool_size is unknown: give " in ran.out


def test_what_binds_is_told(run: Run) -> None:
    ran = run("suggest-flags", LOW, *GPU, "--peak-batch-size", "12", "--budget", "0")
    assert "the memory budget of 0 B per rank binds:" in ran.out
    assert "nothing fits the budget: the cheapest change costs 192 B per rank" in ran.out
    ran = run("suggest-flags", LOW, *GPU, "--peak-batch-size", "5000")
    assert "no flag helps against:" in ran.out
    assert "KVC-B03 batch_size" in ran.out


def test_write_keeps_the_file(run: Run, tmp_path: Path) -> None:
    new = tmp_path / "new.yaml"
    ran = run("suggest-flags", LOW, *GPU, "--peak-batch-size", "12", "--write", str(new))
    assert ran.code == 0
    before = (ROOT / LOW).read_text().splitlines()
    after = new.read_text().splitlines()
    assert len(before) == len(after)
    differing = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert differing == [
        (
            "cuda-graph-max-bs: 8            # the spelling until 0.5.18",
            "cuda-graph-max-bs-decode: 12            # the spelling until 0.5.18",
        )
    ]
    again = run("check-capacities", str(new), *GPU, "--peak-batch-size", "12")
    assert again.code == 0


def change(name: str, after: object) -> Change:
    return Change(name=name, flag=f"--{name.replace('_', '-')}", before=None, after=after)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tp-size: 2\n", "tp-size: 8\n"),
        ("tp-size: 2 # why\nmodel: m\n", "tp-size: 8 # why\nmodel: m\n"),
        ('a: 1\ntp-size:   "2"', "a: 1\ntp-size:   8"),
        ("tp-size:\nmodel: m\n", "tp-size: 8\nmodel: m\n"),
        ("tp-size:\n  - 2\nmodel: m\n", "tp-size: 8\nmodel: m\n"),
        ("tensor-parallel-size: 2\n", "tensor-parallel-size: 8\n"),
        ("tp_size: 2\n", "tp-size: 8\n"),
        ("model: m\r\ntp-size: 2\r\n", "model: m\r\ntp-size: 8\r\n"),
        ("model: m", "model: m\ntp-size: 8  # added by kvcanary suggest-flags\n"),
        ("", "tp-size: 8  # added by kvcanary suggest-flags\n"),
        ("# only\n", "# only\ntp-size: 8  # added by kvcanary suggest-flags\n"),
    ],
)
def test_rewriting(text: str, expected: str) -> None:
    new = rewrite(text, [change("tp_size", 8)], "0.5.23", "c.yaml")
    assert new == expected
    assert 8 in yaml.safe_load(new).values()


def test_rewriting_keeps_text_values_text() -> None:
    for value in ("none", "no", "8", "a: b", "x #y"):
        new = rewrite("model: m\n", [change("tokenizer_path", value)], "0.5.23", "c.yaml")
        assert yaml.safe_load(new)["tokenizer-path"] == value


lines = st.lists(
    st.sampled_from(
        [
            "model-path: m",
            "# a comment",
            "",
            "page-size: 16  # x",
            "tp-size: 2",
            "stream-interval: 1",
            "cuda-graph-bs-decode:\n  - 1\n  - 2",
            "max-prefill-tokens:   8192",
        ]
    ),
    unique=True,
    max_size=8,
)


@settings(max_examples=80, deadline=None)
@given(lines, st.integers(1, 1 << 20), st.booleans())
def test_rewriting_changes_one_value_only(parts: list[str], value: int, newline: bool) -> None:
    text = "\n".join(parts) + ("\n" if newline else "")
    new = rewrite(text, [change("max_prefill_tokens", value)], "0.5.23", "c.yaml")
    before = yaml.safe_load(text) or {}
    assert yaml.safe_load(new) == {**before, "max-prefill-tokens": value}
    kept = [line for line in text.splitlines() if not line.startswith("max-prefill-tokens")]
    assert [line for line in new.splitlines() if not line.startswith("max-prefill-tokens")] == kept
    merge([read_source_text(new, "c.yaml")], version="0.5.23")
