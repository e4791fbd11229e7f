"""A real SGLang server, recorded by both ways in, asked over HTTP, and told to end."""

from __future__ import annotations

import random
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.engines.driving import prompts_of
from tests.engines.environment import ROOT
from tests.engines.runs import engine_env
from tests.engines.server import (
    KEY,
    RECORDING,
    Server,
    clean_recording,
    finished,
    free_port,
    way_in,
)
from tests.engines.setup_sglang import ENVIRONMENT
from tests.engines.sglang_run import ON_CPU
from tests.engines.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS = 40
# The server's own health check is a request of another name.
_OF_LOAD = "req-"
LOAD = {
    "requests": REQUESTS,
    "prefix_families": 4,
    "prompt_tokens": [8, 90],
    "new_tokens": [20, 60],
}


def _model(folder: Path) -> Path:
    """The tiny model; written by the environment that has a tokenizer's library."""
    code = (
        "import sys, pathlib\n"
        "from tests.engines.tiny_model import make_model\n"
        "make_model(pathlib.Path(sys.argv[1]))\n"
    )
    python = str(ENVIRONMENT.python)
    subprocess.run([python, "-c", code, str(folder / "model")], check=True, cwd=ROOT)
    return folder / "model"


def _launch(model: Path, port: int) -> list[str]:
    words = [str(ENVIRONMENT.python), "-m", "sglang.launch_server", "--model-path", str(model)]
    words += ["--host", "127.0.0.1", "--port", str(port), "--api-key", KEY]
    words += ["--nccl-port", str(free_port())]
    for name, value in ON_CPU.items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return words


@pytest.mark.parametrize("way", ["command", "variable"])
def test_a_server_is_recorded_from_its_start_to_its_end(way: str, tmp_path: Path) -> None:
    port = free_port()
    command, variables = way_in(way, ENVIRONMENT.python, _launch(_model(tmp_path), port))
    prompts = prompts_of(LOAD, random.Random(1))
    bodies = [
        {
            "rid": f"req-{k}",
            "input_ids": prompt,
            "sampling_params": {"max_new_tokens": n, "temperature": 0.0, "ignore_eos": True},
        }
        for k, (prompt, n) in enumerate(prompts)
    ]
    recording = tmp_path / RECORDING

    with Server(command, port, tmp_path, engine_env(**variables)) as server:
        server.wait_until_ready()
        answers = server.ask_all("/generate", bodies)
        wait_until(lambda: finished(recording, _OF_LOAD) >= REQUESTS, tmp_path, server.said)
        status = server.stop(signal.SIGTERM)
    said = server.said()
    assert [len(answer["output_ids"]) for answer in answers] == [n for _, n in prompts]
    # SGLang's server answers a SIGTERM by ending in good order.
    assert status == 0, said[-4000:]
    assert "recording into" in said
    clean_recording(recording, REQUESTS, _OF_LOAD)
