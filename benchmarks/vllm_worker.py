"""Runs inside vLLM's own environment: grows steps for lines of JSON on stdin, answers in lines of JSON.

python benchmarks/vllm_worker.py MODEL_DIR
"""

import json
import os
import sys
from itertools import islice

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"


def main() -> None:
    """Answer a list of [parent's tokens, lengths of its children] with the children's tokens. null starts anew.

    Every child is a request of its own, as vLLM itself makes of one with `n`.
    """
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    answers, sys.stdout = sys.stdout, sys.stderr
    model = LLM(
        model=sys.argv[1],
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=True,
        block_size=32,
        max_model_len=1024,
        max_num_seqs=256,
    )
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked is None:
            model.reset_prefix_cache()
            print("null", file=answers, flush=True)
            continue
        wanted = [(tokens, length) for tokens, lengths in asked for length in lengths]
        grown = model.generate(
            [{"prompt_token_ids": tokens} for tokens, _ in wanted],
            [SamplingParams(max_tokens=length, ignore_eos=True, detokenize=False) for _, length in wanted],
            use_tqdm=False,
        )
        steps = iter([list(each.outputs[0].token_ids) for each in grown])
        print(json.dumps([list(islice(steps, len(lengths))) for _, lengths in asked]), file=answers, flush=True)


if __name__ == "__main__":
    main()
