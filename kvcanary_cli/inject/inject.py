"""Put faults into a trace and write it with its ground truth beside it."""

from __future__ import annotations

import json
import os
import random
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcanary_cli.errors import InputError, NothingCheckedError, UsageError
from kvcanary_cli.inject.clean_run import CleanRun
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.inject.planting import build
from kvcanary_cli.trace.reader import open_trace
from kvcanary_cli.trace.writer import STDOUT, SUFFIXES, open_writer

if TYPE_CHECKING:
    from kvcanary_cli.inject.planting import Built, FaultKind

Event = dict[str, Any]
#: Draws before a kind, or a wished-for step, counts as impossible.
_DRAWS = 200


def load_run(path: str) -> CleanRun:
    """Read a whole trace into memory as a run to put faults into.

    Raises:
        InputError: The trace cannot be used.
        NothingCheckedError: It holds no forward.
    """
    reader = open_trace(path)
    events = [event for segment in reader.segments() for event in segment.events()]
    run = CleanRun(dict(reader.header.raw), events)
    if not run.forwards:
        raise NothingCheckedError(
            f"{path}: the trace holds no forward of the target worker",
            hint="`kvcanary trace info` shows what it holds",
        )
    return run


def fault_kind(name: str, *, option: str = "--fault") -> FaultKind:
    """The kind called ``name``, which ``option`` gave.

    Raises:
        UsageError: There is none.
    """
    kind = KINDS.get(name)
    if kind is None:
        raise UsageError(
            f"{option} {name}: there is no such kind", hint="`kvcanary inject --list` names them"
        )
    return kind


def require_records(name: str, kind: FaultKind, records: frozenset[str]) -> None:
    """Refuse a kind whose records a trace lacks.

    Raises:
        NothingCheckedError: Some are missing.
    """
    missing = sorted(kind.needs - records)
    if missing:
        raise NothingCheckedError(
            f"{name}: a {kind.name} fault needs records that the trace lacks: {', '.join(missing)}",
            hint=f"the trace records {', '.join(sorted(records))}",
        )


def refuse_existing(target: str, *, overwrite: bool) -> None:
    """Refuse to write where something stands already, or where nothing can be written.

    Raises:
        UsageError: It is stdout, or the trace or its truth exists, and ``overwrite`` is not given.
        InputError: There is no such folder.
    """
    if target == STDOUT:
        raise UsageError(
            "-o -: the ground truth is written beside the trace, which needs a name for that",
            hint="write a file; `kvcanary trace convert FILE -` prints it",
        )
    for path in (Path(target), truth_name(target)):
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists already", hint="give another name, or --overwrite")
    try:
        os.scandir(Path(target).parent).close()
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(target: str, error: OSError) -> InputError:
    return InputError(
        f"{target}: cannot be written: {error.strerror or error}",
        hint="choose another path for -o",
    )


def inject_faults(
    run: CleanRun, kind: FaultKind, *, step: int | None, seed: int, count: int, name: str
) -> tuple[list[Event], list[Built]]:
    """Plant ``count`` faults of one kind, one behind the other.

    Args:
        run: The clean run.
        kind: What to plant.
        step: First step at which the first fault shall be seen; None = anywhere.
        seed: Of every choice.
        count: Faults.
        name: How messages call the trace.

    Returns:
        The events, numbered, and the faults.

    Raises:
        NothingCheckedError: The trace lacks what the fault needs.
    """
    require_records(name, kind, run.records)
    rng = random.Random(zlib.crc32(kind.name.encode()) ^ seed)
    built: list[Built] = []
    taken: set[int] = set()
    for number in range(count):
        wanted = step if number == 0 else None
        one = _draw(run, kind, rng, wanted, taken)
        if one is None:
            raise NothingCheckedError(
                f"{name}: the run offers no occasion for "
                + (f"{count} faults" if number else "a fault")
                + f" of kind {kind.name}"
                + (f": only {number} found room" if number else "")
                + ("" if wanted is None else f" that shows at step {wanted}"),
                hint="try another --seed, --at or --fault",
            )
        events = [*run.events[: one.first], *one.tail]
        built = [_moved(earlier, run, one) for earlier in built]
        built.append(one)
        taken |= one.planted.slots
        run = CleanRun(run.header, events)
    return run.events, built


