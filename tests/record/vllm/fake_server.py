"""Drives the fake vLLM; imported in processes where ``vllm`` is the fake one.

python fake_server.py [STEPS]
"""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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


class Connector:
    """Keeps the blocks of requests that have ended for some steps.

    Attributes:
        sending: Request to the steps that its blocks are still kept for; may be changed.
    """

    def __init__(self, steps: int, keeps: Callable[[Request], bool]) -> None:
        self.sending: dict[str, int] = {}
        self._steps, self._keeps = steps, keeps

    def request_finished(self, request: Request, _block_ids: list[int]) -> tuple[bool, None]:
        if not self._keeps(request):
            return False, None
        self.sending[request.request_id] = self._steps
        return True, None

    def get_finished(self, _finished: set[str]) -> tuple[list[str], None]:
        self.sending = {name: left - 1 for name, left in self.sending.items()}
        # vLLM's is a set, whose order is another in every process.
        done = [name for name, left in self.sending.items() if left <= 0]
        self.sending = {name: left for name, left in self.sending.items() if left > 0}
        return done, None


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

    def connect(
        self, steps: int = 3, keeps: Callable[[Request], bool] = lambda _request: True
    ) -> Connector:
        """From now on blocks of ended requests that ``keeps`` says are kept for ``steps`` steps."""
        self.scheduler.connector = Connector(steps, keeps)
        return self.scheduler.connector

    def flip_bits(self, request: Request, position: int) -> int:
        """Change the KV of one of the request's tokens behind the engine's back; its slot."""
        runner = self.core.model_executor.driver_worker.worker.model_runner
        block = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]
        slot = int(block[position // BLOCK]) * BLOCK + position % BLOCK
        getattr(runner, "old", runner).kv[slot // BLOCK, 1, slot % BLOCK, 0] += 1
        return slot

    def finish(self) -> None:
        """Run until no request is left and nothing is being sent."""
        while self.scheduler.requests:
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
