"""Runs inside vLLM's own environment: grows steps for lines of JSON on stdin, answers in lines of JSON.

python benchmarks/vllm_worker.py MODEL_DIR
"""

import json
import os
import sys

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"


def main() -> None:
    """Answer {"parents": [[tokens, children], ...], "tokens": N, "to_end": B} with the children's tokens.

    With `to_end` a child may end before N tokens, by its end token. null starts anew.
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
        grown = model.generate(
            [{"prompt_token_ids": tokens} for tokens, _ in asked["parents"]],
            [
                SamplingParams(n=children, max_tokens=asked["tokens"], ignore_eos=not asked["to_end"], detokenize=False)
                for _, children in asked["parents"]
            ],
            use_tqdm=False,
        )
        print(json.dumps([[list(one.token_ids) for one in each.outputs] for each in grown]), file=answers, flush=True)


if __name__ == "__main__":
    main()
