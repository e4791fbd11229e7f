"""Drives the fake vLLM; imported in processes where ``vllm`` is the fake one.

python fake_server.py [STEPS]
"""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

BLOCK = 4
SECRET_SALT = "salt-of-a-user"


class Request:
    """What the engine keeps about a request."""

    def __init__(self, name: str, prompt: list[int], new_tokens: int, salt: str | None) -> None:
        self.request_id, self.num_prompt_tokens = name, len(prompt)
        self.all_token_ids = list(prompt)
        self.num_computed_tokens = 0
        self.cache_salt, self.lora_request = salt, None
        self.status = SimpleNamespace(name="RUNNING")
        self._length = len(prompt) + new_tokens

    def done(self) -> bool:
        del self.all_token_ids[self._length :]
        return len(self.all_token_ids) >= self._length


def config(blocks: int = 24, **scheduler: Any) -> Any:
    """An engine's configuration."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model="m", max_model_len=48, enable_prompt_embeds=False, dtype="bfloat16"
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks=blocks, block_size=BLOCK, enable_prefix_caching=True
        ),
        scheduler_config=SimpleNamespace(
            max_num_seqs=4, max_num_batched_tokens=16, async_scheduling=False, **scheduler
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, data_parallel_size=1),
        speculative_config=None,
        kv_transfer_config=SimpleNamespace(kv_connector=f"http://user:{SECRET_SALT}@host/x"),
    )


class Server:
    """An engine core and requests with shared prefixes."""

    def __init__(self, seed: int = 1, blocks: int = 24, **core: Any) -> None:
        from vllm.v1.engine.core import EngineCore

        self.random = random.Random(seed)
        self.core = EngineCore(config(blocks), **core)
        self.scheduler = self.core.scheduler
        self.families = [[self.random.randrange(3, 90) for _ in range(20)] for _ in range(2)]
        self.sent = 0

    def send(self, new_tokens: int | None = None, salt: str | None = None) -> Request:
        """One request."""
        shared = self.random.choice(self.families)[: self.random.randint(0, 20)]
        tail = [self.random.randrange(3, 90) for _ in range(self.random.randint(1, 8))]
        request = Request(
            f"r{self.sent}", shared + tail, new_tokens or self.random.randint(2, 12), salt
        )
        self.sent += 1
        self.scheduler.add_request(request)
        return request

    def run(self, steps: int, *, gap: int = 2, drafts: bool = False) -> None:
        """Run ``steps`` steps; two requests arrive at every ``gap``-th."""
        for k in range(steps):
            if k % gap == 0:
                self.send()
                self.send()
            if drafts:
                self._propose()
            self.core.step()

    def finish(self) -> None:
        """Run until no request is left."""
        while self.scheduler.running or self.scheduler.waiting:
            self.core.step()

    def _propose(self) -> None:
        from vllm.v1.worker.gpu_model_runner import sample

        for request in self.scheduler.running:
            said = list(request.all_token_ids)
            for _ in range(self.random.choice((2, 2, 2, 1))):
                said += sample(SimpleNamespace(all_token_ids=said), 1)
                if self.random.random() < 0.3:
                    said[-1] = 1
            self.scheduler.drafts[request.request_id] = said[len(request.all_token_ids) :]


def main() -> None:
    server = Server()
    server.run(int(sys.argv[1]))
    server.finish()
    sys.stdout.write(f"answered {server.sent}\n")
    server.core.shutdown()


if __name__ == "__main__":
    main()
