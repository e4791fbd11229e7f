"""The vLLM adapter on an engine core in the shape of vLLM's."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvcanary_cli.trace.reader import open_trace
from tests.record.helpers import WAIT_S, events, parts, replay, steps
from tests.record.vllm import fake_server
from tests.record.vllm.conftest import environment
from tests.record.vllm.fake_vllm import write_package
from tests.record.vllm.recording import is_clean, run_recorded

if TYPE_CHECKING:
    from tests.record.vllm.recording import Python

SERVER = Path(fake_server.__file__)


@pytest.mark.parametrize("seed", range(2))
def test_all_runners_tell_the_same(seed: int, tmp_path: Path, python: Python) -> None:
    told, said = [], []
    for number, core in enumerate(("", "runner='v2'", "executor='mp'")):
        folder = tmp_path / str(number)
        body = f"server = Server({seed}, {core})\nserver.run(60)\nserver.finish()"
        said.append(run_recorded(python, folder, body).stderr)
        (trace,) = parts(folder)
        told.append(events(trace))
    assert told[0] == told[1] == told[2]
    words = "MultiprocExecutor runs the model in other processes"
    assert [words in text for text in said] == [False, False, True]
    kinds = {event["kind"] for event in told[0]}
    assert {"map", "alloc", "free", "own", "publish", "unpublish", "match", "history"} <= kinds
    (trace,) = parts(tmp_path / "0")
    assert steps(trace) == list(range(len(steps(trace))))
    diagnosis = is_clean(trace)
    assert diagnosis.replay.coverage.entries_verified > 1_000


def test_preempted_requests_come_back(tmp_path: Path, python: Python) -> None:
    body = "server = Server(2, blocks=14)\nserver.run(60, gap=3)\nserver.finish()"
    run_recorded(python, tmp_path, body)
    (trace,) = parts(tmp_path)
    retracted = [e["req"] for e in events(trace) if e["kind"] == "retract"]
    assert retracted
    finished = {e["req"] for e in events(trace) if e["kind"] == "finish"}
    assert set(retracted) <= finished
    is_clean(trace)


def test_a_reader_of_what_is_written_in_the_same_launch_comes_second(
    tmp_path: Path, python: Python
) -> None:
    body = """
server = Server()
first = server.send(4)
second = server.send(4)
second.all_token_ids = first.all_token_ids[:8] + [5, 6]
second.num_prompt_tokens = 10
first.all_token_ids = first.all_token_ids[:8] + [7]
first.num_prompt_tokens = 9
first._length = second._length = 14
server.core.step()
server.finish()
"""
    run_recorded(python, tmp_path, body)
    (trace,) = parts(tmp_path)
    forwards = [e for e in events(trace) if e["kind"] == "forward"]
    assert [f["reqs"] for f in forwards[:2]] == [["r0"], ["r1"]]
    assert forwards[1]["extend_prefix_lens"] == [8]
    is_clean(trace)


def test_drafts_and_what_was_accepted(tmp_path: Path, python: Python) -> None:
    body = """
from tests.record.vllm import fake_server
plain = fake_server.config
def config(*args, **kwargs):
    made = plain(*args, **kwargs)
    made.speculative_config = fake_server.SimpleNamespace(method="x", num_speculative_tokens=2)
    return made
fake_server.config = config
server = Server()
server.run(60, drafts=True)
server.finish()
"""
    run_recorded(python, tmp_path, body)
    (trace,) = parts(tmp_path)
    assert "spec" in open_trace(trace).header.records
    modes = {e["forward_mode"] for e in events(trace) if e["kind"] == "forward"}
    assert {"TARGET_VERIFY", "MIXED"} <= modes
    told: dict[str, list[int]] = {}
    for event in events(trace):
        if event["kind"] == "history":
            told.setdefault(event["req"], []).extend(event["ids"])
    accepted = [e for e in events(trace) if e["kind"] == "accept"]
    assert {len(e["nodes"]) for e in accepted} == {1, 2, 3}
    for event in accepted:
        end = event["committed_len"]
        said = told[event["req"]][end - len(event["nodes"]) : end + 1]
        assert event["tokens"][: len(said)] == said
    is_clean(trace)


def test_aborts_and_a_cache_that_is_reset(tmp_path: Path, python: Python) -> None:
    body = """
server = Server()
server.run(10)
names = [request.request_id for request in server.scheduler.running[:2]]
server.scheduler.finish_requests(names, "FINISHED_ABORTED")
server.finish()
assert server.scheduler.kv_cache_manager.block_pool.reset_prefix_cache()
server.run(4)
server.finish()
"""
    run_recorded(python, tmp_path, body)
    (trace,) = parts(tmp_path)
    assert sum(e["kind"] == "abort" for e in events(trace)) == 2
    reset = [e for e in events(trace) if e.get("reason") == "reset"]
    assert len(reset) == 1
    assert reset[0]["owner"] == "tree"
    is_clean(trace)


def test_blocks_that_come_back_later(tmp_path: Path, python: Python) -> None:
    body = """
