"""What a search inside this process holds: weights, KV caches, activations and logits, as formulas of shapes."""

from dataclasses import replace

from palmette.engine.limits import (
    DRAFTED_TICK_TOKENS,
    DRAWN_BLOCK,
    DRAWN_LOGITS,
    EMBEDDED_TOKENS,
    GATHERED_SLOTS,
    PREFILL_TOKENS,
    pool_tokens,
    scored_tokens,
)
from palmette.planner.job import Model, SearchNeeds
from palmette.planner.lines import Line
from palmette.planner.models.quantized import quantized_pass_bytes
from palmette.planner.models.shape import FLOAT_BYTES
from palmette.units import count_of

PROCESS_BYTES = 436 * 2**20
"""Python with torch, transformers and a model's code imported and used once, before any weight. Measured, as the next
two, with torch 2.13 for the CPU, transformers 5.19, one thread."""

SENTENCE_TRANSFORMERS_BYTES = 20 * 2**20
"""What sentence-transformers adds to the process, for an embedder."""

PEFT_BYTES = 8 * 2**20
"""What peft adds to the process, for LoRA."""

TOKENIZER_BYTES = 640
"""Bytes of a tokenizer for each entry of its vocabulary. Measured: two tokenizers of SmolLM2-135M take 55 MiB."""

CUDA_CONTEXT_BYTES = 450 * 2**20
"""What CUDA, its libraries and torch's kernels take of a GPU for each process: 300 to 500 MiB are commonly reported.
Not measured here."""

_DOUBLE_BYTES = 8


def policy_lines(model: Model, search: SearchNeeds) -> tuple[list[Line], list[Line]]:
    """Return what the policy holds in every phase, except its KV cache, and what it adds while it generates."""
    rows = min(search.policy_rows, search.branches)
    if search.drafts:
        rows = max(rows, min(DRAFTED_TICK_TOKENS, search.branches * search.step_tokens))
    prefill = min(PREFILL_TOKENS, search.questions * search.prompt_tokens)
    tick = max(
        tick_bytes(model, prefill, 1, search.prompt_tokens),
        tick_bytes(model, rows, min(search.depth, search.total_tokens) + 1, search.path_tokens),
    )
    logits = rows * model.shape.outputs * (FLOAT_BYTES + _logit_copy_bytes(model)) + draw_bytes(model, search)
    return (
        [Line("policy weights", "weights", model.weight_bytes, note=_weights_note(model))],
        [
            Line("policy activations", "activations", tick, note=_tick_note(max(prefill, rows))),
            Line(
                "policy logits", "logits", logits,
                note=f"{count_of(rows, 'row')} x {model.shape.outputs:,}, and one draw",
            ),
        ],
    )  # fmt: skip


