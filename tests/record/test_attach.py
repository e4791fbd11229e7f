"""How the recorder gets into an engine's processes, and that it stays out of others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvcanary_cli.record.launch import HOOK_FOLDER
from kvcanary_cli.trace.reader import open_trace
from tests.record.fake_sglang import write_package
from tests.record.helpers import WAIT_S, events, parts, replay, steps

if TYPE_CHECKING:
    from collections.abc import Callable

SERVER = Path(__file__).with_name("fake_server.py")
_SHOW_PATCHED = """
import sglang.srt.managers.scheduler as s, sglang.srt.mem_cache.allocator.token as t
for hooked in (s.Scheduler.__init__, t.TokenToKVPoolAllocator.free):
    print(hasattr(hooked, "__wrapped__"))
"""


def _record(folder: Path, *command: str, options: tuple[str, ...] = ()) -> list[str]:
    return [
        sys.executable,
        "-m",
        "kvcanary_cli",
        "record",
        "-o",
        str(folder / "run.kvtrace"),
        *options,
        "--",
        *command,
    ]


def _run(
    env: dict[str, str], command: list[str], **kwargs: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False, **kwargs
    )  # type: ignore[call-overload,no-any-return]


def test_a_recorded_server_replays_clean(tmp_path: Path, engine_env: dict[str, str]) -> None:
    options = ("--kv-hash", "all", "--tokens", "salted")
    done = _run(
        engine_env,
        _record(tmp_path, sys.executable, str(SERVER), "70", options=options),
    )
    assert done.returncode == 0, done.stderr
    assert "forward 70" in done.stdout
    (trace,) = parts(tmp_path)
    header = open_trace(trace).header
    assert (header.engine_name, header.engine_version) == ("sglang", "0.5.23")
    assert header.tokens == "salted"
    assert "sk-secret" not in json.dumps(header.raw)
    assert header.serving_args is not None
    assert header.serving_args["max_running_requests"] == 4
    assert steps(trace) == list(range(70))
    diagnosis = replay(trace)
    assert diagnosis.verdict == "clean"
    assert diagnosis.replay.coverage.kv_hashes > 0
    command = [sys.executable, "-m", "kvcanary_cli", "replay", str(tmp_path / "run.kvtrace")]
    assert _run(engine_env, command).returncode == 0


def test_no_token_of_the_vocabulary_is_in_a_salted_recording(
    tmp_path: Path, engine_env: dict[str, str]
) -> None:
    done = _run(engine_env, _record(tmp_path, sys.executable, str(SERVER), "14"))
    assert done.returncode == 0, done.stderr
    (trace,) = parts(tmp_path)
    vocabulary = set(range(200_000))
    fed = [e["input_ids"] for e in events(trace) if e["kind"] == "forward"]
    told = [e["ids"] for e in events(trace) if e["kind"] == "history"]
    assert fed
    assert told
    assert not vocabulary & {token for ids in (*fed, *told) for token in ids}
    # Both requests had the same prompt, and that much is still to be seen.
    prefills = [ids for ids in fed if len(ids) == 4]
    assert len(prefills) == 2
    assert prefills[0] == prefills[1]
    key = Path(f"{tmp_path}/run.kvtrace.key").read_bytes()
    assert all(key not in path.read_bytes() for path in trace.iterdir())


def test_unset_nothing_is_patched(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    code = "from kvcanary_cli.record.sglang import plugin; plugin()\n" + _SHOW_PATCHED
    assert python(code).stdout.split() == ["False", "False"]


def test_the_plugin_records_with_the_variable_alone(
    tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    env = {"KVCANARY_RECORD": str(tmp_path / "run.kvtrace")}
    # SGLang loads its plugins when most of its modules are there already.
    code = (
        "import sglang.srt.managers.scheduler, sglang.srt.managers.schedule_batch as b\n"
        "from kvcanary_cli.record.sglang import plugin; plugin()\n"
        + _SHOW_PATCHED
        + "print(hasattr(b.alloc_for_decode, '__wrapped__'))\n"
    )
    assert python(code, env=env).stdout.split() == ["True", "True", "True"]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(
    "env",
    [
        {"KVCANARY_RECORD": "no-such-ending"},
        {"KVCANARY_RECORD": "run.kvtrace", "KVCANARY_RECORD_OPTIONS": "[]"},
        {"KVCANARY_RECORD": "run.kvtrace", "KVCANARY_RECORD_OPTIONS": '{"tokens": "rare"}'},
        {"KVCANARY_RECORD": "run.kvtrace", "KVCANARY_RECORD_OPTIONS": '{"ring_bytes": "x"}'},
    ],
)
def test_no_setting_of_the_plugin_stops_a_server(
    engine: str, env: dict[str, str], python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = f"from kvcanary_cli.record.{engine} import plugin; plugin(); print('goes on')"
    done = python(code, env=env)
    assert done.stdout.split() == ["goes", "on"], done.stderr
    assert "kvcanary: not recording: " in done.stderr


def test_the_plugin_answers_the_signal_that_keeps_a_ring(
    tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Also in a process that has no trace yet; without a handler the signal would end it."""
    options = {"triggers": ["signal"], "ring_bytes": 1 << 20}
    env = {
        "KVCANARY_RECORD": str(tmp_path / "run.kvtrace"),
        "KVCANARY_RECORD_OPTIONS": json.dumps(options),
    }
    code = (
        "import os, signal\n"
        "from kvcanary_cli.record.vllm import plugin; plugin()\n"
        "os.kill(os.getpid(), signal.SIGUSR2); print('goes on')\n"
    )
    assert python(code, env=env).stdout.split() == ["goes", "on"]


