"""``kvcanary trace``: exit codes, what goes to which stream, and closed pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trace.helpers import (
    SCENARIOS,
    jsonl_text,
    read_events,
    small_trace,
    write_jsonl,
    write_trace,
)

_ROOT = Path(__file__).parents[2]
_SCENARIO = SCENARIOS / "S13_pad_or_dummy_write.jsonl"


def _run(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "kvcanary_cli", "trace", *map(str, arguments)],
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        input=stdin,
        capture_output=True,
        check=False,
    )


def test_info_as_text_and_json() -> None:
    done = _run("info", _SCENARIO)
    assert done.returncode == 0, done.stderr
    assert b"pool use    owned slots: min 4 (27%), median 6 (40%), max 7 (47%)" in done.stdout
    assert done.stderr == b""
    out = json.loads(_run("info", _SCENARIO, "--format", "json").stdout)
    assert out["schema_version"] == 1
    assert out["command"] == "trace info"
    assert out["events"] == 32
    assert out["forwards"][0] == {"worker": "target", "forward_mode": "DECODE", "count": 3}


def test_info_of_a_folder_of_ranks_and_parts(tmp_path: Path) -> None:
    run = tmp_path / "run.kvtrace"
    run.mkdir()
    header, events = small_trace()
    names = ["tp0-pp0-dp0.kvtrace", "tp0-pp0-dp0.2.kvtrace", "tp1-pp0-dp0.kvtrace"]
    for name in names:
        rank = {"tp": int(name[2]), "tp_size": 2}
        write_trace(run / name, {**header, "rank": rank}, events)
    done = _run("info", run)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert all(f"trace       {run / name}" in text for name in names)
    assert text.splitlines()[-1].startswith(f"3 traces of 2 ranks: {3 * len(events)} events, ")
    out = json.loads(_run("info", run, "--format", "json").stdout)
    assert out["command"] == "trace info"
    assert sorted(Path(t["trace"]["path"]).name for t in out["traces"]) == sorted(names)
    assert all(t["events"] == len(events) for t in out["traces"])
    # One that cannot be read does not hide the others.
    (run / names[2] / "manifest.json").write_text("{")
    damaged = _run("info", run)
    assert damaged.returncode == 4
    assert f"trace       {run / names[0]}" in damaged.stdout.decode()
    assert names[2].encode() in damaged.stderr


def test_info_of_a_folder_without_traces(tmp_path: Path) -> None:
    done = _run("info", tmp_path)
    assert done.returncode == 4
    assert b"the folder holds no trace" in done.stderr


def test_info_from_stdin() -> None:
    done = _run("info", "-", stdin=_SCENARIO.read_bytes())
    assert done.returncode == 0
    assert b"<stdin>" in done.stdout


def test_validate_accepts(tmp_path: Path) -> None:
    header, events = small_trace()
    events[3]["i"] = 9
    odd = write_jsonl(tmp_path / "odd.jsonl", header, events)
    done = _run("validate", _SCENARIO, odd)
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()
    assert lines[0] == f"{_SCENARIO}: ok, checked 32 events, 5 forwards, 11 tokens"
    assert lines[1] == f"{odd}: ok, checked 4 events, 2 forwards, 7 tokens"
    assert b"warning: " in done.stderr
    assert b"6 events were lost while recording" in done.stderr
    out = json.loads(_run("validate", odd, "--format", "json").stdout)
    assert out["traces"][0]["notes"] == ["6 events were lost while recording (6 after i=2)"]


def test_validate_refuses_and_still_checks_the_rest(tmp_path: Path) -> None:
    header, events = small_trace()
    events[3]["positions"] = [99, 0]
    bad = write_jsonl(tmp_path / "bad.jsonl", header, events)
    done = _run("validate", bad, _SCENARIO)
    assert done.returncode == 4
    assert b"ok, checked 32 events" in done.stdout
    assert f"error: {bad}:5: 'forward' field 'positions'[0] is 99".encode() in done.stderr
    assert b"help: " in done.stderr
    assert b"Traceback" not in done.stderr


def test_an_empty_trace_checks_nothing(tmp_path: Path) -> None:
    empty = write_jsonl(tmp_path / "a.jsonl", small_trace()[0], [])
    assert _run("validate", empty).returncode == 5
    assert _run("info", empty).returncode == 0


@pytest.mark.parametrize("command", ["info", "validate"])
def test_a_file_that_is_not_there(command: str) -> None:
    done = _run(command, "nowhere.pt")
    assert done.returncode == 4
    assert done.stdout == b""
    assert b"nowhere.pt: cannot be read: No such file or directory" in done.stderr


def test_convert(tmp_path: Path) -> None:
    target = tmp_path / "a.pt"
    done = _run("convert", _SCENARIO, target)
    assert done.returncode == 0
    assert done.stdout.decode() == f"{_SCENARIO} -> {target}: 32 events\n"
    assert read_events(target) == read_events(_SCENARIO)
    again = _run("convert", _SCENARIO, target)
    assert again.returncode == 2
    assert b"exists already" in again.stderr
    assert b"--overwrite" in again.stderr
    assert _run("convert", _SCENARIO, target, "--overwrite").returncode == 0
    assert _run("convert", _SCENARIO, tmp_path / "a.csv").returncode == 2
    assert _run("convert", _SCENARIO, tmp_path / "none" / "a.jsonl").returncode == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pt"]


def test_convert_through_pipes(tmp_path: Path) -> None:
    done = _run("convert", "-", "-", stdin=_SCENARIO.read_bytes())
    assert done.returncode == 0
    assert done.stdout == _SCENARIO.read_bytes()
    assert done.stderr == b"<stdin> -> -: 32 events\n"


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    header, events = small_trace()
    many = [{"kind": "finish", "i": 10 + k, "req": "A" * 100} for k in range(20_000)]
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl_text(header, events + many))
    with subprocess.Popen(
        [sys.executable, "-m", "kvcanary_cli", "trace", "convert", str(path), "-"],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    assert b"Error" not in errors
    # How much arrived is not known, so no number is made up.
    last = errors.decode().splitlines()[-1]
    assert last == f"{path} -> -: stopped before its end, the reader of stdout is gone"


@pytest.mark.parametrize(
    "arguments", [["convert", "IN", "-"], ["cut", "IN", "-o", "-", "--steps", "2:"]]
)
def test_a_pipe_that_is_closed_from_the_start_is_no_error(
    tmp_path: Path, arguments: list[str]
) -> None:
    header, events = small_trace()
    # More than any buffer holds: the header itself does not get through.
    header["serving_args"] = {"model_path": "x" * 300_000}
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl_text(header, events))
    reading, writing = os.pipe()
    os.close(reading)
    words = [str(path) if word == "IN" else word for word in arguments]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kvcanary_cli", "trace", *words],
            cwd=_ROOT,
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.returncode == 0, done.stderr
    assert b"rror" not in done.stderr


@pytest.mark.parametrize("command", ["info", "validate", "convert"])
def test_help_ends_with_examples(command: str) -> None:
    done = _run(command, "--help")
    assert done.returncode == 0
    tail = done.stdout.decode().partition("Examples:")[2]
    assert tail.count(f"kvcanary trace {command}") >= 2