server = Server()
server.run(6)
scheduler = server.scheduler
manager, pool = scheduler.kv_cache_manager, scheduler.kv_cache_manager.block_pool
kept = []
manager_free = manager.free
manager.free = lambda request: kept.extend(manager.pop_blocks_for_free(request))
names = [request.request_id for request in scheduler.running]
scheduler.finish_requests(names, "FINISHED_ABORTED")
def drain():
    pool.free_blocks(reversed(kept))
drain()
del manager.free
server.run(6)
server.finish()
"""
    run_recorded(python, tmp_path, body)
    (trace,) = parts(tmp_path)
    assert "drain" in {e.get("reason") for e in events(trace)}
    is_clean(trace)


def test_what_a_connector_loads_counts_as_written(tmp_path: Path, python: Python) -> None:
    body = """
server = Server()
request = server.send(4)
request.all_token_ids = list(range(3, 15))
request.num_prompt_tokens = 12
server.scheduler.external["r0"] = 8
server.finish()
"""
    run_recorded(python, tmp_path, body)
    (trace,) = parts(tmp_path)
    moved = [e for e in events(trace) if e["kind"] in ("transfer_begin", "copy", "transfer_end")]
    assert [e["kind"] for e in moved] == ["transfer_begin", "copy", "transfer_end"]
    assert moved[1]["src"] == {"req": "r0", "pos": list(range(8))}
    assert moved[1]["dst"] == moved[0]["slots"] == list(range(4, 12))
    is_clean(trace)


def test_salts_keep_prefixes_apart_and_are_not_told(tmp_path: Path, python: Python) -> None:
    secret = fake_server.SECRET_SALT
    body = f"server = Server()\nserver.send(3, {secret!r})\nserver.send(3)\nserver.finish()"
    run_recorded(python, tmp_path, body)
    (trace,) = parts(tmp_path)
    forward = next(e for e in events(trace) if e["kind"] == "forward")
    first, second = forward["namespaces"]
    assert first.startswith("ns-")
    assert second == ""
    assert secret not in json.dumps([*events(trace), open_trace(trace).header.raw])


def test_a_fault_in_the_engine_is_named(tmp_path: Path, python: Python) -> None:
    body = """
server = Server(blocks=16)
victim = server.send(12)
victim.all_token_ids = list(range(3, 16))
victim.num_prompt_tokens, victim._length = 13, 34
for _ in range(2):
    server.core.step()
manager = server.scheduler.kv_cache_manager
pool, held = manager.block_pool, manager.req_to_blocks["r0"]
pool.free_blocks([held[1]])
pool.free_block_queue.blocks.reverse()
other = server.send(12)
other.all_token_ids = list(range(40, 52))
other.num_prompt_tokens, other._length = 12, 30
for _ in range(4):
    server.core.step()
"""
    run_recorded(python, tmp_path, body)
    (trace,) = parts(tmp_path)
    finding = replay(trace).findings[0]
    assert finding.cls == "use_after_free"
    assert finding.victim == "r0"
    assert finding.culprit.req == "r1"


def test_attached_late_the_trace_begins_with_who_holds_what(tmp_path: Path, python: Python) -> None:
    done = python(
        f"""
from tests.record.vllm.fake_server import Server
server = Server()
server.run(15)
from kvcanary_cli.record.vllm import install
recorder = install({str(tmp_path / "run.kvtrace")!r}, tokens="raw")
server.run(15)
server.finish()
recorder.close()
"""
    )
    assert done.returncode == 0, done.stderr
    (trace,) = parts(tmp_path)
    assert open_trace(trace).header.starts_mid_run
    assert events(trace)[0]["kind"] == "own"
    diagnosis = replay(trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings


def test_loaded_as_a_plugin_by_the_engine_core_itself(tmp_path: Path, python: Python) -> None:
    code = """