def test_the_entry_point_is_declared() -> None:
    import tomllib
    from importlib import import_module

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["sglang.srt.plugins"]["kvcanary"].partition(":")
    assert callable(getattr(import_module(module), name))


def test_install_from_a_program_and_attach_late(
    tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = f"""
from tests.record.fake_server import FakeServer
server = FakeServer()
first = server.start()
from kvcanary_cli.record.sglang import install
recorder = install({str(tmp_path / "run.kvtrace")!r}, tokens="raw")
for _ in range(5):
    server.decode([first])
second = server.start()
server.decode([first, second])
server.finish(first)
server.finish(second)
server.start(prefix=server.scheduler.tree_cache.held[:3])
recorder.close()
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    (trace,) = parts(tmp_path)
    assert open_trace(trace).header.starts_mid_run
    kinds = [event["kind"] for event in events(trace)]
    assert {"map", "alloc", "free", "own", "match", "finish", "row_release"} <= set(kinds)
    diagnosis = replay(trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings


def test_the_hook_starts_without_the_engine_or_numpy(
    python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    env = {
        "PYTHONPATH": os.pathsep.join([str(HOOK_FOLDER), str(Path(__file__).parents[2])]),
        "KVCANARY_RECORD": str(tmp_path / "run.kvtrace"),
    }
    code = "import sys; print([m for m in ('torch', 'numpy', 'sglang') if m in sys.modules])"
    done = python(code, env=env)
    assert done.stdout.strip() == "[]"
    assert not done.stderr
    assert not (tmp_path / "run.kvtrace").exists()


def test_an_existing_sitecustomize_still_runs(tmp_path: Path, engine_env: dict[str, str]) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['SITE_RAN'] = '1'\n")
    env = {**engine_env, "PYTHONPATH": f"{tmp_path}{os.pathsep}{engine_env['PYTHONPATH']}"}
    code = "import os, sitecustomize; print(os.environ['SITE_RAN'], sitecustomize.__file__)"
    done = _run(env, _record(tmp_path, sys.executable, "-c", code))
    assert done.stdout.split() == ["1", str(tmp_path / "sitecustomize.py")]
    assert "nothing was recorded" in done.stderr


@pytest.mark.parametrize("status", [0, 1, 7])
def test_the_exit_status_is_the_commands(
    status: int, tmp_path: Path, engine_env: dict[str, str]
) -> None:
    command = _record(tmp_path, sys.executable, "-c", f"raise SystemExit({status})")
    assert _run(engine_env, command).returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_command(
    number: signal.Signals, tmp_path: Path, engine_env: dict[str, str]
) -> None:
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda n, f: sys.exit(40 + n))\n"
        "print('ready', flush=True)\n"
        f"time.sleep({WAIT_S})\n"
    )
    process = subprocess.Popen(
        _record(tmp_path, sys.executable, "-c", code),
        env=engine_env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.wait(WAIT_S) == 40 + number
    process.stdout.close()


def test_death_by_a_signal_is_told_as_a_shell_does(
    tmp_path: Path, engine_env: dict[str, str]
) -> None:
    code = "import os; os.kill(os.getpid(), 9)"
    assert _run(engine_env, _record(tmp_path, sys.executable, "-c", code)).returncode == 137


@pytest.mark.parametrize(
    ("command", "words"),
    [((), "no command to record"), (("no-such-command",), "command not found: no-such-command")],
)
def test_wrong_usage_is_said(
    command: tuple[str, ...], words: str, tmp_path: Path, engine_env: dict[str, str]
) -> None:
    done = _run(engine_env, _record(tmp_path, *command))
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file/run.kvtrace", "Not a directory"),
        ("keyless.kvtrace", "expected the 32 bytes of a recording's key, found 3"),
    ],
)
def test_a_place_that_cannot_be_recorded_into_is_said_before_the_server_starts(
    place: str, words: str, tmp_path: Path, engine_env: dict[str, str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "keyless.kvtrace.key").write_bytes(b"abc")
    before = sorted(tmp_path.iterdir())
    command = _record(tmp_path, sys.executable, "-c", "print('started')")
    command[command.index("-o") + 1] = str(tmp_path / place)
    done = _run(engine_env, command)
    assert done.returncode == 4
    assert words in done.stderr
    assert not done.stdout
    assert sorted(tmp_path.iterdir()) == before


def test_a_command_without_an_engine_leaves_nothing_behind(
    tmp_path: Path, engine_env: dict[str, str]
) -> None:
    command = _record(tmp_path / "new" / "folders", sys.executable, "-c", "print('started')")
    done = _run(engine_env, command)
    assert done.returncode == 0
    assert "nothing was recorded" in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_unknown_version_says_what_is_missing_and_runs_on(
    tmp_path: Path, engine_env: dict[str, str]
) -> None:
    write_package(tmp_path / "engine", version="0.9.0", without="checkpoint_into_tree")
    paths = [str(tmp_path / "engine"), str(Path(__file__).parents[2])]
    env = {**engine_env, "PYTHONPATH": os.pathsep.join(paths)}
    done = _run(env, _record(tmp_path, sys.executable, str(SERVER), "14"))
    assert done.returncode == 0, done.stderr
    assert "SGLang 0.9.0 is not a version that was tried" in done.stderr
    where = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache.checkpoint_into_tree"
    assert f"no hook at {where}: {where.replace(':', '.')} does not exist" in done.stderr
    # Its whole class is missing there.
    assert "MLATokenToKVPool.move_kv_cache does not exist" in done.stderr
    assert "'alloc' is not recorded" in done.stderr
    (trace,) = parts(tmp_path)
    header = open_trace(trace).header
    assert header.engine_version == "0.9.0"
    assert not {"alloc", "prefix"} & header.records
    assert {"forward", "map", "history"} <= header.records
    assert steps(trace) == list(range(14))


def test_a_fault_in_a_hook_does_not_reach_the_engine(
    tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = f"""
from kvcanary_cli.record.sglang import install
from kvcanary_cli.record.sglang.follow import Follower
recorder = install({str(tmp_path / "run.kvtrace")!r}, tokens="raw")
from tests.record.fake_server import FakeServer
server = FakeServer()
req = server.start()
server.decode([req])
def broken(self, *args, **kwargs):
    raise KeyError("broken")
Follower.before_forward = broken
for _ in range(5):
    server.decode([req])
server.finish(req)
print("served", len(req.output_ids))
"""
    done = python(code)
    assert done.stdout.strip() == "served 6", done.stderr
    assert done.stderr.count("recording ends") == 1
    (trace,) = parts(tmp_path)
    assert steps(trace) == [0, 1]
    assert events(trace)[-1]["kind"] == "recording_ended"


def test_a_freed_live_slot_is_named(
    tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = f"""
from kvcanary_cli.record.sglang import install
recorder = install({str(tmp_path / "run.kvtrace")!r}, tokens="raw")
from tests.record.fake_server import FakeServer
server = FakeServer()
req = server.start()
for _ in range(3):
    server.decode([req])
row = server.scheduler.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
allocator = server.scheduler.token_to_kv_pool_allocator
allocator.free(row[2:3].long())
allocator.pages = allocator.pages.flip(0)
other = server.start()
server.decode([req, other])
recorder.close()
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    (trace,) = parts(tmp_path)
    diagnosis = replay(trace)
    assert [finding.cls for finding in diagnosis.findings] == ["use_after_free"]
    (finding,) = diagnosis.findings
    assert finding.victim == "r0"
    assert set(finding.slots) == {3}
    assert "read_of_foreign" in {rule.what for rule in diagnosis.ownership}
