"""Whatever is thrown at the readers: no traceback, and every error names a place."""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvcanary_cli.errors import KvCanaryError
from kvcanary_cli.serving.check_report import build_report
from kvcanary_cli.serving.read_command import read_script, read_words
from kvcanary_cli.serving.read_log import read_log
from kvcanary_cli.serving.read_source import read_source_text
from kvcanary_cli.serving.read_sources import merge
from kvcanary_cli.serving.suggest import suggest
from tests.serving_read.test_log import NEW, OLD

OPTIONS = """
model-path tp-size dp-size attn-dp-size pp-size max-running-requests chunked-prefill-size
max-prefill-tokens max-total-tokens page-size context-length mem-fraction-static
cuda-graph-max-bs cuda-graph-max-bs-decode cuda-graph-bs-decode cuda-graph-config kv-canary
kv-canary-sweep-interval speculative-algorithm speculative-num-steps
speculative-num-draft-tokens speculative-eagle-topk disaggregation-mode enable-mixed-chunk
disable-radix-cache enable-dp-attention swa-full-tokens-ratio kv-cache-dtype config tp_size
no-such-option disable-cuda-graph enable-dynamic-chunking
"""
VALUES = """
1 0 -1 8 64 16384 010 1:30 0x10 1e3 .5 0.88 nan .inf 128k 4Ki no on yes true false null ~
raise log none EAGLE NEXTN NGRAM prefill decode [1,2] [] {a:1} 'x' "8" fp8_e4m3 $TP
99999999999999999999 2147483648 &a *a !!int !!bool | > - text
"""
KEYS = """
tp_size internal_states scheduler_info max_total_num_tokens memory_usage version server_args
chunked_prefill_size cuda_graph_config decode max_bs kv_canary token_capacity
effective_max_running_requests_per_dp
"""
VERSIONS = st.sampled_from(
    [None, "0.4.3", "0.5.2", "0.5.9", "0.5.13", "0.5.18", "0.5.20", "0.5.23"]
)
PLACE = re.compile(r"^(?:[^\s:]+:\d+(?::\d+)?|command line(?:, word \d+)?|--set \S+)")
SETTINGS = settings(max_examples=150, deadline=None)

pairs = st.tuples(st.sampled_from(OPTIONS.split()), st.sampled_from(VALUES.split()))
noise = st.text(st.characters(codec="utf-8"), max_size=12)


def check_errors(error: KvCanaryError) -> None:
    lines = error.message.splitlines()
    if len(lines) > 1 and lines[0].endswith("problems in the input:"):
        lines = lines[1:]
        assert all(PLACE.match(line) for line in lines), error.message
    else:
        assert PLACE.match(lines[0]), error.message


def use(raw, version: str | None) -> None:  # type: ignore[no-untyped-def]
    """Merge, resolve, check and suggest; only errors of ours, and each with a place."""
    try:
        reading = merge([raw], version=version)
        report = build_report(reading)
        if report.failing:
            suggest(reading, [])
    except KvCanaryError as error:
        check_errors(error)


@SETTINGS
@given(st.lists(pairs, max_size=8), VERSIONS)
@example([("cuda-graph-config", "[1,2]")], "0.5.23")
def test_yaml_of_options(lines: list[tuple[str, str]], version: str | None) -> None:
    text = "".join(f"{name}: {value}\n" for name, value in lines)
    use(read_source_text(text, "c.yaml"), version)


@SETTINGS
@given(st.text(st.sampled_from(list("ab:-[]{}#&*!|>'\"\n \t,?%@`0123.\x00é")), max_size=60))
def test_yaml_of_anything(text: str) -> None:
    use(read_source_text(text, "c.yaml"), None)


@SETTINGS
@given(st.lists(st.one_of(pairs.map(list), st.lists(noise, max_size=2)), max_size=8), VERSIONS)
def test_command_words(parts: list[list[str]], version: str | None) -> None:
    words = ["python", "-m", "sglang.launch_server"]
    for part in parts:
        words += [f"--{part[0]}", *part[1:]] if len(part) == 2 else part
    use(read_words(words), version)


@SETTINGS
@given(
    st.lists(
        st.sampled_from(
            [
                *(f"--{o}" for o in OPTIONS.split()),
                *VALUES.split(),
                "\\\n",
                "\\ \n",
                "\n",
                "'",
                '"',
                "$(",
                "`",
                "A=(",
                ")",
                "<<E",
                "E",
                ";",
                "&&",
                "#",
                "${A[@]}",
                "sglang serve",
                "A=1",
                "$A",
            ]
        ),
        max_size=12,
    )
)
def test_scripts(parts: list[str]) -> None:
    use(read_script("sglang serve " + " ".join(parts), "run.sh"), None)


@SETTINGS
@given(st.sampled_from([OLD, NEW]), st.data())
def test_mangled_logs(log: str, data: st.DataObject) -> None:
    """Cut, doubled, swapped and overwritten parts of real lines."""
    lines = log.splitlines()
    for _ in range(data.draw(st.integers(0, 6))):
        k = data.draw(st.integers(0, len(lines) - 1))
        line = lines[k]
        at = data.draw(st.integers(0, len(line)))
        match data.draw(st.sampled_from(["cut", "double", "swap", "noise", "digits"])):
            case "cut":
                lines[k] = line[:at]
            case "double":
                lines.insert(k, line)
            case "swap":
                other = data.draw(st.integers(0, len(lines) - 1))
                lines[k], lines[other] = lines[other], lines[k]
            case "noise":
                lines[k] = line[:at] + data.draw(noise) + line[at:]
            case _:
                lines[k] = re.sub(r"\d+", data.draw(st.sampled_from(["0", "-1", "9" * 30])), line)
    use(read_log("\n".join(lines), "s.log"), None)


@SETTINGS
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | noise,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(KEYS.split()),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_server_info_of_anything(value: object) -> None:
    import json

    use(read_source_text(json.dumps(value), "info.json"), None)
