"""A program that is started as vLLM or SGLang would be: takes their flags, answers as they do, fails as it is told.

`FAKE_SERVER` in its environment has how, as JSON: `fails` (text to write before it ends with `code`), `model` (to serve
another one than it was told), `waits` (never be ready), `child` (start a process that outlives it), `writes` (write
steps as `tests.dialects` does, and end at the request with this number; the file `died` keeps it from ending twice).
"""

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def main() -> None:
    words = sys.argv[1:]
    told: dict[str, Any] = json.loads(os.environ.get("FAKE_SERVER", "{}"))
    print("loading", " ".join(words), flush=True)
    if "child" in told:
        subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
    if "fails" in told:
        print(told["fails"], file=sys.stderr, flush=True)
        sys.exit(told.get("code", 1))
    if "waits" in told:
        time.sleep(600)
    engine = "vllm" if "serve" in words else "sglang"
    model = words[words.index("serve" if engine == "vllm" else "--model-path") + 1]
    port = int(words[words.index("--port") + 1])
    if "writes" in told:
        from tests.fake_writer import serve

        serve(engine, port, model, told["writes"], Path(told["died"]))
    Identity.model = told.get("model", model)
    ThreadingHTTPServer(("127.0.0.1", port), Identity).serve_forever(0.01)


class Identity(BaseHTTPRequestHandler):
    """Tells what is served, and no more."""

    model = ""

    def do_GET(self) -> None:
        answers: dict[str, Any] = {
            "/health": {},
            "/v1/models": {"data": [{"id": self.model, "root": self.model}]},
            "/model_info": {"model_path": self.model},
            "/server_info": {"max_total_num_tokens": 35_412},
            "/metrics": 'vllm:cache_config_info{block_size="128",hash_block_size="None",num_gpu_blocks="10"} 1.0',
        }
        answer = answers[self.path]
        body = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    main()
