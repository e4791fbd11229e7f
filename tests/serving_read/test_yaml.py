"""Configuration files: places, traps, duplicates, and every problem in one run."""

from __future__ import annotations

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving.read_source import detect, read_source_text
from kvcanary_cli.serving.read_sources import Reading, merge


def read(text: str, version: str | None = "0.5.23", name: str = "c.yaml") -> Reading:
    return merge([read_source_text(text, name)], version=version)


def given(reading: Reading) -> dict[str, object]:
    return {one.name: one.value for one in reading.given}


def problems(text: str, version: str | None = "0.5.23") -> list[str]:
    with pytest.raises(InputError) as caught:
        read(text, version)
    lines = caught.value.message.splitlines()
    if len(lines) > 1:
        assert lines[0] == f"{len(lines) - 1} problems in the input:"
        return lines[1:]
    return [lines[0] + (f" ({caught.value.hint})" if caught.value.hint else "")]


def test_values_carry_their_place() -> None:
    reading = read("# comment\nmodel-path: m\n\ntp-size:   8\n")
    (tp,) = [one for one in reading.given if one.name == "tp_size"]
    assert (tp.value, tp.source, tp.kind) == (8, "c.yaml:4:1", "argument")
    assert tp.place is not None
    assert (tp.place.file, tp.place.line, tp.place.column) == ("c.yaml", 4, 1)


def test_aliases_get_the_canonical_name() -> None:
    assert given(read("tensor-parallel-size: 4\nmodel: m\n")) == {"tp_size": 4, "model_path": "m"}


def test_underscores_are_read_and_warned_about() -> None:
    reading = read("tp_size: 8\n")
    assert given(reading) == {"tp_size": 8}
    (notice,) = reading.notices
    assert str(notice).startswith("c.yaml:1:1: 'tp_size' is read as 'tp-size', but the server ref")


def test_switches() -> None:
    text = "enable-mixed-chunk: true\ndisable-radix-cache: false\nenable-metrics: yes\n"
    assert given(read(text)) == {"enable_mixed_chunk": True, "enable_metrics": True}


def test_lists_and_mappings() -> None:
    text = (
        "cuda-graph-bs-decode: [1, 2, 4]\n"
        "cuda-graph-config:\n  decode:\n    max_bs: 16\n"
        "served-model-name: a\n"
    )
    values = given(read(text))
    assert values["cuda_graph_bs_decode"] == [1, 2, 4]
    assert values["cuda_graph_config"] == {"decode": {"max_bs": 16}}


def test_human_integers_where_the_version_takes_them() -> None:
    assert given(read("max-total-tokens: 128k\n"))["max_total_tokens"] == 128_000
    assert given(read("max-total-tokens: 128Ki\n"))["max_total_tokens"] == 131_072
    (problem,) = problems("max-total-tokens: 128k\n", "0.5.9")
    assert problem.startswith("c.yaml:1:19: ")
    assert "write 128000" in problem


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("chunked-prefill-size: 128k\n", "c.yaml:1:23", "invalid int value: '128k'"),
        ("max-prefill-tokens: 010\n", "c.yaml:1:21", "octal in YAML and means 8"),
        ("page-size: 1:30\n", "c.yaml:1:12", "counts in sixties in YAML and means 90"),
        ("kv-canary: off\n", "c.yaml:1:12", "write none, log or raise"),
        ("kv-canary: no\n", "c.yaml:1:12", "YAML reads no as false"),
        ("schedule-policy: on\n", "c.yaml:1:18", 'quote it: "on"'),
        ("tp-size: yes\n", "c.yaml:1:10", "YAML reads yes as true"),
        ("context-length: null\n", "c.yaml:1:17", "the text 'None'"),
        ("context-length:\n", "c.yaml:1:16", "has no value"),
        ("disaggregation-mode: null\n", "c.yaml:1:22", 'quote it: "null"'),
        ("mem-fraction-static: high\n", "c.yaml:1:22", "invalid float value: 'high'"),
        ("enable-mixed-chunk: 1\n", "c.yaml:1:21", "is a switch"),
        ('enable-mixed-chunk: "true"\n', "c.yaml:1:21", "is a switch"),
        ("tp-size: [1, 2]\n", "c.yaml:1:1", "found a list of 2"),
        ("tp-size: {a: 1}\n", "c.yaml:1:10", "found a mapping"),
        ("tp-size: 8\ntp-size: 4\n", "c.yaml:2:1", "given twice, first at c.yaml:1:1"),
        ("tp-size: 8\ntp_size: 4\n", "c.yaml:2:1", "given twice, first at c.yaml:1:1"),
        ("tp-size: 8\nmodel: m\ntensor-parallel-size: 4\n", "c.yaml:3:1", "sets the same as"),
        ("--tp-size: 8\n", "c.yaml:1:1", "has dashes in front"),
        ("no: 8\n", "c.yaml:1:1", "a key must be an option's name"),
        ("- tp-size\n", "c.yaml:1:1", "found a list"),
        ("just text\n", "c.yaml:1:1", "found text"),
        ("a: b: c\n", "c.yaml:1:5", "not YAML: mapping values are not allowed here"),
        ("a:\n\tb: 1\n", "c.yaml:2:1", "indent with spaces"),
        ("tp-size: 8\n---\ntp-size: 4\n", "c.yaml:2:1", "one document a file"),
        ("tp-size: &x [*x]\n", "c.yaml:1:1", "contains itself"),
        ("x: !!python/object/apply:os.system [id]\n", "c.yaml:1:4", "nothing was run"),
        ("tp-size: " + "9" * 6000 + "\n", "c.yaml:1:10", "out of range"),
        ("tp-size: \x01\n", "c.yaml:1:10", "is not allowed"),
    ],
)
def test_one_problem(text: str, place: str, words: str) -> None:
    found = problems(text)
    assert len(found) == 1
    assert found[0].startswith(f"{place}: ")
    assert words in found[0]


