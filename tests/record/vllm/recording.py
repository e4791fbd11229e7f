"""Records what code does with the fake vLLM, and what its replay must say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.record.helpers import replay

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Python = Callable[..., subprocess.CompletedProcess[str]]


def run_recorded(
    python: Python, folder: Path, body: str, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Record what ``body`` does with ``Server``."""
    install = {"tokens": "raw", **options.pop("install", {})}
    done = python(
        "from kvcanary_cli.record.vllm import install\n"
        f"recorder = install({str(folder / 'run.kvtrace')!r}, **{install!r})\n"
        "from tests.record.vllm.fake_server import Server\n" + body + "\nrecorder.close()\n",
        **options,
    )
    assert done.returncode == 0, done.stderr
    assert "recording ends" not in done.stderr
    return done


def is_clean(trace: Path) -> Any:
    """The diagnosis of ``trace``, which must be clean."""
    diagnosis = replay(trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings
    assert diagnosis.verdict == "clean"
    return diagnosis