def _draw(
    run: CleanRun, kind: FaultKind, rng: random.Random, step: int | None, taken: set[int]
) -> Built | None:
    for _ in range(_DRAWS):
        planted = kind.plant(run, rng)
        if planted is None or planted.slots & taken:
            continue
        if step is None or planted.step == step:
            return build(run, planted)
    return None


def _moved(earlier: Built, run: CleanRun, later: Built) -> Built:
    """An earlier fault's causes and step, renumbered by a later one's edits."""
    from dataclasses import replace

    edits = later.planted.edits
    _tail, places = edits.tail()
    new_number = {
        run.events[place]["i"]: event["i"]
        for event, place in zip(later.tail, places, strict=True)
        if place is not None
    }
    new_step = {
        run.events[place]["step"]: event["step"]
        for event, place in zip(later.tail, places, strict=True)
        if place is not None and event["kind"] == "forward"
    }
    step = earlier.planted.step
    planted = replace(earlier.planted, step=None if step is None else new_step.get(step, step))
    causes = [new_number.get(i, i) for i in earlier.causes]
    return replace(earlier, causes=causes, planted=planted)


def truth_dict(kind: FaultKind, built: Built) -> dict[str, Any]:
    """The ground truth of one fault as the JSON beside the trace."""
    planted = built.planted
    return {
        "fault": kind.name,
        "class": planted.cls or kind.cls,
        "subtypes": sorted(planted.subtypes),
        "first_bad_step": planted.step,
        "cause_events": built.causes,
        "victims": sorted(planted.victims),
        "culprits": sorted(c for c in planted.culprits if c is not None),
        "slots": sorted(planted.slots),
        "what": planted.note,
    }


def write_injected(
    run: CleanRun,
    events: list[Event],
    built: list[Built],
    kind: FaultKind,
    target: str,
    *,
    source: str,
    seed: int,
    overwrite: bool,
) -> Path:
    """Write the trace and its truth.

    Returns:
        The path of the truth.

    Raises:
        UsageError: The suffix is unknown, or a file exists.
        InputError: The file system refuses.
    """
    header = _second_rank(run.header) if kind.several_ranks else dict(run.header)
    refuse_existing(target, overwrite=overwrite)
    truth_path = truth_name(target)
    try:
        with open_writer(target, header, overwrite=overwrite) as writer:
            for event in events:
                writer.write_event(event)
    except OSError as error:
        raise _unwritable(target, error) from error
    truth = {
        "schema_version": 1,
        "trace": Path(target).name,
        "source": Path(source).name,
        "seed": seed,
        "faults": [truth_dict(kind, one) for one in built],
    }
    if kind.several_ranks:
        truth["compare_with"] = Path(source).name
    try:
        truth_path.write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(str(truth_path), error) from error
    return truth_path


def truth_name(target: str) -> Path:
    """``BAD.truth.json`` for ``BAD.jsonl.zst``."""
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if target.endswith(suffix):
            return Path(target[: -len(suffix)] + ".truth.json")
    return Path(target + ".truth.json")


def _second_rank(header: Event) -> Event:
    """The header of the next tensor-parallel rank of the same replica."""
    rank = {"tp": 0, "tp_size": 1, "pp": 0, "pp_size": 1, "dp": 0, "dp_size": 1}
    rank |= header.get("rank", {})
    rank |= {"tp": rank["tp"] + 1, "tp_size": max(rank["tp_size"], rank["tp"] + 2)}
    return header | {"rank": rank}
