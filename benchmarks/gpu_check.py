"""Check and time the triton backend on a GPU: one command, under four minutes.

    python benchmarks/gpu_check.py [--golden DIR] [--out FILE] [--cases N] [--interpret]

From a checkout with kvcanary installed. In this order:

1. every golden file, on the device, to the bit;
2. random cases against the reference backend, seeded; writes whose requests touch each other's
   slots are run many times over, since a race need not show at once;
3. a whole plan, verify and write step captured in a CUDA graph: replays equal the eager step;
4. time of verify, write, plan and the whole step at 4,000,000 entries, each beside its predicted
   floor: the device's own copy bandwidth, or the latency of its hash chain.

``--interpret`` is a dry run of all of it on the CPU in Triton's interpreter: few cases, tiny sizes,
no graph, and times that mean nothing.
Exit status 0 all equal, 1 a difference, 2 wrong usage, 5 no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

_ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(_ROOT))

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.backends.interface import Backend

EXIT_EQUAL, EXIT_DIFFERENT, EXIT_NO_GPU = 0, 1, 5

_SEED = 20
_CASES = {"plan": 300, "scatter": 100, "verify": 250, "write": 250, "real_kv_hash": 40}
# The layout of the sources is compiled in, which takes a good part of a second each time, so only
# the first cases of an operation keep theirs.
_CASES_WITH_SOURCES = 40
_INTERPRETED_CASES = 3
_RACE_CASES = 40
_RACE_REPEATS = 20
_GRAPH_REPLAYS = 5
_INTERPRETED_REPLAYS = 1


def random_differences(
    backend: Backend, cases: dict[str, int], seed: int = _SEED
) -> Iterator[str | None]:
    """One result a case: None, or the first difference to the reference in words."""
    from kvcanary_cli.backends import get_backend
    from tests.backends._cases import RANDOM_CASES, Case

    reference = get_backend("reference")
    for op, count in cases.items():
        for i in range(count):
            case = RANDOM_CASES[op](random.Random(f"{seed}-{op}-{i}"))
            if i >= _CASES_WITH_SOURCES and "real_kv_sources" in case.inputs:
                case = Case(op, {**case.inputs, "real_kv_sources": []})
            want = case.run(reference)
            text = case.difference(want, case.run(backend), in_order=False)
            yield text and f"{op} case {seed}-{op}-{i}: {text}"


def race_differences(
    backend: Backend, cases: int, repeats: int, seed: int = _SEED
) -> Iterator[str | None]:
    """Writes of many rows into few slots, each run over and over."""
    from kvcanary_cli.backends import get_backend
    from tests.backends._cases import Case

    reference = get_backend("reference")
    for i in range(cases):
        case = Case("write", clashing_write(random.Random(f"{seed}-race-{i}")))
        want = case.run(reference)
        for _ in range(repeats):
            text = case.difference(want, case.run(backend), in_order=False)
            yield text and f"race case {seed}-race-{i}: {text}"


def clashing_write(rng: random.Random) -> dict[str, Any]:
    """Inputs of a write whose rows seed from and write to the same few slots, slot 0 among them."""
    import torch

    rows, num_slots = rng.choice([4, 40, 200]), rng.choice([8, 64])
    lens = [rng.choice([0, 1, 1, 2, 5]) for _ in range(rows)]
    num_tokens = sum(lens)
    # Half of the cases only ever clash in slot 0, which is the path without a conflict.
    only_padding = rng.random() < 0.5
    tokens = torch.Generator().manual_seed(rng.randrange(1 << 30))

    def draw(low: int, high: int, count: int) -> torch.Tensor:
        return torch.randint(low, high, (count,), generator=tokens)

    locs = (
        torch.zeros(num_tokens, dtype=torch.int64)
        if only_padding
        else draw(0, num_slots, num_tokens)
    )
    offsets = torch.tensor([sum(lens[:r]) for r in range(rows + 1)], dtype=torch.int64)
    return {
        "canary_buf": draw(0, 256, num_slots * 32).to(torch.uint8).view(num_slots, 32),
        "kernel_kind": 0,
        "violation_ring": torch.full((4 * num_tokens + 1, 8), -3, dtype=torch.int64),
        "violation_write_index": torch.zeros(1, dtype=torch.int32),
        "slot_run_counter": torch.zeros(1, dtype=torch.int64),
        "kernel_run_counter": torch.zeros(1, dtype=torch.int64),
        "real_kv_sources": [],
        "real_kv_hash_mode": 0,
        "write_offsets": offsets,
        "write_seed_slot_indices": draw(1, num_slots, rows)
        if only_padding
        else draw(-1, num_slots, rows),
        "write_num_valid_reqs": torch.tensor([rows], dtype=torch.int32),
        "input_ids": draw(0, 1 << 40, num_tokens),
        "positions": draw(0, 9, num_tokens),
        "out_cache_loc": locs,
        "enable_chain_position_assert": torch.ones(1, dtype=torch.int32),
        "enable_write_input_assert": False,
        "expected_input_tokens": None,
        "expected_input_positions": None,
    }


def golden_differences(backend: Backend, folder: Path, limit: int | None) -> Iterator[str | None]:
    """One result a golden file."""
    from tests.tools.run_golden import check_golden_file

    for path in sorted(folder.glob("*.pt"))[:limit]:
        result = check_golden_file(path, backend)
        yield result.difference and f"{path.name}: {result.difference}"


class _Report:
    """What was checked, as lines on stdout and as one JSON document."""

    def __init__(self) -> None:
        self.content: dict[str, Any] = {"checks": []}
        self.failed = False

    def check(self, name: str, results: Iterator[str | None]) -> None:
        started = time.perf_counter()
        outcomes = list(results)
        wrong = [text for text in outcomes if text]
        # A check that compared nothing has shown nothing.
        ok = bool(outcomes) and not wrong
        self.failed |= not ok
        seconds = time.perf_counter() - started
        verdict = "equal" if ok else f"{len(wrong)} DIFFERENT"
        print(f"{name:<28} {len(outcomes):>5} compared, {verdict} ({seconds:.0f} s)", flush=True)
        for text in wrong[:5]:
            print(f"    {text}")
        self.content["checks"].append(
            {"name": name, "compared": len(outcomes), "different": wrong[:20]}
        )


def versions(device: str) -> dict[str, str]:
    """GPU, driver and the versions that a figure depends on."""
    import torch
    import triton

    import kvcanary_cli

    found = {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "kvcanary": kvcanary_cli.__version__,
        "gpu": "none (Triton's interpreter)",
        "driver": "-",
    }
    if device != "cpu":
        from benchmarks.gpu_timing import driver_version

        found["gpu"] = torch.cuda.get_device_name()
        found["driver"] = driver_version()
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--golden", type=Path, default=_ROOT / "tests" / "data" / "golden")
    parser.add_argument("--out", type=Path, help="also write the results there, as JSON")
    parser.add_argument("--cases", type=int, help="random cases an operation")
    parser.add_argument("--golden-limit", type=int, help="only the first so many golden files")
    parser.add_argument("--interpret", action="store_true", help="no GPU: equality only")
    args = parser.parse_args(argv)
    if args.interpret:
        # Read when the kernels are defined, below.
        os.environ["TRITON_INTERPRET"] = "1"

    import torch

    if not args.interpret and not torch.cuda.is_available():
        print("gpu_check: torch sees no GPU; use --interpret for the equality checks on the CPU")
        return EXIT_NO_GPU
    from kvcanary_cli.backends import get_backend

    backend = get_backend("triton", "cpu" if args.interpret else "cuda")
    report = _Report()
    report.content["versions"] = versions(backend.device)
    print("  ".join(f"{name} {value}" for name, value in report.content["versions"].items()))

    cases = dict.fromkeys(_CASES, _INTERPRETED_CASES) if args.interpret else dict(_CASES)
    if args.cases is not None:
        cases = dict.fromkeys(_CASES, args.cases)
    races = (2, 1) if args.interpret else (_RACE_CASES, _RACE_REPEATS)
    golden_limit = args.golden_limit
    report.check("golden files", golden_differences(backend, args.golden, golden_limit))
    report.check("random cases", random_differences(backend, cases))
    report.check("requests that clash", race_differences(backend, *races))
    from benchmarks.gpu_graph import graph_differences
    from benchmarks.gpu_timing import DRY, FULL, TABLE_HEAD, time_everything

    replays = _INTERPRETED_REPLAYS if args.interpret else _GRAPH_REPLAYS
    report.check("graph replay", graph_differences(backend, replays))
    figures = time_everything(backend, DRY if args.interpret else FULL)
    report.content["dry_run"] = args.interpret
    report.content["figures"] = [asdict(f) | {"floor_us": f.floor_us} for f in figures]
    if args.interpret:
        print("dry run: nothing was captured, and these times mean nothing; a GPU is needed")
    print(TABLE_HEAD)
    for figure in figures:
        print(figure)
    if args.out is not None:
        args.out.write_text(json.dumps(report.content, indent=1) + "\n", encoding="utf-8")
    return EXIT_DIFFERENT if report.failed else EXIT_EQUAL


if __name__ == "__main__":
    sys.exit(main())
