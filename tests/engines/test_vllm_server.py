"""A real vLLM server whose workers are other processes, recorded by both ways in."""

from __future__ import annotations

import json
import random
import signal
import stat
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from kvcanary_cli.trace.reader import open_trace
from tests.engines.driving import prompts_of
from tests.engines.environment import ROOT
from tests.engines.server import KEY, Server, finished, free_port
from tests.engines.setup_vllm import ENVIRONMENT
from tests.engines.vllm_runs import HERE, engine_env
from tests.engines.waiting import wait_until
from tests.record.helpers import events, replay, steps

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REQUESTS = 40
LOAD = {
    "requests": REQUESTS,
    "prefix_families": 4,
    "prompt_tokens": [8, 160],
    "new_tokens": [40, 90],
}
_SERVED = (
    "--load-format dummy --enforce-eager --block-size 32 --num-gpu-blocks-override 64 "
    "--dtype bfloat16 --max-model-len 512 --max-num-seqs 8 --max-num-batched-tokens 64 "
    f"--host 127.0.0.1 --api-key {KEY}"
)


def _way_in(way: str, port: int) -> tuple[list[str], Mapping[str, str]]:
    """The command and environment that have a server recorded into ``run.kvtrace``."""
    python = str(ENVIRONMENT.python)
    # `vllm serve` of the CPU build does not start: it asks for a package called vllm.
    server = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", "model"]
    server += [*_SERVED.split(), "--port", str(port)]
    if way == "variable":
        return server, engine_env(KVCANARY_RECORD="run.kvtrace")
    record = [python, "-m", "kvcanary_cli", "record", "-o", "run.kvtrace", "--"]
    return [*record, *server], engine_env()


@pytest.mark.parametrize(("way", "number"), [("command", "SIGINT"), ("variable", "SIGTERM")])
def test_a_server_is_recorded_from_its_start_to_its_end(
    way: str, number: str, tmp_path: Path
) -> None:
    model = [str(ENVIRONMENT.python), str(HERE / "vllm_model.py"), str(tmp_path / "model")]
    subprocess.run(model, check=True, cwd=ROOT)
    port = free_port()
    command, env = _way_in(way, port)
    prompts = prompts_of(LOAD, random.Random(1))
    bodies = [
        {"model": "model", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True}
        for prompt, n in prompts
    ]
    recording = tmp_path / "run.kvtrace"

    with Server(command, port, tmp_path, env) as server:
        server.wait_until_ready()
        answers = server.ask_all("/v1/completions", bodies)
        wait_until(lambda: finished(recording) >= REQUESTS, tmp_path, server.said)
        status = server.stop(getattr(signal, number))
    said = server.said()
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [n for _, n in prompts]
    assert status == 0, said[-4000:]
    assert "runs the model in other processes" in said
    (trace,) = recording.iterdir()
    header = open_trace(trace).header
    assert header.tokens == "salted"
    assert not header.starts_mid_run
    assert any("derived" in what for what in header.not_recorded)
    assert KEY not in json.dumps(header.raw)
    assert stat.S_IMODE((tmp_path / "run.kvtrace.key").stat().st_mode) == 0o600
    kinds = Counter(event["kind"] for event in events(trace))
    assert kinds["finish"] == REQUESTS
    assert kinds["match"] > REQUESTS // 8
    assert len(steps(trace)) >= 300
    diagnosis = replay(trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings
    assert diagnosis.verdict == "clean"
    assert diagnosis.replay.coverage.entries_verified > 10_000
    assert any("derived" in note for note in diagnosis.replay.coverage.notes)