def test_unknown_key_with_what_was_meant() -> None:
    (problem,) = problems("model-path: m\nchunked-prefil-sizes: 8\n")
    assert problem == (
        "c.yaml:2:1: unknown option 'chunked-prefil-sizes' (did you mean chunked-prefill-size?)"
    )


def test_option_of_another_version_is_told_with_its_successor() -> None:
    (problem,) = problems("cuda-graph-max-bs: 8\n", "0.5.20")
    assert problem.startswith("c.yaml:1:1: ")
    assert "write --cuda-graph-max-bs-decode instead" in problem
    assert given(read("cuda-graph-max-bs: 8\n", "0.5.9")) == {"cuda_graph_max_bs_decode": 8}
    (problem,) = problems("kv-canary: log\n", "0.5.9")
    assert "it exists since 0.5.13" in problem


def test_without_a_version_the_newest_that_knows_all_options_is_taken() -> None:
    reading = read("cuda-graph-max-bs: 8\n", None)
    assert reading.version == "0.5.18"
    assert reading.version_basis == (
        "no version was stated; 0.5.18 is the newest known that fits "
        "--cuda-graph-max-bs at c.yaml:1:1"
    )
    assert read("tp-size: 2\n", None).version is None


def test_deprecated_spelling_in_a_file_is_warned_about() -> None:
    (notice,) = read("cuda-graph-max-bs: 8\n", "0.5.14").notices
    assert "Unsupported config option" in str(notice)


def test_all_problems_of_all_sources_in_one_run() -> None:
    first = read_source_text("tp-size: x\nkv-canary: off\n", "a.yaml")
    second = read_source_text("max-runing-requests-x: 1\npage-size: 010\n", "b.yaml")
    with pytest.raises(InputError) as caught:
        merge([first, second], version="0.5.23")
    lines = caught.value.message.splitlines()
    assert lines[0] == "4 problems in the input:"
    assert [line.split(": ")[0] for line in lines[1:]] == [
        "a.yaml:1:10",
        "a.yaml:2:12",
        "b.yaml:1:1",
        "b.yaml:2:12",
    ]


def test_empty_file_is_an_empty_mapping() -> None:
    for text in ("", "# only a comment\n", "---\n"):
        reading = read(text)
        assert reading.given == ()
        assert "every value is a default" in str(reading.notices[0])


def test_quoted_numbers_and_crlf_are_as_good() -> None:
    assert given(read('tp-size: "8"\r\npage-size: 16\r\n')) == {"tp_size": 8, "page_size": 16}


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("tp-size: 8\n", "x", "yaml"),
        ("tp-size: 8  # python -m sglang.launch_server\n", "x.yaml", "yaml"),
        ("python -m sglang.launch_server --tp 8\n", "x", "command"),
        ("#!/bin/sh\nexec run\n", "x", "command"),
        ("services:\n  a:\n    command: sglang serve --tp 8\n", "x.yml", "container"),
        ('{"tp_size": 8}', "x", "server-info"),
        ('{"log":"x"}', "x.json", "log"),
        ('{"log":"[2026-01-01 10:00:00] Decode batch, x"}\n', "x", "log"),
        ("[2026-01-01 10:00:00 TP0] Load weight begin. avail mem=1.0 GB\n", "x", "log"),
        ("+ python -m sglang.launch_server\nserver_args=ServerArgs(a=1)\n", "x", "log"),
        ("anything", "server.log", "log"),
    ],
)
def test_detection(text: str, name: str, kind: str) -> None:
    assert detect(text, name) == kind
