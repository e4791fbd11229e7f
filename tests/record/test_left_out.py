"""What a recording leaves out stands in its header, and a replay says it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.attribution.report import Report
from kvcanary_cli.record.sglang.families import not_recorded as left_out_by_sglang
from kvcanary_cli.record.vllm.header import not_recorded as left_out_by_vllm
from kvcanary_cli.report.closing_line import closing_line
from kvcanary_cli.report.replay_json import json_parts
from kvcanary_cli.report.trace_text import info_lines
from kvcanary_cli.trace.info import collect_info
from kvcanary_cli.trace.reader import open_trace
from tests.record.helpers import HEADER, Toy, parts, replay

if TYPE_CHECKING:
    from pathlib import Path

LEFT_OUT = "forwards of the draft model (eagle) and the KV of its layers"


class FullAttentionSpec:
    pass


class SlidingWindowSpec:
    pass


def _vllm(groups: int = 1, group: int | None = 0, why: str = "", **config: Any) -> list[str]:
    kinds = [FullAttentionSpec, SlidingWindowSpec, SlidingWindowSpec]
    made = [
        SimpleNamespace(kv_cache_spec=kinds[k](), layer_names=["a", "b"]) for k in range(groups)
    ]
    pools: Any = SimpleNamespace(
        groups=made,
        told=() if group is None else (SimpleNamespace(number=group),),
        why_derived=why,
        is_on_device=config.pop("is_on_device", False),
    )
    return left_out_by_vllm(SimpleNamespace(**config), pools)


def test_a_replay_and_trace_info_repeat_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HEADER, "not_recorded", [LEFT_OUT])
    monkeypatch.setitem(HEADER, "blind_to", ["position_misalign", "no such class"])
    toy = Toy(tmp_path)
    for _ in range(3):
        toy.step()
    toy.session.close()
    (trace,) = parts(tmp_path)
    diagnosis = replay(trace)
    coverage = diagnosis.replay.coverage
    assert diagnosis.verdict == "clean"
    assert f"not recorded: {LEFT_OUT}" in coverage.notes
    # Both although the families that the class needs are there.
    assert {"map", "forward"} <= set(coverage.records)
    assert "position_misalign" in coverage.blind_to
    assert "no such class" not in coverage.blind_to
    report = Report.of([diagnosis])
    assert "CLEAN" in (said := closing_line(report).plain)
    assert said.endswith(", 1 part of the engine's KV not recorded")
    told = json.loads("".join(json_parts(report)))["coverage"]
    assert told["not_recorded"] == [LEFT_OUT]
    lines = [" ".join(line.split()) for line in info_lines(collect_info(open_trace(trace)))]
    assert f"leaves out {LEFT_OUT}" in lines


def test_vllm_groups_drafts_workers_and_graphs() -> None:
    assert _vllm() == []
    one, two = _vllm(groups=3)
    assert one.startswith(
        "tables, slots and reads of KV cache group 1 (SlidingWindowSpec, 2 layers)"
    )
    assert "group 2" in two
    eagle = SimpleNamespace(method="eagle")
    assert _vllm(speculative_config=eagle) == [LEFT_OUT]
    assert _vllm(speculative_config=SimpleNamespace(method="ngram")) == []
    (derived,) = _vllm(why="MultiprocExecutor runs the model in other processes")
    assert "MultiprocExecutor" in derived
    connector = SimpleNamespace(kv_connector="ExampleConnector")
    assert _vllm(kv_transfer_config=connector) == [
        "what the connector (ExampleConnector) stores of running requests, and of ended ones "
        "whose blocks it does not keep"
    ]
    graphs = SimpleNamespace(cudagraph_mode=SimpleNamespace(name="FULL"))
    assert _vllm(compilation_config=graphs) == []
    assert len(_vllm(compilation_config=graphs, is_on_device=True)) == 1


@pytest.mark.parametrize(
    ("dtype", "count"), [("fp8_e4m3", 1), ("nvfp4", 1), ("int8", 1), ("auto", 0), ("bfloat16", 0)]
)
def test_scales_of_a_quantized_cache(dtype: str, count: int) -> None:
    mine = _vllm(cache_config=SimpleNamespace(cache_dtype=dtype))
    assert len(mine) == count
    assert left_out_by_sglang({"kv_cache_dtype": dtype}, has_graphs=False) == mine


@pytest.mark.parametrize(
    ("arguments", "has_graphs", "count"),
    [
        ({}, True, 0),
        ({"speculative_draft_model_path": "m", "speculative_eagle_topk": 1}, False, 0),
        ({"speculative_draft_model_path": "m", "speculative_eagle_topk": 4}, True, 2),
        ({"hicache_storage_backend": "mooncake"}, False, 1),
        ({"enable_hisparse": True}, False, 1),
    ],
)
def test_sglang_drafts_storage_and_sparse_kv(
    arguments: dict[str, Any], has_graphs: bool, count: int
) -> None:
    assert len(left_out_by_sglang(arguments, has_graphs=has_graphs)) == count
