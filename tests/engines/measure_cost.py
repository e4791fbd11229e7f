"""What recording costs on SGLang's CPU engine.

    python tests/engines/measure_cost.py [rounds]

CPU time of the scheduler's thread: within the recorder's hooks, and beside them. It says more than
runs with and without the recorder, which differ by more than that on a machine with other work.
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

MODES: dict[str, dict[str, Any]] = {
    "without fingerprints": {},
    "with --kv-hash partial": {"kv_hash": "partial"},
    "with --kv-hash all": {"kv_hash": "all"},
}
_LOAD = {"requests": 40, "gap": 4, "new_tokens": [10, 60]}


def measure(options: dict[str, Any]) -> dict[str, float]:
    """One run, per forward: CPU seconds beside the hooks, in them, and bytes of the trace."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record = str(folder / "run.kvtrace")
        run = {"folder": name, "record": record, "record_options": options, **_LOAD}
        (folder / "run.json").write_text(json.dumps(run))
        subprocess.run(
            [str(set_up(default_folder())), str(HERE / "sglang_driver.py"), "1"],
            input=f"{folder / 'run.json'}\n",
            env=engine_env(),
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        )
        result = json.loads((folder / "result.json").read_text())
        size = sum(p.stat().st_size for p in folder.glob("run.kvtrace/*/*"))
    count = result["forwards"]
    return {
        "engine": (result["thread_s"] - result["hook_s"]) / count,
        "hooks": result["hook_s"] / count,
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
        "| recording | engine, ms a forward | hooks, ms a forward | ratio "
        "| trace, bytes a forward |",
        "|---|---|---|---|---|",
    ]
    for name in MODES:
        engine, hooks = median(name, "engine") * 1000, median(name, "hooks") * 1000
        lines.append(
            f"| {name} | {engine:.2f} | {hooks:.2f} | {1 + hooks / engine:.2f} "
            f"| {median(name, 'bytes'):,.0f} |"
        )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
