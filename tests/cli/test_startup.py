"""The command line starts without the heavy libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "numba", "numpy")


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        *(
            [command, "--help"]
            for command in (
                "replay",
                "trace",
                "record",
                "inspect",
                "inject",
                "selftest",
                "explain",
                "check-capacities",
                "suggest-flags",
            )
        ),
        ["explain", "KVC-B03"],
        ["check-capacities", "configs/low_cuda_graph_max_bs.yaml"],
        ["suggest-flags", "configs/low_cuda_graph_max_bs.yaml", "--peak-batch-size", "8"],
    ],
)
def test_quick_commands_import_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys\n"
        "from kvcanary_cli.cli.main import main\n"
        f"status = main({args!r})\n"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "assert not heavy, heavy\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 5), done.stderr


def test_reading_jsonl_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from kvcanary_cli.cli.main import main\n"
        "status = main(['trace', 'validate', 'tests/data/scenarios/S01_use_after_free.jsonl'])\n"
        "assert 'torch' not in sys.modules\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version_is_the_packages(run) -> None:  # type: ignore[no-untyped-def]
    from kvcanary_cli import __version__

    ran = run("--version")
    assert (ran.code, ran.out) == (0, f"kvcanary {__version__}\n")


@pytest.mark.parametrize(
    "command",
    [["replay"], ["trace", "info"], ["trace", "cut"], ["trace", "convert"], ["trace", "validate"]],
)
def test_help_ends_with_examples(run, command: list[str]) -> None:  # type: ignore[no-untyped-def]
    text = run(*command, "--help").out
    examples = text[text.index("Examples:") :]
    assert examples.count(f"kvcanary {' '.join(command)}") >= 2
