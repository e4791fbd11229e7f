"""The vLLM adapter where tensors are on a device: it waits for nothing, and tells the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.record.helpers import events, parts, replay
from tests.record.test_async_adapters import DEVICE, DONE

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Python = Callable[..., subprocess.CompletedProcess[str]]

_VLLM = """
{device}
from kvcanary_cli.record.vllm import install
recorder = install({path!r}, tokens="raw")
from tests.record.vllm import fake_server
plain = fake_server.config
def config(*args, **kwargs):
    made = plain(*args, **kwargs)
    made.speculative_config = fake_server.SimpleNamespace(method="x", num_speculative_tokens=2)
    return made
fake_server.config = config
server = fake_server.Server(2, blocks=14, runner={runner!r})
server.connect(3)
server.run(40, gap=3)
server.run(20, gap=3, drafts=True)
server.finish()
recorder.close()
"""


def test_vllm_on_a_device_is_told_alike_and_never_waited_for(
    tmp_path: Path, python: Python
) -> None:
    told = []
    for number, (device, runner) in enumerate([("", "v1"), (DEVICE, "v1"), (DEVICE, "v2")]):
        folder = tmp_path / str(number)
        code = _VLLM.format(device=device, path=str(folder / "run.kvtrace"), runner=runner)
        done = python(code + (DONE if device else ""))
        assert done.returncode == 0, done.stderr
        assert "recording ends" not in done.stderr, done.stderr
        (trace,) = parts(folder)
        told.append(events(trace))
    assert told[0] == told[1] == told[2]
    kinds = {event["kind"] for event in told[0]}
    assert {"map", "alloc", "own", "publish", "match", "accept", "retract", "forward"} <= kinds
    assert {"transfer_begin", "transfer_end"} <= kinds
    assert not replay(trace).findings