def draw_bytes(model: Model, search: SearchNeeds) -> int:
    """Return what drawing tokens holds beside a tick's logits, for as many rows as are drawn together.

    First the logits of these rows put in order, and a scaled copy where there is a temperature. Then either the
    probabilities, and with top-k, top-p or min-p the logits that are left; or, while top-k or top-p sorts, for each
    sorted logit two float32 copies, three float64 (itself, the running sum with and without it) and one boolean.
    The noise is made from 64-bit numbers, four for every block of the vocabulary and for every token of one block.
    """
    vocabulary = model.shape.outputs
    rows = min(search.branches, max(1, DRAWN_LOGITS // vocabulary))
    ordered = FLOAT_BYTES + FLOAT_BYTES * search.scales_logits
    probabilities = vocabulary * FLOAT_BYTES * (2 if search.filters_logits else 1)
    sorting = min(search.sorted_logits, vocabulary) * (2 * FLOAT_BYTES + 3 * _DOUBLE_BYTES + 1)
    noise = min(vocabulary, DRAWN_BLOCK + vocabulary // DRAWN_BLOCK) * 4 * _DOUBLE_BYTES
    return rows * (vocabulary * ordered + max(probabilities, sorting) + noise)


def reward_lines(model: Model, search: SearchNeeds, name: str = "reward") -> tuple[list[Line], list[Line]]:
    """Return what the reward model holds in every phase, except its KV cache, and what it adds while it scores."""
    search = search.as_scored
    rows = min(search.reward_rows, search.branches)
    tokens = min(PREFILL_TOKENS + rows, search.branches * search.step_tokens + search.questions * search.prompt_tokens)
    resident = [Line(f"{name} weights", "weights", model.weight_bytes, note=_weights_note(model))]
    if not search.by_likelihood:
        tick = tick_bytes(model, tokens, search.depth + 1, search.prompt_tokens)
        return resident, [Line(f"{name} activations", "activations", tick, note=_tick_note(tokens))]
    vocabulary = model.shape.vocabulary
    together = scored_tokens(vocabulary)
    tokens = min(tokens, together + min(rows, together))
    # Whether logits are finite is checked for one step at a time: a copy of them and two booleans for each.
    checked = min(tokens, search.step_tokens) * vocabulary * (FLOAT_BYTES + 2)
    logits = tokens * vocabulary * (FLOAT_BYTES + _logit_copy_bytes(model)) + checked
    tick = tick_bytes(model, tokens, search.depth + 1, search.prompt_tokens)
    return resident, [
        Line(f"{name} activations", "activations", tick, note=_tick_note(tokens)),
        Line(f"{name} logits", "logits", logits, note=f"{count_of(tokens, 'token')} x {vocabulary:,}"),
    ]


def embedder_lines(model: Model, search: SearchNeeds) -> tuple[list[Line], list[Line]]:
    """Return what the embedder holds in every phase, and what it adds while it embeds a batch of steps."""
    shape = model.shape
    # A step has other tokens here than in the policy: only the embedder's own longest input bounds them.
    longest = shape.positions or EMBEDDED_TOKENS
    tokens = max(longest, min(EMBEDDED_TOKENS, longest * min(search.embed_rows, search.branches)))
    # The most that a layer holds: its input, the attention's output with and without the residual, and the
    # feed-forward before and after its activation function.
    batch = tokens * FLOAT_BYTES * (3 * shape.hidden + 2 * shape.intermediate)
    return (
        [Line("embedder weights", "embedder", model.weight_bytes, note=_weights_note(model))],
        [Line("embedder activations", "activations", batch, note=f"{count_of(tokens, 'token')} at a time")],
    )


def tick_bytes(model: Model, tokens: int, segments: int, slots: int) -> int:
    """Return what one forward pass of the tree engine holds beside weights, KV and logits.

    Each token attends to up to so many segments of its path, the longest of so many KV slots. A layer's feed-forward
    holds four hidden states and three of the intermediate width. Its attention holds the residual and the norm's
    output; queries, keys and values before and after rotation; and one partial result for each segment. Beside these
    it holds either all partial results again, weighted, or one batch of segments: its queries and results twice, the
    gathered keys and values, the scores.
    """
    shape, number = model.shape, model.number_bytes
    forward = tokens * number * (4 * shape.hidden + 3 * shape.intermediate)
    forward += quantized_pass_bytes(shape, tokens, model.quantize)
    partial = tokens * segments * shape.query_width * FLOAT_BYTES
    gathered = 2 * GATHERED_SLOTS * shape.kv_width * number
    gathered += FLOAT_BYTES * tokens * (4 * shape.query_width + slots * shape.heads)
    attention = tokens * number * (2 * shape.hidden + 2 * (shape.query_width + 2 * shape.kv_width))
    return max(forward, attention + partial + max(partial, gathered))


def _logit_copy_bytes(model: Model) -> int:
    """Return the bytes of a logit as the head computes it, before it is converted to float32; 0 for float32."""
    quantized = {"bfloat16": 2, "int8": FLOAT_BYTES}.get(model.quantize, 0)
    return max(quantized, 0 if model.number_bytes == FLOAT_BYTES else model.number_bytes)


def policy_kv(model: Model, search: SearchNeeds, left_bytes: int | None) -> Line:
    """Return the policy's KV cache: its budget, or what it may grow to in `left_bytes`."""
    token = model.kv_token_bytes
    if search.kv_budget_bytes is not None:
        tokens = search.kv_budget_bytes // token
        return Line("policy KV", "kv", tokens * token, "declared", note=kv_note(tokens, search))
    return _growing_kv("policy KV", token, search, search.questions * search.unshared_tokens, left_bytes)


def reward_kv(model: Model, policy: Model, search: SearchNeeds, left_bytes: int | None, name: str = "reward") -> Line:
    """Return the reward model's KV cache: its budget, or what it may grow to in `left_bytes`.

    It reads what the policy has written, so that it holds no more tokens than the policy's cache, but for tags.
    """
    token = model.kv_token_bytes
    tags = search.branches * min(search.depth, search.total_tokens) * search.tag_tokens
    search = search.as_scored
    if search.reward_kv_budget_bytes is not None:
        tokens = search.reward_kv_budget_bytes // token
        return Line(f"{name} KV", "kv", tokens * token, "declared", note=count_of(tokens, "token"))
    most = search.questions * search.unshared_tokens
    if search.kv_budget_bytes is not None:
        most = min(most, search.kv_budget_bytes // policy.kv_token_bytes + tags)
    line = _growing_kv(f"{name} KV", token, search, most, left_bytes)
    least = pool_tokens(search.path_tokens, token) * token
    return replace(line, least_bytes=min(line.bytes, least))


def kv_note(tokens: int, search: SearchNeeds) -> str:
    """Say how many tokens a KV cache holds, and how many whole branches those are if they share only the prompt."""
    branches = max(0, tokens - search.prompt_tokens) // search.total_tokens
    return f"{count_of(tokens, 'token')}: {count_of(branches, 'branch', 'branches')} unshared, width {search.width:,}"


def _growing_kv(holder: str, token: int, search: SearchNeeds, most_tokens: int, left_bytes: int | None) -> Line:
    """Return a KV cache without a budget: as large as `most_tokens` or `left_bytes` allow, at least what it needs."""
    least_tokens = search.unshared_tokens if search.kv_holds == "width" else search.path_tokens
    least = pool_tokens(least_tokens, token) * token
    most = pool_tokens(most_tokens, token) * token
    size = max(least, most if left_bytes is None else min(most, left_bytes))
    return Line(holder, "kv", size, least_bytes=least, note=f"may grow to {kv_note(size // token, search)}")


def _tick_note(tokens: int) -> str:
    return f"a tick of {count_of(tokens, 'token')}"


def _weights_note(model: Model) -> str:
    if model.quantize != "none":
        return f"{model.shape.parameters / 1e6:,.1f} M, linear layers in {model.quantize}"
    return f"{model.shape.parameters / 1e6:,.1f} M x {model.number_bytes} bytes"


def process_line(*models: Model | None, embeds: bool, trains_lora: bool = False) -> Line:
    """Return what this process holds before any weight: its libraries, and a tokenizer for each model."""
    size = PROCESS_BYTES + TOKENIZER_BYTES * sum(model.shape.vocabulary for model in models if model is not None)
    size += SENTENCE_TRANSFORMERS_BYTES * embeds + PEFT_BYTES * trains_lora
    return Line("process", "runtime", size, "measured", note="Python, torch, transformers, tokenizers")
