"""vLLM's routes for adapters over a real seedling: what is loaded from disk is what samples are drawn with."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from palmette.zoo.load import load_policy
from tests.dialects import Manner, _route
from tests.fake_policy import FakeModel

BASE = "/models/zoo/seedling"


def differs(solution: str) -> float:
    """Reward responses differently, whatever they say: short ones too give a signal."""
    return sum(map(ord, solution)) % 11 / 10


class LoraServer(FakeModel):
    """The fake model of a loopback server, with adapters by name. `history` tells what was loaded and unloaded."""

    def __init__(self) -> None:
        self._base, self.tokenizer = load_policy("seedling")
        super().__init__(tokenizer=self.tokenizer)
        self._lock = threading.Lock()
        self._asked = threading.local()
        self.adapters: dict[str, Any] = {}
        self.history: list[str] = []
        self.answers_as: str | None = None
        """The name under which answers come, None for that of the adapter that was asked."""
        self.takes_adapters = True
        self.lost_after: int | None = None
        """Adapters are gone after so many completions, once, as if the server had been restarted."""
        self.completions = 0
        self.temperature: float | None = None
        """That of log-probabilities after temperature, None for those before it."""

    def manner(self) -> Manner:
        mode = "raw_logprobs" if self.temperature is None else "processed_logprobs"
        return Manner(
            "vllm", model=BASE, tokenizer=self.tokenizer, fake=self, context_tokens=2048, routes=self.routes,
            logprobs_mode=mode,
        )  # fmt: skip

    def routes(self, path: str, asked: Any) -> tuple[int, Any] | None:
        with self._lock:
            if path == "/v1/models":
                names = [BASE, *self.adapters]
                return 200, {"data": [{"id": name, "root": name, "max_model_len": 2048} for name in names]}
            if path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter") and self.takes_adapters:
                return self._changed(path, asked["lora_name"], asked.get("lora_path"))
            if path != "/v1/completions":
                return None
            self.completions += 1
            if self.completions == self.lost_after:
                self.adapters.clear()
                self.history.append("lost")
            name = asked["model"]
            if name not in (BASE, *self.adapters):
                return 404, {"error": {"message": f"The model `{name}` does not exist.", "code": 404}}
            self._asked.model = self.adapters.get(name, self._base)
            status, answer = _route(self.manner(), path, {**asked, "model": BASE}, 0)
            return status, {**answer, "model": self.answers_as or name}

    def _changed(self, path: str, name: str, folder: str | None) -> tuple[int, Any]:
        if folder is None:
            self.history.append(f"-{name}")
            return (200, "Success") if self.adapters.pop(name, None) else (404, {"error": {"message": "not found"}})
        if name in self.adapters:
            return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}}
        assert {path.name for path in Path(folder).iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
        self.adapters[name] = PeftModel.from_pretrained(load_policy("seedling")[0], folder).eval()
        self.history.append(f"+{name}")
        return 200, "Success"

    def draw(self, seed: int, prompt: Sequence[int], written: Sequence[int]) -> tuple[int, float]:
        """Draw a token with the model that was asked, hotter than it is: short responses would all be the same."""
        path = (*prompt, *written)
        with torch.inference_mode():
            logits_V = self._asked.model(torch.tensor([path])).logits[0, -1]
        logprobs_V = torch.log_softmax(logits_V / (self.temperature or 1.0), dim=-1)
        generator = torch.Generator().manual_seed(hash((seed, len(written))) % 2**63)
        token = int(torch.multinomial((logprobs_V / 4).exp(), 1, generator=generator))
        return token, float(logprobs_V[token])
