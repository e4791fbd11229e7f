"""What recording costs on an engine's CPU backend.

    python tests/engines/measure_cost.py sglang|vllm [ROUNDS]

CPU time of the thread that schedules: within the recorder's hooks, and beside them. It says more
than runs with and without the recorder, which differ by more than that on a machine with other
work. Ways of recording take turns, ROUNDS times; a round before these compiles what is compiled on
first use, and does not count. A ratio is of one run's two times; medians are shown.
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

from tests.engines import runs, setup_sglang, setup_vllm, vllm_runs
from tests.engines.environment import ROOT

MODES: dict[str, dict[str, Any]] = {
    "without fingerprints": {},
    "with --kv-hash partial": {"kv_hash": "partial"},
    "with --kv-hash all": {"kv_hash": "all"},
}
_LOAD = {"requests": 40, "gap": 4, "new_tokens": [10, 60]}
_ENGINES = ("sglang", "vllm")


def _run(engine: str, description: Path) -> None:
    """Have the engine's driver do the run that is described there."""
    here = ROOT / "tests" / "engines"
    if engine == "sglang":
        command = [str(setup_sglang.ENVIRONMENT.python), str(here / "sglang_driver.py"), "1"]
        env, asked = runs.engine_env(), f"{description}\n"
    else:
        command = [str(setup_vllm.ENVIRONMENT.python), str(here / "vllm_driver.py")]
        command.append(str(description))
        env, asked = vllm_runs.engine_env(VLLM_ENABLE_V1_MULTIPROCESSING="0"), ""
    subprocess.run(command, input=asked, env=env, check=True, capture_output=True, text=True)


def measure(engine: str, options: dict[str, Any]) -> dict[str, float]:
    """One run, per forward: CPU seconds beside the hooks, in them, and bytes of the trace."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record = str(folder / "run.kvtrace")
        run = {"folder": name, "record": record, "record_options": options, **_LOAD}
        (folder / "run.json").write_text(json.dumps(run))
        _run(engine, folder / "run.json")
        result = json.loads((folder / "result.json").read_text())
        size = sum(p.stat().st_size for p in folder.glob("run.kvtrace/*/*"))
    count = result["forwards" if engine == "sglang" else "launches"]
    beside = result["thread_s"] - result["hook_s"]
    return {
        "engine": beside / count * 1000,
        "hooks": result["hook_s"] / count * 1000,
        "ratio": result["thread_s"] / beside,
        "bytes": size / count,
    }


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in _ENGINES:
        sys.exit(__doc__)
    engine, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in MODES}
    for number in range(rounds + 1):
        for name, options in MODES.items():
            one = measure(engine, options)
            if number:
                taken[name].append(one)
    lines = [
        "| recording | engine, ms a forward | hooks, ms a forward | ratio "
        "| trace, bytes a forward |",
        "|---|---|---|---|---|",
    ]
    for name, each in taken.items():
        one = {what: statistics.median(run[what] for run in each) for what in each[0]}
        lines.append(
            f"| {name} | {one['engine']:.2f} | {one['hooks']:.2f} | {one['ratio']:.2f} "
            f"| {one['bytes']:,.0f} |"
        )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
