"""Run the selftest on every clean capture and refresh the figures of docs/selftest.md.

    python tests/tools/selftest_figures.py [--seeds 200] [--jobs N] [--results DIR]

The matrices are kept in ``--results`` as JSON; one that is there already is taken as it is, so that
a run that was interrupted goes on where it stopped. ``--checkout`` measures another working copy;
the document that is refreshed is this one's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "selftest.md"
CLEAN = (
    "canary_clean_all",
    "swa_canary_clean",
    "ngram_clean",
    "vllm_clean",
    "clean_mixed_chunk",
    "clean_page16",
    "clean_radix",
)
HEADING = "## Figures\n"
COUNTS = ("detected", "step_right", "cls_right", "subtype_right", "culprit_right")
_ENDED_WELL = (0, 1)

Value = dict[str, Any]


def share(part: int, whole: int) -> str:
    """In percent, rounded down: 100% means all."""
    if part == whole:
        return "100%"
    return f"{part * 1000 // whole / 10}%"


def measure(name: str, target: Path, *, checkout: Path, seeds: int, jobs: int | None) -> None:
    """Run the selftest of one capture; its matrix goes to ``target``.

    Raises:
        SystemExit: It ended otherwise than with a whole matrix.
    """
    trace = checkout / "tests" / "data" / "captures" / f"{name}.jsonl.zst"
    command = [sys.executable, "-m", "kvcanary_cli", "selftest", str(trace), "--seeds", str(seeds)]
    command += ["--backend", "cpu", "--format", "json", "-q", "-o", str(target)]
    if jobs is not None:
        command += ["--jobs", str(jobs)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    begun = time.monotonic()
    done = subprocess.run(command, cwd=checkout, env=environment, check=False)
    if done.returncode not in _ENDED_WELL:
        target.unlink(missing_ok=True)
        raise SystemExit(f"{name}: the selftest ended with status {done.returncode}")
    print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)


def matrix_part(name: str, matrix: Value) -> list[str]:
    """The table of one capture."""
    planted = [line for line in matrix["kinds"] if line["runs"]]
    lines = [
        f"### `{name}`: {matrix['runs']} faults, "
        f"{matrix['false_alarms']} false alarms on the clean trace",
        "",
        "| fault | class | runs | detected | first step | class right | sub-type | culprit |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for line in planted:
        shares = [share(line[count], line["runs"]) for count in COUNTS]
        lines.append(
            f"| {' | '.join([line['fault'], line['class'], str(line['runs']), *shares])} |"
        )
    shares = [share(matrix[count], matrix["runs"]) for count in COUNTS]
    lines += [f"| {' | '.join(['**total**', '', str(matrix['runs']), *shares])} |", ""]
    few = [
        f"{line['fault']} ({line['runs']} in {line['draws']} draws)"
        for line in planted
        if line["runs"] < matrix["seeds"]
    ]
    if few:
        lines += [f"All different faults that the run offers: {', '.join(few)}.", ""]
    out = [f"{k['fault']} ({k['not_planted']})" for k in matrix["kinds"] if "not_planted" in k]
    if out:
        lines += [f"Not planted: {'; '.join(out)}.", ""]
    return lines


def wrong_part(matrices: dict[str, Value]) -> list[str]:
    """What was missed or given another class, by capture and kind."""
    rows = []
    for name, matrix in matrices.items():
        for line in matrix["kinds"]:
            missed = line["runs"] - line["detected"]
            wrong = line["runs"] - line["cls_right"]
            if not wrong:
                continue
            said = Counter(w["said"].split(" ")[0] or "no finding" for w in line["wrong"])
            told = ", ".join(f"{what} ({n})" for what, n in said.most_common())
            rows.append(f"| {name} | {line['fault']} | {missed} | {wrong - missed} | {told} |")
    if not rows:
        return ["Nothing was missed or given another class.", ""]
    head = "| trace | fault | missed | another class | what was said |"
    return ["### Missed, or another class", "", head, "|---|---|---:|---:|---|", *rows, ""]


def figures(matrices: dict[str, Value]) -> str:
    """The section of the document."""
    total = {
        count: sum(matrix[count] for matrix in matrices.values()) for count in ("runs", *COUNTS)
    }
    runs = total["runs"]
    seeds = max(matrix["seeds"] for matrix in matrices.values())
    lines = [
        HEADING,
        f"Batches of real engines on a CPU (SGLang 0.5.23, vLLM 0.32.0), cpu backend, {seeds} "
        "different faults a kind, or all that the run offers where that is fewer.",
        "",
        f"Over all traces: {runs} faults, {share(total['detected'], runs)} detected, first step "
        f"right in {share(total['step_right'], runs)}, class in "
        f"{share(total['cls_right'], runs)}, sub-type in {share(total['subtype_right'], runs)}, "
        f"culprit and cause event in {share(total['culprit_right'], runs)}.",
        "",
        *wrong_part(matrices),
    ]
    for name, matrix in matrices.items():
        lines += matrix_part(name, matrix)
    return "\n".join(lines)


def with_figures(document: str, section: str) -> str:
    """The document with another section of figures.

    Raises:
        ValueError: It has none.
    """
    start = document.index(HEADING)
    end = document.find("\n## ", start + len(HEADING))
    rest = "" if end < 0 else document[end + 1 :]
    return (
        document[:start] + section + ("\n" if rest and not section.endswith("\n\n") else "") + rest
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, default=ROOT, help="Working copy to measure.")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--jobs", type=int, help="Processes at once; default one a core.")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "selftest")
    parser.add_argument("captures", nargs="*", metavar="CAPTURE", help="Default: all clean ones.")
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    matrices = {}
    for name in args.captures or CLEAN:
        target = args.results.resolve() / f"{name}.json"
        if not target.exists():
            measure(
                name, target, checkout=args.checkout.resolve(), seeds=args.seeds, jobs=args.jobs
            )
        matrices[name] = json.loads(target.read_text(encoding="utf-8"))
    document = with_figures(DOCUMENT.read_text(encoding="utf-8"), figures(matrices))
    DOCUMENT.write_text(document, encoding="utf-8")
    print(f"{DOCUMENT}: figures of {len(matrices)} captures")


if __name__ == "__main__":
    main()
