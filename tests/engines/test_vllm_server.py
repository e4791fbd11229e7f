"""A real vLLM server whose workers are other processes, recorded by both ways in."""

from __future__ import annotations

import random
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.engines.driving import prompts_of
from tests.engines.environment import ROOT
from tests.engines.server import (
    KEY,
    RECORDING,
    Server,
    clean_recording,
    clean_worker,
    finished,
    free_port,
    verdict,
    way_in,
)
from tests.engines.setup_vllm import ENVIRONMENT
from tests.engines.vllm_runs import HERE, engine_env
from tests.engines.waiting import wait_until
from tests.record.helpers import events

if TYPE_CHECKING:
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


def _launch(port: int, workers: int) -> list[str]:
    # `vllm serve` of the CPU build does not start: it asks for a package called vllm.
    words = [str(ENVIRONMENT.python), "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", "model", *_SERVED.split(), "--port", str(port)]
    return [*words, "--tensor-parallel-size", str(workers)]


@pytest.mark.parametrize(
    ("way", "number", "workers", "layers"),
    [("command", "SIGINT", 2, ""), ("variable", "SIGTERM", 1, "hybrid")],
)
def test_a_server_is_recorded_from_its_start_to_its_end(
    way: str, number: str, workers: int, layers: str, tmp_path: Path
) -> None:
    """By its engine core, which derives what the workers run, and by each worker."""
    model = [str(ENVIRONMENT.python), str(HERE / "vllm_model.py"), str(tmp_path / "model")]
    model += [layers] * bool(layers)
    subprocess.run(model, check=True, cwd=ROOT)
    port = free_port()
    command, variables = way_in(way, ENVIRONMENT.python, _launch(port, workers))
    prompts = prompts_of(LOAD, random.Random(1))
    bodies = [
        {"model": "model", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True}
        for prompt, n in prompts
    ]
    recording = tmp_path / RECORDING

    with Server(command, port, tmp_path, engine_env(**variables)) as server:
        server.wait_until_ready()
        answers = server.ask_all("/v1/completions", bodies)
        wait_until(lambda: finished(recording) >= REQUESTS, tmp_path, server.said)
        status = server.stop(getattr(signal, number))
    said = server.said()
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [n for _, n in prompts]
    assert status == 0, said[-4000:]
    assert "runs the model in other processes" in said
    ranks = [f"tp{k}-pp0-dp0" for k in range(workers)]
    assert {path.stem for path in recording.iterdir()} == {"core-dp0", *ranks}
    for rank in ranks:
        clean_worker(recording, rank)
    fed = {e["reqs"][0] for e in events(recording / f"{ranks[0]}.kvtrace") if "reqs" in e}
    assert any(name.endswith("/group-1") for name in fed) == (layers == "hybrid")
    assert f"{workers + 1} traces" in verdict(recording)
    coverage = clean_recording(recording, REQUESTS, rank="core-dp0").replay.coverage
    assert any("derived" in what for what in coverage.not_recorded)
    assert any("derived" in note for note in coverage.notes)
