"""What calls of the engine become in the trace, on the fake engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.trace.reader import open_trace
from tests.record.helpers import events, parts, replay

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

_BEGIN = """
from types import SimpleNamespace
import torch
from kvcanary_cli.record.sglang import install
recorder = install({path!r}, tokens={tokens!r}, kv_hash={kv_hash!r})
from tests.record.fake_server import FakeServer
server = FakeServer()
scheduler = server.scheduler
"""
DRAFT_FORWARD = """
from sglang.srt.model_executor.model_runner import ModelRunner
target = scheduler.tp_worker.model_runner
draft = ModelRunner(scheduler)
draft.is_draft_worker = True
scheduler.tp_worker.model_runner = draft
row = scheduler.req_to_token_pool.req_to_token[hit.kv.req_pool_idx]
server._forward("DECODE", [hit], [5], row[hit.kv.length - 1 : hit.kv.length].long(), 1)
scheduler.tp_worker.model_runner = target
"""
EVERYTHING = """
from sglang.srt.managers.schedule_batch import release_req
first = server.start()
for _ in range(3):
    server.decode([first])
server.finish(first)
held = scheduler.tree_cache.held
hit = server.start(prefix=held[:3])
server.decode([hit])
twin = server.start()
server.finish(twin)
DRAFT
scheduler.token_to_kv_pool_allocator.kv.move_kv_cache(torch.tensor([60]), torch.tensor([61]))
hit.kv.cache_protected_len = 3
hit_row = hit.kv.req_pool_idx
own = SimpleNamespace(req_pool_idx=hit_row, length=hit.kv.length)
scheduler.tree_cache.free_kv_row(own, [(3, hit.kv.length)])
hit.kv.length = 3
class Nothing:
    def free_kv_row(self, kv, ranges):
        return None
    req_to_token_pool = scheduler.req_to_token_pool
release_req(req=hit, tree_cache=Nothing())
gone = server.start()
gone.finished_reason = type("FINISH_ABORT", (), {})()
scheduler.tree_cache.free_kv_row(gone.kv, [(0, gone.kv.length)])
scheduler.req_to_token_pool.free(gone)
scheduler.token_to_kv_pool_allocator.free_group_begin()
scheduler.tree_cache._drain_device_frees([held])
scheduler.token_to_kv_pool_allocator.free_group_end()
scheduler.process_batch_result(SimpleNamespace())
recorder.close()
"""


def _recorded(
    tmp_path: Path,
    python: Callable[..., subprocess.CompletedProcess[str]],
    code: str,
    *,
    tokens: str = "raw",
    kv_hash: str = "none",
) -> Path:
    path = str(tmp_path / "run.kvtrace")
    done = python(_BEGIN.format(path=path, tokens=tokens, kv_hash=kv_hash) + code)
    assert done.returncode == 0, done.stderr
    assert "recording ends" not in done.stderr
    (trace,) = parts(tmp_path)
    return trace


def _only(found: list[dict[str, Any]], kind: str, **fields: Any) -> list[dict[str, Any]]:
    return [e for e in found if e["kind"] == kind and fields.items() <= e.items()]


@pytest.fixture
def everything(tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]) -> Path:
    return _recorded(tmp_path, python, EVERYTHING.replace("DRAFT", DRAFT_FORWARD))


def test_each_call_becomes_its_event(everything: Path) -> None:
    found = events(everything)
    prompt = _only(found, "history", req="r0")
    assert prompt[0]["ids"] == [11, 12, 13, 14]
    assert [t for e in prompt for t in e["ids"]] == [11, 12, 13, 14, 100, 101, 102]
    (into_cache,) = _only(found, "own", **{"from": "r0"})
    assert (into_cache["owner"], len(into_cache["slots"])) == ("tree", 7)
    (match,) = _only(found, "match", req="r1")
    assert match["slots"] == into_cache["slots"][:3]
    assert match["entry"] == into_cache["entry"]
    # The second request with the same prompt gave its own copies back and got the cache's cells.
    (duplicate,) = _only(found, "free", owner="r2", reason="duplicate")
    assert len(duplicate["slots"]) == 4
    (draft,) = _only(found, "forward", worker="draft")
    assert (draft["draft_step"], draft["reqs"]) == (0, ["r1"])
    (copy,) = found_copies = _only(found, "copy")
    assert (copy["src"], copy["dst"], copy["canary"]) == ([61], [60], True)
    assert len(found_copies) == 1
    assert _only(found, "retract") == [e for e in found if e.get("req") == "r1"][-2:-1]
    assert len(_only(found, "abort", req="r3")) == 1
    assert {e["req"] for e in _only(found, "finish")} == {"r0", "r2"}
    (evicted,) = _only(found, "free", owner="tree", reason="evict")
    assert evicted["slots"] == into_cache["slots"]
    assert _only(found, "unpublish", entry=into_cache["entry"])
    assert len(_only(found, "row_release")) == 4


def test_it_replays_without_findings(
    tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    # Without the draft, which did not write the prefix that it reads here.
    diagnosis = replay(_recorded(tmp_path, python, EVERYTHING.replace("DRAFT", "")))
    assert not diagnosis.ownership
    assert not diagnosis.findings


def test_absent_tokens_leave_no_token(
    tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = "req = server.start()\nserver.decode([req])\nserver.finish(req)\nrecorder.close()\n"
    trace = _recorded(tmp_path, python, code, tokens="absent")
    found = events(trace)
    assert open_trace(trace).header.tokens == "absent"
    assert not _only(found, "history")
    assert all("input_ids" not in e for e in _only(found, "forward"))
    assert "history" not in open_trace(trace).header.records
    diagnosis = replay(trace)
    assert not diagnosis.findings
    assert "wrong_token_fed" in diagnosis.replay.coverage.blind_to


@pytest.mark.parametrize("kv_hash", ["partial", "all"])
def test_changed_bytes_are_named(
    kv_hash: str, tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = """
req = server.start()
server.decode([req])
slot = int(scheduler.req_to_token_pool.req_to_token[req.kv.req_pool_idx, 2])
scheduler.token_to_kv_pool_allocator.kv.k_buffer[0][slot, 0, 0] += 1
server.decode([req])
recorder.close()
print(slot)
"""
    finding = replay(_recorded(tmp_path, python, code, kv_hash=kv_hash)).findings[0]
    assert (finding.cls, finding.victim) == ("payload_mutation", "r0")
    assert finding.first_bad_step == 2
    assert set(finding.positions) == {2}
