"""A worker whose engine core is elsewhere: what it was fed, its table and its KV.

The fake engine runs in one process; a ``WorkerFollower`` sees of it what reaches a worker.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.record.options import RecordOptions
from kvcanary_cli.record.vllm.recorder import VllmRecorder
from kvcanary_cli.record.vllm.requests import Rows
from kvcanary_cli.record.vllm.workers import WorkerRequest
from tests.record.helpers import events, parts, replay
from tests.record.vllm.recording import is_clean, run_recorded

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Python = Callable[..., subprocess.CompletedProcess[str]]

_FOLLOWED = """
from types import SimpleNamespace
from kvcanary_cli.record.options import RecordOptions
from kvcanary_cli.record.session import Session
from kvcanary_cli.record.vllm.fingerprints import Fingerprints
from kvcanary_cli.record.vllm.pools import Pools
from kvcanary_cli.record.vllm.worker_header import worker_header_of
from kvcanary_cli.record.vllm.workers import Sent, WorkerFollower
from tests.record.vllm.fake_server import Server
import sys
sys.modules["vllm.distributed.parallel_state"] = SimpleNamespace(
    get_tp_group=lambda: SimpleNamespace(rank_in_group=1, world_size=2),
    get_pp_group=lambda: SimpleNamespace(rank_in_group=0, world_size=1),
)
options = RecordOptions(path={path!r}, tokens="raw", kv_hash="all")

def follow(server):
    runner, sent = server.core.model_executor.driver_worker.worker.model_runner, Sent()
    pools = Pools.of_worker(runner, sent)
    fingerprints = Fingerprints.of(pools, options)
    header = worker_header_of(
        runner.vllm_config, pools, has_fingerprints=True, has_tokens=True
    )
    session = Session(options, header)
    follower = WorkerFollower(session, pools, fingerprints, sent)

    def around(owner, name, before, after):
        plain = getattr(owner, name)
        def call(*args, **kwargs):
            token = before(owner, *args, **kwargs)
            result = plain(*args, **kwargs)
            after(token, result, False, owner, *args, **kwargs)
            return result
        setattr(owner, name, call)

    around(runner, "execute_model", follower.enter_execute, follower.leave_execute)
    around(runner, "_model_forward", follower.before_forward, follower.after_forward)
    return session
"""
_BODY = """
server = Server(2, blocks=14)
{follow}
server.run(40, gap=3)
server.run(20, gap=3, drafts=True)
server.finish()
"""


def _worker(python: Python, folder: Path, body: str) -> tuple[Path, str]:
    """Run ``body`` with ``follow``; the trace, and what was printed."""
    done = python(_FOLLOWED.format(path=str(folder / "run.kvtrace")) + body + "\nsession.close()\n")
    assert done.returncode == 0, done.stderr
    (trace,) = (folder / "run.kvtrace").glob("tp1-pp0-dp0.kvtrace")
    return trace, done.stdout


def _forwards(trace: Path) -> list[dict[str, Any]]:
    kept = ("step", "reqs", "forward_mode", "seq_lens", "positions", "out_cache_loc", "input_ids")
    return [
        {name: event[name] for name in kept}
        for event in events(trace)
        if event["kind"] == "forward"
    ]


def test_a_worker_tells_the_forwards_that_its_engine_core_would(
    tmp_path: Path, python: Python
) -> None:
    run_recorded(python, tmp_path / "core", _BODY.format(follow=""))
    (core,) = parts(tmp_path / "core")
    worker, _ = _worker(
        python, tmp_path / "worker", _BODY.format(follow="session = follow(server)")
    )
    assert _forwards(worker) == _forwards(core)
    assert {event["kind"] for event in events(worker)} == {"map", "history", "kv_hash", "forward"}
    # Some were preempted, so that rows went to others before their requests ended.
    assert any(event["kind"] == "retract" for event in events(core))
    diagnosis = is_clean(worker)
    assert diagnosis.replay.coverage.kv_hashes > 500
    assert any("core-dp" in what for what in diagnosis.replay.coverage.not_recorded)


def test_changed_bytes_on_a_worker_are_named(tmp_path: Path, python: Python) -> None:
    body = """
