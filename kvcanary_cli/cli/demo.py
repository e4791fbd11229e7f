"""``kvcanary demo``: a real corruption, replayed from a trace inside the package."""

from __future__ import annotations

from pathlib import Path

from kvcanary_cli.cli.output import Output

DEMO_TRACE = Path(__file__).resolve().parents[1] / "data" / "demo_double_free.jsonl.zst"
_MAX_ROWS = 12


def demo() -> None:
    """Replay a small real trace in which a live slot was freed, and say what to try next."""
    from kvcanary_cli.cli.replay_run import run_replays
    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.report import replay_text

    out = Output()
    out.note(
        "This trace was recorded from SGLang 0.5.23. At step 40 one slot of a running request was\n"
        "put back on the free list, and the next allocation handed it to another token."
    )
    report = run_replays([str(DEMO_TRACE)], ReplayOptions(), out)
    for part in replay_text.render(report, width=out.width, max_rows=_MAX_ROWS, verbose=False):
        out.print(part)
    out.note(
        "\nTry next:\n"
        f"  kvcanary replay {DEMO_TRACE} --max-rows 0\n"
        f"  kvcanary replay {DEMO_TRACE} --mode raise\n"
        f"  kvcanary replay {DEMO_TRACE} --format json | python -m json.tool | less\n"
        f"  kvcanary trace info {DEMO_TRACE}"
    )
