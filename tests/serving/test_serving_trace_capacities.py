"""Launch capacities for a recorded trace: its header's arguments, or a source that is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.serving.trace_capacities import capacities_of_trace, read_config
from kvcanary_cli.trace.header import TraceHeader, parse_header
from kvcanary_cli.trace.reader import open_trace
from tests.tools.engine_state import CAPTURES

if TYPE_CHECKING:
    from pathlib import Path

    from kvcanary_cli.replay.result import Capacities


def _header(args: dict[str, Any] | None, engine: str = "sglang", **pool: int) -> TraceHeader:
    raw: dict[str, Any] = {
        "kind": "header",
        "format": "kvcanary-trace",
        "version": 1,
        "engine": {"name": engine, "version": "0.5.23"},
        "pool": {"slots": 100, "rows": 17, "row_len": 4096} | pool,
        "records": ["forward"],
    }
    if args is not None:
        raw["serving_args"] = args
    return parse_header(raw, "test:1")


def _from(args: dict[str, Any], **pool: int) -> Capacities:
    return capacities_of_trace(_header(args, **pool), None)


def test_header_arguments_give_the_three_numbers() -> None:
    found = _from(
        {
            "max_running_requests": 16,
            "cuda_graph_max_bs": 24,
            "speculative_num_draft_tokens": 4,
            "max_prefill_tokens": 512,
            "chunked_prefill_size": 64,
        }
    )
    assert (found.verify, found.write_req, found.write_entry) == (300, 24, 96)
    assert found.source == "serving_args"
    assert not found.notes


def test_the_recorded_request_table_is_the_request_pool() -> None:
    found = _from({"cuda_graph_max_bs": 4, "chunked_prefill_size": 64}, rows=33)
    assert found.write_req == 32


def test_dashes_and_underscores_are_the_same() -> None:
    dashed = {"--max-running-requests": 16, "cuda-graph-max-bs": 8, "chunked-prefill-size": 64}
    plain = {key.lstrip("-").replace("-", "_"): value for key, value in dashed.items()}
    assert _from(dashed) == _from(plain)


def test_an_unknown_chunk_is_taken_as_the_largest_and_said() -> None:
    found = _from({"cuda_graph_max_bs": 8, "max_prefill_tokens": 512})
    assert found.write_entry == 512
    assert any("only a sure overflow" in note for note in found.notes)


def test_what_follows_from_an_unknown_gpu_is_not_guessed() -> None:
    found = _from({"max_prefill_tokens": 512})
    assert (found.write_req, found.write_entry) == (None, None)
    assert any("cuda_graph_max_bs is not known" in note for note in found.notes)


@pytest.mark.parametrize("args", [None, {}, {"model_path": "m", "tp_size": 2}, {"max_num_seqs": 4}])
def test_no_arguments_no_capacities(args: dict[str, Any] | None) -> None:
    assert capacities_of_trace(_header(args), None) is NOT_CHECKED


@pytest.mark.parametrize(
    "args",
    [
        {"max_running_requests": "8"},
        {"cuda_graph_max_bs": True},
        {"chunked_prefill_size": 8.5},
        {"max_prefill_tokens": 0, "cuda_graph_max_bs": 8},
        {"cuda_graph_max_bs": -1},
    ],
)
def test_arguments_that_the_server_refuses(args: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="serving_args"):
        _from(args)


@pytest.mark.parametrize(
    "name", sorted(path.name.split(".")[0] for path in CAPTURES.glob("*.engine.npz"))
)
def test_recorded_servers_had_these_capacities(name: str) -> None:
    head = open_trace(CAPTURES / f"{name}.jsonl.zst").header
    found = capacities_of_trace(head, None)
    engine = head.raw["canary"]
    assert (found.verify, found.write_req, found.write_entry) == (
        engine["verify_capacity"],
        engine["write_req_capacity"],
        engine["write_entry_capacity"],
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "max-running-requests: 3\ncuda-graph-max-bs-decode: 5\n"),
        (
            "a.sh",
            "python -m sglang.launch_server --model-path m --max-running-requests 3 "
            "--cuda-graph-max-bs-decode 5\n",
        ),
    ],
)
def test_any_source_will_do_and_beats_the_header(tmp_path: Path, name: str, text: str) -> None:
    source = tmp_path / name
    source.write_text(text)
    found = capacities_of_trace(_header({"cuda_graph_max_bs": 99}), read_config(str(source)))
    assert (found.verify, found.write_req) == (300, 5)
    assert found.source == f"config: {source}"


def test_a_source_that_says_nothing_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "a.yaml"
    source.write_text("model-path: x\n")
    with pytest.raises(InputError, match="holds none of the arguments"):
        read_config(str(source))
