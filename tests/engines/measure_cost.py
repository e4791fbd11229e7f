"""What recording costs on SGLang's CPU engine: CPU time with the recorder over without it.

    python tests/engines/measure_cost.py [rounds]

CPU time, not wall time, so that other work on the machine counts little; the rounds alternate.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.engines.runs import HERE, engine_env
from tests.engines.setup_sglang import default_folder, set_up

MODES: dict[str, dict[str, Any] | None] = {
    "off": None,
    "recorded": {},
    "with --kv-hash partial": {"kv_hash": "partial"},
    "with --kv-hash all": {"kv_hash": "all"},
}
_LOAD = {"requests": 40, "gap": 4, "new_tokens": [10, 60]}


def measure(options: dict[str, Any] | None) -> dict[str, float]:
    """One run; CPU seconds of the scheduler's thread and of the process, each per forward."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record = None if options is None else str(folder / "run.kvtrace")
        run = {"folder": name, "record": record, "record_options": options or {}, **_LOAD}
        (folder / "run.json").write_text(json.dumps(run))
        subprocess.run(
            [
                str(set_up(default_folder())),
                str(HERE / "sglang_driver.py"),
                str(folder / "run.json"),
            ],
            env=engine_env(),
            check=True,
            capture_output=True,
            timeout=600,
        )
        result = json.loads((folder / "result.json").read_text())
        size = sum(p.stat().st_size for p in folder.glob("run.kvtrace/*/*"))
    count = result["forwards"]
    return {
        "thread": result["thread_s"] / count,
        "process": result["process_s"] / count,
        "bytes": size / count,
    }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in MODES}
    for _ in range(rounds):
        for name, options in MODES.items():
            taken[name].append(measure(options))

    def median(name: str, what: str) -> float:
        return statistics.median(one[what] for one in taken[name])

    lines = [
        "| run | scheduler's thread, ms a forward | ratio | whole process, ms a forward | ratio "
        "| trace, bytes a forward |",
        "|---|---|---|---|---|---|",
    ]
    for name in MODES:
        cells = [name]
        for what in ("thread", "process"):
            cells.append(f"{median(name, what) * 1000:.2f}")
            cells.append(f"{median(name, what) / median('off', what):.2f}")
        cells.append(f"{median(name, 'bytes'):,.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