server = Server()
session = follow(server)
server.run(8)
victim = next(r for r in server.scheduler.running if r.num_computed_tokens > 6)
print(victim.request_id, server.flip_bits(victim, 5))
server.finish()
"""
    trace, printed = _worker(python, tmp_path, body)
    victim, slot = printed.split()
    (finding,) = replay(trace).findings
    assert (finding.cls, finding.victim) == ("payload_mutation", victim)
    assert finding.slots == {int(slot)}


def test_a_wrong_table_on_a_worker_is_found(tmp_path: Path, python: Python) -> None:
    """The engine core knows nothing of it."""
    body = """
server = Server()
session = follow(server)
server.run(8)
runner = server.core.model_executor.driver_worker.worker.model_runner
plain = runner._model_forward
def swapped(**fed):
    table = runner.input_batch.block_table[0].cells
    if int(runner.seq_lens[0]) > 9:
        table[0, :2] = table[0, :2].flip(0)
    return plain(**fed)
runner._model_forward = swapped
server.finish()
"""
    trace, _ = _worker(python, tmp_path, body)
    assert replay(trace).replay.violations


@pytest.mark.parametrize("rows", [3, 4, 9])
def test_rows_go_to_who_is_scheduled(rows: int) -> None:
    held = Rows(rows)
    for round_ in range(20):
        wanted = {f"r{round_ + k}" for k in range(rows - 1)}
        for req in held.crowding(wanted):
            assert req not in wanted
            held.release(req)
        assert len({held.of(req) for req in sorted(wanted)}) == rows - 1


def test_copies_on_write_are_told(tmp_path: Path, python: Python) -> None:
    body = """
server = Server()
session = follow(server)
server.run(6)
plain = server.scheduler.schedule
def copying():
    output = plain()
    output.kv_cache_block_copies = [SimpleNamespace(src_block_id=2, dst_block_id=20)]
    return output
server.scheduler.schedule = copying
server.run(1)
"""
    trace, _ = _worker(python, tmp_path, body)
    (copy,) = [event for event in events(trace) if event["kind"] == "copy"]
    assert (copy["via"], list(copy["src"]), list(copy["dst"])) == (
        "cow",
        [8, 9, 10, 11],
        [80, 81, 82, 83],
    )


def test_a_worker_with_a_connector_is_not_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is loaded would stand in its slots without anybody having written it there."""
    recorder = VllmRecorder(RecordOptions(path=str(tmp_path / "run.kvtrace")))
    recorder.worker_begins()
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector="NixlConnector"))
    output = SimpleNamespace(scheduled_cached_reqs=SimpleNamespace(req_ids=[]))
    recorder.late(SimpleNamespace(vllm_config=config), output)
    assert recorder.follower is None
    assert not recorder._is_recording()
    assert not (tmp_path / "run.kvtrace").exists()
    assert "what the KV connector brings" in caplog.text


_EDGE = st.none() | st.integers(-12, 12)


@given(st.lists(st.integers(0, 9), max_size=6), st.lists(st.integers(0, 9), max_size=6),
       st.integers(0, 3), _EDGE, _EDGE)  # fmt: skip
def test_tokens_on_the_way_are_not_known(
    prompt: list[int], said: list[int], on_the_way: int, start: int | None, stop: int | None
) -> None:
    request = WorkerRequest("r", prompt, len(prompt), [*said, *[-1] * on_the_way])
    tokens, known = request.all_token_ids, [*prompt, *said]
    assert list(tokens) == known
    assert len(tokens) == len(known)
    assert tokens[start:stop] == known[start:stop]
    assert not list(WorkerRequest("r", None, 3, said).all_token_ids)
