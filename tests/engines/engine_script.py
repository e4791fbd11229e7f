"""A whole SGLang engine with its own processes: ``python engine_script.py FOLDER``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))


def main() -> None:
    import sglang

    from tests.engines.tiny_model import make_model

    engine = sglang.Engine(
        model_path=str(make_model(Path(sys.argv[1]) / "model")),
        device="cpu",
        load_format="dummy",
        attention_backend="torch_native",
        disable_cuda_graph=True,
        sampling_backend="pytorch",
        grammar_backend="none",
        dtype="bfloat16",
        skip_server_warmup=True,
        random_seed=1,
        max_total_tokens=512,
        max_running_requests=8,
        chunked_prefill_size=32,
    )
    prompts = [[5 + k % 7 for k in range(20)] + [100 + r, 200 + r] for r in range(8)]
    outputs = engine.generate(
        input_ids=prompts,
        sampling_params={"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True},
    )
    sys.stdout.write(f"answers {len(outputs)}\n")
    sys.stdout.flush()
    # The engine's processes are killed with this one: what they did in the last second is lost.
    time.sleep(2)
    os._exit(3)


if __name__ == "__main__":
    main()
