"""Text of the ``trace`` commands' results, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.report.words import count
from kvcanary_cli.trace.fields import printable
from kvcanary_cli.trace.header import MAX_LEFT_OUT
from kvcanary_cli.trace.pool_use import SERIES_POINTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcanary_cli.trace.convert import Conversion
    from kvcanary_cli.trace.info import TraceInfo, Validation

_BARS = "▁▂▃▄▅▆▇█"
_LABEL_WIDTH = 12


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL_WIDTH}}{text}"


def bytes_text(size_bytes: int) -> str:
    """A size with the unit that keeps it short."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("GiB ends the loop")


def sparkline(series: Sequence[int], top: int) -> str:
    """A line of bars, at most ``SERIES_POINTS`` wide; ``top`` is a full bar."""
    step = -(-len(series) // SERIES_POINTS) if series else 1
    points = [max(series[k : k + step]) for k in range(0, len(series), step)]
    full = len(_BARS) - 1
    return "".join(_BARS[min(full, value * full // max(1, top))] for value in points)


def info_lines(info: TraceInfo) -> Iterator[str]:
    """``trace info``."""
    header, pool = info.header, info.header.pool
    size = "" if info.size_bytes is None else f" ({bytes_text(info.size_bytes)})"
    yield _line("trace", info.path + size)
    yield _line("sha256", info.sha256)
    version = f" {printable(header.engine_version)}" if header.engine_version else ""
    rank = ", ".join(
        f"{name} {header.rank[name]}/{header.rank[f'{name}_size']}" for name in ("tp", "pp", "dp")
    )
    yield _line("engine", f"{printable(header.engine_name)}{version}, {rank}")
    if header.created_at:
        yield _line("recorded", printable(header.created_at))
    swa = f", sliding window {pool.swa_window} over {pool.swa_slots:,} slots" * bool(pool.swa_slots)
    yield _line(
        "pool",
        f"{count(pool.slots, 'slot')} in pages of {pool.page_size}, table {pool.rows:,} x "
        f"{pool.row_len:,}{swa}",
    )
    yield _line("tokens", header.tokens)
    yield _line("records", ", ".join(printable(r) for r in sorted(header.records)) or "nothing")
    for what in header.not_recorded:
        yield _line("leaves out", printable(what, MAX_LEFT_OUT))
    if header.starts_mid_run:
        yield _line("begins", "mid-run: slots may hold content that the trace did not see written")
    yield _line("events", count(sum(info.events.values()), "event"))
    yield from _table([(printable(name), f"{n:,}") for name, n in info.events.items()])
    yield from _activity(info)
    yield from _pool_use(info)
    if info.families:
        yield _line("in memory", "by family")
    yield from _table(
        [
            (name, f"{bytes_text(size.size_bytes)} ({count(size.values, 'value')})")
            for name, size in info.families.items()
        ]
    )


def infos_line(infos: Sequence[TraceInfo]) -> str:
    """What several traces hold together, the last line of ``trace info`` of a folder."""
    events = sum(sum(info.events.values()) for info in infos)
    ranks = len({tuple(sorted(info.header.rank.items())) for info in infos})
    lost = sum(info.notes.missing_events for info in infos)
    sizes = sum(info.size_bytes or 0 for info in infos)
    missing = f", {count(lost, 'lost event')}" * bool(lost)
    return (
        f"{count(len(infos), 'trace')} of {count(ranks, 'rank')}: {count(events, 'event')}, "
        f"{bytes_text(sizes)}{missing}"
    )


def _activity(info: TraceInfo) -> Iterator[str]:
    if info.first_step is not None:
        yield _line("steps", f"{info.first_step} to {info.last_step} ({info.steps:,} distinct)")
        yield _line("forwards", count(info.tokens, "token"))
        yield from _table(
            [
                (mode if worker == "target" else f"{mode} ({worker})", f"{n:,}")
                for (worker, mode), n in info.forwards.items()
            ]
        )
    yield _line(
        "requests",
        f"{info.requests:,} ({info.finished:,} finished, {info.retracted:,} retracted, "
        f"{info.aborted:,} aborted)",
    )
    if info.first_t is not None and info.last_t is not None:
        yield _line("time", f"{(info.last_t - info.first_t) / 1e9:.3f} s")


def _pool_use(info: TraceInfo) -> Iterator[str]:
    use = info.pool_use
    if use is None:
        return
    slots = info.header.pool.slots
    shares = [
        f"{value:,} ({value / slots:.0%})" for value in (use.minimum, use.median, use.maximum)
    ]
    yield _line("pool use", "owned slots: min {}, median {}, max {}".format(*shares))
    yield _line("", sparkline(use.series, slots))


def _table(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        yield f"  {name:<{width}}  {text}"


def validation_line(result: Validation) -> str:
    """One trace of ``trace validate``."""
    return (
        f"{result.path}: ok, checked {count(result.events, 'event')}, "
        f"{count(result.forwards, 'forward')}, {count(result.tokens, 'token')}"
    )


def conversion_line(result: Conversion) -> str:
    """``trace convert``."""
    events = count(result.events, "event")
    if result.stopped:
        events = "stopped before its end, the reader of stdout is gone"
    return f"{result.source} -> {result.target}: {events}"