from kvcanary_cli.record.vllm import plugin
from tests.record.vllm.fake_server import Server
server = Server(before=plugin)
server.run(20)
server.finish()
"""
    assert python(code).returncode == 0
    assert not list(tmp_path.iterdir())
    done = python(code, env={"KVCANARY_RECORD": str(tmp_path / "run.kvtrace")})
    assert done.returncode == 0, done.stderr
    (trace,) = parts(tmp_path)
    assert not open_trace(trace).header.starts_mid_run
    assert open_trace(trace).header.tokens == "salted"
    is_clean(trace)


def test_unset_nothing_is_patched_and_nothing_heavy_imported(python: Python) -> None:
    code = (
        "import sys\n"
        "from kvcanary_cli.record.vllm import plugin; plugin()\n"
        "print([m for m in ('torch', 'numpy', 'vllm') if m in sys.modules])\n"
        "import vllm.v1.core.block_pool as p\n"
        "print(hasattr(p.BlockPool.get_new_blocks, '__wrapped__'))\n"
    )
    assert python(code).stdout.split("\n")[:2] == ["[]", "False"]


def test_the_entry_point_is_declared() -> None:
    root = Path(__file__).parents[3]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["vllm.general_plugins"]["kvcanary"].partition(":")
    assert callable(getattr(import_module(module), name))


def test_the_command_records_a_server(tmp_path: Path, fake_vllm: Path) -> None:
    record = [sys.executable, "-m", "kvcanary_cli", "record", "-o", str(tmp_path / "run.kvtrace")]
    done = subprocess.run(
        [*record, "--", sys.executable, str(SERVER), "30"],
        env=environment(fake_vllm),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "answered" in done.stdout
    (trace,) = parts(tmp_path)
    assert open_trace(trace).header.engine_name == "vllm"
    is_clean(trace)


def test_an_unknown_version_says_what_is_missing_and_runs_on(
    tmp_path: Path, python: Python
) -> None:
    write_package(tmp_path / "engine", version="0.99.0", without="cache_full_blocks")
    done = run_recorded(
        python,
        tmp_path,
        "server = Server()\nserver.run(20)\nserver.finish()\nprint('served')",
        engine=tmp_path / "engine",
    )
    assert "served" in done.stdout
    assert "vLLM 0.99.0 is not a version that was tried" in done.stderr
    assert "no hook at vllm.v1.core.block_pool:BlockPool.cache_full_blocks" in done.stderr
    assert "'prefix' is not recorded" in done.stderr
    (trace,) = parts(tmp_path)
    records = open_trace(trace).header.records
    assert "prefix" not in records
    assert {"forward", "map", "alloc", "history"} <= records


def test_a_missing_hook_of_the_other_runner_costs_nothing(tmp_path: Path, python: Python) -> None:
    write_package(tmp_path / "engine", without="prepare_attn")
    body = "server = Server()\nserver.run(10)\nserver.finish()"
    done = run_recorded(python, tmp_path, body, engine=tmp_path / "engine")
    assert "no hook" not in done.stderr
    (trace,) = parts(tmp_path)
    assert "forward" in open_trace(trace).header.records


def test_a_fault_of_the_recorder_does_not_reach_the_engine(tmp_path: Path, python: Python) -> None:
    done = python(
        f"""
from kvcanary_cli.record.vllm import install
recorder = install({str(tmp_path / "run.kvtrace")!r}, tokens="raw")
from tests.record.vllm.fake_server import Server
server = Server()
server.run(3)
def broken(*args, **kwargs):
    raise KeyError("broken")
recorder.follower.before_forward = broken
server.run(10)
server.finish()
print("served", server.sent)
"""
    )
    assert done.stdout.strip() == "served 14", done.stderr
    assert done.stderr.count("recording ends") == 1
    (trace,) = parts(tmp_path)
    assert events(trace)[-1]["kind"] == "recording_ended"


def test_absent_tokens_leave_no_token_anywhere(tmp_path: Path, python: Python) -> None:
    run_recorded(
        python,
        tmp_path,
        "server = Server()\nserver.run(20)\nserver.finish()",
        install={"tokens": "absent"},
    )
    (trace,) = parts(tmp_path)
    assert not {"history", "spec"} & open_trace(trace).header.records
    assert all("input_ids" not in e and "ids" not in e for e in events(trace))
    is_clean(trace)


def test_unknown_tokens_are_not_made_up(tmp_path: Path, python: Python) -> None:
    body = """
from tests.record.vllm import fake_server
plain = fake_server.config
def config(*args, **kwargs):
    made = plain(*args, **kwargs)
    made.scheduler_config.async_scheduling = True
    return made
fake_server.config = config
server = Server(executor="mp")
server.run(20)
server.finish()
"""
    done = run_recorded(python, tmp_path, body)
    assert "tokens are not recorded: the scheduler does not know them" in done.stderr
    (trace,) = parts(tmp_path)
    assert open_trace(trace).header.tokens == "absent"
    is_clean(trace)


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_changed_bytes_of_a_running_request_are_named(
    runner: str, tmp_path: Path, python: Python
) -> None:
    body = f"""
server = Server(runner={runner!r})
server.run(8)
victim = next(r for r in server.scheduler.running if r.num_computed_tokens > 6)
print(victim.request_id, server.flip_bits(victim, 5))
server.finish()
"""
    done = run_recorded(python, tmp_path, body, install={"kv_hash": "all"})
    victim, slot = done.stdout.split()
    (trace,) = parts(tmp_path)
    (finding,) = replay(trace).findings
    assert finding.cls == "payload_mutation"
    assert finding.victim == victim
    assert finding.slots == {int(slot)}
