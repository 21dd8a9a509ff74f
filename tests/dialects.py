"""Loopback servers that speak as vLLM, SGLang and other OpenAI-compatible servers do, with a fake model behind them.

Routes, fields and odd habits are those recorded from the real servers: vLLM keeps the stop token in `token_ids` and
drops it from `text`, SGLang returns log-probabilities as `[logprob, token, null]` and refuses unknown sampling keys.
"""

import json
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fake_policy import FakeModel, FakeTokenizer

WRITES = {"vllm": "/v1/completions", "openai": "/v1/completions", "sglang": "/generate"}
_SAMPLING_KEYS = {
    *("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "sampling_seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
}


@dataclass(frozen=True)
class Fault:
    """An answer that is none: a status with a body, cut after some of its bytes, or nothing at all."""

    status: int = 200
    body: bytes | None = b""
    declared_bytes: int | None = None


@dataclass
class Manner:
    """How a server behaves. `fault` is asked for each request to write, with how many there were before."""

    dialect: str
    model: str = "/models/fake"
    context_tokens: int = 4096
    tokenizer: Any = field(default_factory=FakeTokenizer)
    fake: FakeModel = field(default_factory=FakeModel)
    fault: Callable[[int], Fault | None] = lambda count: None
    spread_seconds: float = 0.0
    """Answers come up to so much later, each as its seed has it: they arrive in another order than asked."""
    ignores_seeds: bool = False
    is_generation: bool = True
    logprobs_mode: str = "raw_logprobs"
    """vLLM's: of a token that is left alone by top-k the log-probability is 0 after the cut."""
    health: int = 200
    holds: threading.Event | None = None
    """Requests to write wait for this event, or until the client has gone."""
    writes: str | None = None
    """The path of requests to write, to which faults and waits apply; None for that of the dialect."""
    routes: Callable[[str, Any], tuple[int, Any] | None] = lambda path, asked: None
    """Routes that come before those of the dialect, by path and body; None for no answer."""


class Dialect(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 4096

    def __init__(self, manner: Manner, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.manner = manner
        self.asked: list[tuple[str, Any]] = []
        self.keys: list[str | None] = []
        self.gone = threading.Semaphore(0)
        """Released for each request whose client has gone while it was held."""
        self.arrived = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.writes = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that go are part of the tests."""


@contextmanager
def serving(*manners: Manner) -> Iterator[list[Dialect]]:
    servers = [Dialect(manner) for manner in manners]
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield servers
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Dialect

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _answer(self, asked: Any) -> None:
        server, manner = self.server, self.server.manner
        is_writing = self.path == (manner.writes or WRITES[manner.dialect])
        with server.lock:
            server.asked.append((self.path, asked))
            server.keys.append(self.headers["authorization"])
            count = server.writes
            server.writes += is_writing
        fault = manner.fault(count) if is_writing else None
        if is_writing and not self._waits():
            return
        if fault is not None:
            self._send(fault.status, fault.body, fault.declared_bytes)
            return
        status, answer = manner.routes(self.path, asked) or _route(manner, self.path, asked, count)
        self._send(status, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode(), None)

    def _waits(self) -> bool:
        """Wait as long as the server holds its requests; return whether the client is still there."""
        self.server.arrived.release()
        holds = self.server.manner.holds
        while holds is not None and not holds.wait(0.01):
            if select.select([self.connection], [], [], 0)[0]:  # Nothing is sent after a request but its end.
                self.close_connection = True
                self.server.gone.release()
                return False
        return True

    def _send(self, status: int, body: bytes | None, declared_bytes: int | None) -> None:
        if body is None:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("content-length", str(declared_bytes or len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = declared_bytes is not None


def _route(manner: Manner, path: str, asked: Any, count: int) -> tuple[int, Any]:
    if path == "/v1/models" and manner.dialect != "sglang":
        card = {"id": manner.model, "object": "model", "root": manner.model, "max_model_len": manner.context_tokens}
        return 200, {"object": "list", "data": [card]}
    if path == "/health":
        return manner.health, ""
    if manner.dialect != "openai" and path == "/tokenize":
        tokens = manner.tokenizer.encode(asked["prompt"], add_special_tokens=asked["add_special_tokens"])
        return 200, {"count": len(tokens), "max_model_len": manner.context_tokens, "tokens": tokens}
    if manner.dialect == "vllm" and path == "/metrics":
        labels = '{engine="0",model_name="fake"}'
        lines = [f"vllm:kv_cache_usage_perc{labels} 0.25", f"vllm:prefix_cache_queries_total{labels} 1.2e+03"]
        lines.append('vllm:cache_config_info{block_size="128",hash_block_size="None",num_gpu_blocks="10"} 1.0')
        return 200, "\n".join(["# HELP x", *lines, f"vllm:prefix_cache_hits_total{labels} 900.0", ""])
    if manner.dialect == "sglang" and path == "/model_info":
        return 200, {"model_path": manner.model, "is_generation": manner.is_generation, "weight_version": "default"}
    if manner.dialect == "sglang" and path == "/server_info":
        return 200, {"max_total_num_tokens": 35_412, "max_req_input_len": manner.context_tokens, "context_length": None}
    if path != WRITES[manner.dialect]:
        return 404, {"detail": "Not Found"}
    return _generate(manner, asked, count) if manner.dialect == "sglang" else _complete(manner, asked, count)


def _seed(manner: Manner, seed: int, count: int) -> int:
    time.sleep(manner.spread_seconds * (seed % 97) / 97)
    return count if manner.ignores_seeds else seed


def _complete(manner: Manner, asked: Any, count: int) -> tuple[int, Any]:
    if asked["model"] != manner.model or asked["n"] != 1:
        message = f"The model `{asked['model']}` does not exist."
        return 404, {"error": {"message": message, "type": "NotFoundError", "param": "model", "code": 404}}
    is_vllm = manner.dialect == "vllm"
    stops, ends = (asked["stop"], asked["stop_token_ids"]) if is_vllm else ([], [manner.tokenizer.eos_token_id])
    seed = _seed(manner, asked["seed"], count)
    tokens, logprobs, met = manner.fake.answer(asked["prompt"], seed, asked["max_tokens"], stops, ends)
    if asked.get("top_k") == 1 and manner.logprobs_mode != "raw_logprobs":
        logprobs = [0.0 if manner.logprobs_mode == "processed_logprobs" else 17.5]
    text = manner.tokenizer.decode(tokens)
    text = text.partition(met)[0] if isinstance(met, str) else text
    choice: dict[str, Any] = {
        "index": 0,
        "text": text,
        "finish_reason": "length" if met is None else "stop",
        "logprobs": {"token_logprobs": logprobs, "tokens": ["?"] * len(tokens), "top_logprobs": [], "text_offset": []},
    }
    if is_vllm and asked["return_token_ids"]:
        choice |= {"token_ids": tokens, "stop_reason": met}
    usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": len(tokens)}
    return 200, {"object": "text_completion", "model": manner.model, "choices": [choice], "usage": usage}


def _generate(manner: Manner, asked: Any, count: int) -> tuple[int, Any]:
    sampling = asked["sampling_params"]
    unknown = set(sampling) - _SAMPLING_KEYS
    if unknown:
        return 400, {"error": {"message": f"Unexpected keyword argument {sorted(unknown)[0]!r}"}}
    prompt, seed = asked["input_ids"], _seed(manner, sampling["sampling_seed"], count)
    ends = sampling["stop_token_ids"]
    tokens, logprobs, met = manner.fake.answer(prompt, seed, sampling["max_new_tokens"], sampling["stop"], ends)
    finish = {"type": "length", "length": len(tokens)} if met is None else {"type": "stop", "matched": met}
    meta = {
        "prompt_tokens": len(prompt),
        "cached_tokens": len(prompt) - 1,
        "completion_tokens": len(tokens),
        "finish_reason": finish,
        "weight_version": "default",
        "output_token_logprobs": [[logprob, token, None] for logprob, token in zip(logprobs, tokens, strict=True)],
    }
    return 200, {"text": manner.tokenizer.decode(tokens), "output_ids": tokens, "meta_info": meta}
