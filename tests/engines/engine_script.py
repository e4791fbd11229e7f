"""A whole SGLang engine with its own processes: ``python engine_script.py FOLDER``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))


def main() -> None:
    import sglang

    from tests.engines.server import finished
    from tests.engines.sglang_run import ON_CPU
    from tests.engines.tiny_model import make_model

    engine = sglang.Engine(
        model_path=str(make_model(Path(sys.argv[1]) / "model")),
        random_seed=1,
        **ON_CPU,
    )
    prompts = [[5 + k % 7 for k in range(20)] + [100 + r, 200 + r] for r in range(8)]
    outputs = engine.generate(
        input_ids=prompts,
        sampling_params={"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True},
    )
    sys.stdout.write(f"answers {len(outputs)}\n")
    sys.stdout.flush()
    # The engine's processes are killed with this one: what is not on the disk by then is lost.
    recording = Path(os.environ["KVCANARY_RECORD"])
    while finished(recording) < len(prompts):
        time.sleep(0.1)
    os._exit(3)


if __name__ == "__main__":
    main()
