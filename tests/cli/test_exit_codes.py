"""Exit codes and error texts of the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.attribution.events import HEAD, life, numbered
from tests.cli.conftest import EXAMPLES, ROOT, Ran
from tests.trace.helpers import write_jsonl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., Ran]

S01 = "tests/data/scenarios/S01_use_after_free.jsonl"
CLEAN = "examples/vllm_clean.kvtrace"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["replay", CLEAN], 0),
        (["replay", S01], 1),
        (["replay", S01, "--exit-zero"], 0),
        (["replay", S01, "--mode", "raise"], 1),
        (["replay"], 2),
        (["replay", S01, "--no-such-option"], 2),
        (["replay", S01, "--format", "xml"], 2),
        (["replay", S01, "--verify", "incremental", "--strict-upstream"], 2),
        (["replay", S01, "--verify", "incremental", "--backend", "triton"], 2),
        (["replay", S01, "--steps", "a:b"], 2),
        (["replay", S01, "--steps", "5:2"], 2),
        (["replay", S01, "--steps=--5:3"], 2),
        (["replay", S01, "--steps", "\u00b2"], 2),
        (["--debug", "replay", "no/such/trace.pt"], 4),
        (["replay", S01, "--capacity", "rows=8"], 2),
        (["replay", S01, "--capacity", "write_req=0"], 2),
        (["replay", S01, "--log-lines", "--format", "json"], 2),
        (["replay", "no/such/trace.pt"], 4),
        (["replay", "README.md"], 4),
        (["replay", "tests/cli"], 4),
        (["replay", S01, "--config", "no/such.yaml"], 4),
        (["replay", S01, "--steps", "100:"], 5),
        (["replay", S01, "--req", "nobody"], 5),
        (["replay", S01, "--slot", "14"], 5),
        (["replay", S01, "--slot", "99999999"], 5),
        (["replay", S01, "--slot=-3"], 5),
        (["replay", S01, "-o", "/dev/full"], 4),
        (["replay", S01, "-o", "/no/such/folder/out.txt"], 4),
    ],
)
def test_exit_code(run: Run, args: list[str], code: int) -> None:
    ran = run(*args)
    assert ran.code == code, ran.err
    assert ("Traceback" in ran.err) == ("--debug" in args)
    if code in (4, 5):
        assert ran.out == ""
        assert "error: " in ran.err


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (["--slot", "5"], 1),
        (["--req", "B"], 1),
        (["--req", "B", "--slot", "5"], 1),
        (["--slot", "6"], 5),
        (["--req", "C"], 5),
        (["--req", "A", "--slot", "5"], 5),
        (["--slot", "5", "--steps", "7:"], 5),
    ],
)
def test_filters_keep_what_was_found_without_a_forward(
    run: Run, tmp_path: Path, asked: list[str], code: int
) -> None:
    twice = [{"kind": "free", "owner": "B", "slots": [5]}] * 2
    events = [*life("A", [11, 12, 13], [1, 2, 3], row=1, step=1)]
    events += [{"kind": "alloc", "owner": "B", "slots": [5]}, *twice]
    ran = run("replay", str(write_jsonl(tmp_path / "t.jsonl", HEAD, numbered(events))), *asked)
    assert ran.code == code, ran.err
    assert ("double_free" in ran.out) == (code == 1)
    assert ("error: " in ran.err) == (code == 5)
    assert "warning" not in ran.err


def test_incremental_is_refused_where_auto_is_the_gpu(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    ran = run("replay", S01, "--verify", "incremental")
    assert (ran.code, ran.out) == (2, "")
    assert "--backend cpu" in ran.err


def test_a_bug_of_ours_is_one_line_and_code_3(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("kvcanary_cli.attribution.diagnose.diagnose_trace", fail)
    ran = run("replay", S01)
    assert ran.code == 3
    assert "internal error: ZeroDivisionError: oops" in ran.err
    assert "Traceback" not in ran.err
    debug = run("--debug", "replay", S01)
    assert debug.code == 3
    assert "Traceback" in debug.err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 7 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_too_little_memory_is_code_4(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("kvcanary_cli.attribution.diagnose.diagnose_trace", fail)
    ran = run("replay", S01)
    assert ran.code == 4
    assert "out of memory" in ran.err
    assert "internal error" not in ran.err


def test_torch_names_a_failed_allocation_as_we_expect() -> None:
    import torch

    from kvcanary_cli.errors import _is_out_of_memory

    with pytest.raises(RuntimeError) as failed:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert _is_out_of_memory(failed.value)


def test_an_interrupt_is_130(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kvcanary_cli", "replay", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert b"Traceback" not in error


def test_an_interrupt_while_the_command_is_loaded_is_130(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "kvcanary_cli.cli.app":
                signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.delitem(sys.modules, "kvcanary_cli.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    try:
        ran = run("replay", S01)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (ran.code, ran.out) == (130, "")
    assert "interrupted" in ran.err


def test_config_gives_the_capacities(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "serving.yaml"
    config.write_text("max-running-requests: 1\ncuda_graph_max_bs: 1\nchunked_prefill_size: 4\n")
    ran = run("replay", S01, "--config", str(config))
    assert "KVC-B03" in ran.out
    assert "KVC-B04" in ran.out
    assert f"from config: {config}" in ran.out


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("- a\n", "dictionary"),
        ("a: [", "serving.yaml"),
        ("model-path: x\n", "holds none of the arguments"),
        ("max-running-requests: eight\n", "serving.yaml:1"),
        ("max-runing-requests: 8\n", "max-running-requests"),
        ("max-running-requests: 8\nmax-prefill-tokens: 0\n", "max_prefill_tokens must be positive"),
    ],
)
def test_a_bad_config_is_refused(run: Run, tmp_path: Path, text: str, fragment: str) -> None:
    config = tmp_path / "serving.yaml"
    config.write_text(text)
    ran = run("replay", S01, "--config", str(config))
    assert ran.code == 4
    assert fragment in ran.err


def test_a_failed_run_leaves_the_output_file_as_it_was(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_bytes((ROOT / S01).read_bytes())
    kept = tmp_path / "kept.txt"
    kept.write_text("before")
    assert run("replay", "no/such/trace.pt", "-o", str(kept)).code == 4
    assert kept.read_text() == "before"
    assert run("replay", str(trace), "--format", "json", "-o", str(trace)).code == 1
    assert trace.read_text().startswith('{"schema_version": 1')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.txt", "t.jsonl"]


def test_words_behind_the_dashes_are_the_servers() -> None:
    from kvcanary_cli.cli.main import _without_debug

    words = ["record", "-o", "x", "--", "echo", "--debug"]
    assert _without_debug(words) == (words, False)
    assert _without_debug(["--debug", *words]) == (words, True)


@pytest.mark.parametrize(
    ("option", "args"),
    [
        ("--fault", ("inject", str(EXAMPLES / "clean_radix.pt"), "-o", "x.jsonl", "--fault")),
        ("--kinds", ("selftest", str(EXAMPLES / "clean_radix.pt"), "--kinds")),
    ],
)
def test_an_unknown_kind_of_fault_is_told_by_the_option_that_named_it(
    run: Run, option: str, args: tuple[str, ...]
) -> None:
    ran = run(*args, "no_such_kind")
    assert ran.code == 2
    assert ran.err.startswith(f"error: {option} no_such_kind: there is no such kind")


def test_usage_lines_say_what_a_command_takes(run: Run) -> None:
    first = {
        "replay": "{TRACE}...",
        "inject": "[TRACE]",
        "selftest": "{TRACE}",
        "record": "-- COMMAND...",
    }
    for command, argument in first.items():
        assert run(command, "--help").out.splitlines()[0].endswith(f"[OPTIONS] {argument}")


@pytest.mark.parametrize("command", ["replay", "selftest"])
@pytest.mark.parametrize("backend", ["no_such_backend", "triton"])
def test_a_backend_that_cannot_be_had_is_wrong_usage(backend: str, command: str) -> None:
    """In a process of its own: this one may run Triton's interpreter already."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-m", "kvcanary_cli", command, S01, "--backend", backend],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**env, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert ran.returncode == 2, ran.stderr
    assert "internal error" not in ran.stderr
    assert backend in ran.stderr
