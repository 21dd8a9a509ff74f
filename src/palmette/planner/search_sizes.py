"""What a search inside this process holds: the engine's pools, ticks, logits and draws, as formulas of shapes."""

from palmette.engine.limits import (
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
from palmette.planner.shape import quantized_pass_bytes

PROCESS_BYTES = 436 * 2**20
"""Python with torch, transformers and a model's code imported and used once, before any weight. Measured, as the two
below: torch 2.13 for the CPU, transformers 5.19, one thread."""

SENTENCES_BYTES = 20 * 2**20
"""What sentence-transformers adds to it, for an embedder."""

PEFT_BYTES = 8 * 2**20
"""What peft adds to it, for LoRA."""

TOKENIZER_BYTES = 640
"""Of a tokenizer, for each entry of its vocabulary. Measured: two tokenizers of SmolLM2-135M take 55 MiB."""

CUDA_CONTEXT_BYTES = 450 * 2**20
"""What CUDA, its libraries and torch's kernels take of a GPU for each process: 300 to 500 MiB are commonly reported.
Not measured here."""

_FLOAT, _DOUBLE = 4, 8


def policy_lines(model: Model, search: SearchNeeds) -> tuple[list[Line], list[Line]]:
    """Return what the policy holds throughout, its KV cache apart, and what it adds while it generates."""
    rows = min(search.policy_rows, search.branches)
    prefill = min(PREFILL_TOKENS, search.questions * search.prompt_tokens)
    tick = max(
        tick_bytes(model, prefill, 1, search.prompt_tokens),
        tick_bytes(model, rows, min(search.depth, search.total_tokens) + 1, search.path_tokens),
    )
    logits = rows * model.shape.outputs * (_FLOAT + _narrow_copy(model)) + draw_bytes(model, search)
    return (
        [Line("policy weights", "weights", model.weight_bytes, note=_weights_note(model))],
        [
            Line("policy activations", "activations", tick, note=f"a tick of {max(prefill, rows):,} tokens"),
            Line("policy logits", "logits", logits, note=f"{rows:,} rows x {model.shape.outputs:,}, and a draw"),
        ],
    )


def draw_bytes(model: Model, search: SearchNeeds) -> int:
    """Return what drawing holds beside the logits of a tick, for as many rows as are drawn together.

    The logits of these rows in their order, and scaled where there is a temperature. Then their shares, and with a cut
    the logits that are left. A cut by rank, before that, has those that it sorts twice; in double numbers these, what
    their shares add up to and what comes before each; and a mark for each.
    Noise is made from 64-bit numbers, for every block of the vocabulary and for the tokens of one block.
    """
    vocabulary = model.shape.outputs
    together = min(search.branches, max(1, DRAWN_LOGITS // vocabulary))
    ordered = _FLOAT + _FLOAT * search.scales_logits
    shared = vocabulary * _FLOAT * (2 if search.cuts_logits else 1)
    ranked = min(search.sorted_logits, vocabulary) * (2 * _FLOAT + 3 * _DOUBLE + 1)
    raced = min(vocabulary, DRAWN_BLOCK + vocabulary // DRAWN_BLOCK)
    return together * (vocabulary * ordered + max(shared, ranked) + raced * 4 * _DOUBLE)


def reward_lines(model: Model, search: SearchNeeds) -> tuple[list[Line], list[Line]]:
    """Return what the reward model holds throughout, its KV cache apart, and what it adds while it scores."""
    rows = min(search.reward_rows, search.branches)
    tokens = min(PREFILL_TOKENS + rows, search.branches * search.step_tokens + search.questions * search.prompt_tokens)
    resident = [Line("reward weights", "weights", model.weight_bytes, note=_weights_note(model))]
    if not search.by_likelihood:
        tick = tick_bytes(model, tokens, search.depth + 1, search.prompt_tokens)
        return resident, [Line("reward activations", "activations", tick, note=f"a tick of {tokens:,} tokens")]
    vocabulary = model.shape.vocabulary
    together = scored_tokens(vocabulary)
    tokens = min(tokens, together + min(rows, together))
    # Of one step at a time: the check that its logits are finite takes their size and two marks each.
    checked = min(tokens, search.step_tokens) * vocabulary * (_FLOAT + 2)
    logits = tokens * vocabulary * (_FLOAT + _narrow_copy(model)) + checked
    tick = tick_bytes(model, tokens, search.depth + 1, search.prompt_tokens)
    return resident, [
        Line("reward activations", "activations", tick, note=f"a tick of {tokens:,} tokens"),
        Line("reward logits", "logits", logits, note=f"{tokens:,} tokens x {vocabulary:,}"),
    ]


def embedder_lines(model: Model, search: SearchNeeds) -> tuple[list[Line], list[Line]]:
    """Return what the embedder holds throughout, and what it adds while it embeds a batch of steps."""
    shape = model.shape
    # Nothing bounds how many of its tokens a step is but what it reads at most.
    longest = shape.positions or EMBEDDED_TOKENS
    tokens = max(longest, min(EMBEDDED_TOKENS, longest * min(search.embed_rows, search.branches)))
    # At a layer's widest: its input, the attention's output with and without the residual, the feed-forward before and
    # after its activation.
    batch = tokens * _FLOAT * (3 * shape.hidden + 2 * shape.intermediate)
    return (
        [Line("embedder weights", "embedder", model.weight_bytes, note=_weights_note(model))],
        [Line("embedder activations", "activations", batch, note=f"{tokens:,} tokens at a time")],
    )


def tick_bytes(model: Model, tokens: int, depth: int, slots: int) -> int:
    """Return what one forward pass of the tree engine holds beside weights, KV and logits.

    Tokens read up to `depth` stretches of their paths, the longest of so many slots. In the feed-forward of a layer:
    four times the hidden state and three times the gated width. In its attention: the residual and the norm's output,
    queries, keys and values before and after rotation, and a part of the result for each stretch; then either
    all parts again, weighed, or what one batch of stretches takes: its queries and results twice, keys and values
    gathered, the scores.
    """
    shape, number = model.shape, model.number_bytes
    across, down = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    forward = tokens * number * (4 * shape.hidden + 3 * shape.intermediate)
    forward += quantized_pass_bytes(shape, tokens, model.quantize)
    parts = tokens * depth * across * _FLOAT
    gathered = 2 * GATHERED_SLOTS * down * number + _FLOAT * tokens * (4 * across + slots * shape.heads)
    attention = tokens * number * (2 * shape.hidden + 2 * (across + 2 * down)) + parts + max(parts, gathered)
    return max(forward, attention)


def _narrow_copy(model: Model) -> int:
    """Return the bytes of a logit in a half type or as a sum of whole numbers, there until it is widened."""
    narrow = {"bfloat16": 2, "int8": _FLOAT}.get(model.quantize, 0)
    return max(narrow, 0 if model.number_bytes == _FLOAT else model.number_bytes)


def policy_kv(model: Model, search: SearchNeeds, left_bytes: int | None) -> Line:
    """Return the policy's KV cache: what is declared, or what it may grow to in `left_bytes`."""
    token = model.kv_token_bytes
    if search.kv_budget_bytes is not None:
        tokens = search.kv_budget_bytes // token
        return Line("policy KV", "kv", tokens * token, "declared", note=kv_note(tokens, search))
    return _growing("policy KV", token, search, search.questions * search.unshared_tokens, left_bytes)


def reward_kv(model: Model, policy: Model, search: SearchNeeds, left_bytes: int | None) -> Line:
    """Return the reward model's KV cache; it holds no more than the policy's, of which it reads the text."""
    token = model.kv_token_bytes
    if search.reward_kv_budget_bytes is not None:
        tokens = search.reward_kv_budget_bytes // token
        return Line("reward KV", "kv", tokens * token, "declared", note=f"{tokens:,} tokens")
    most = search.questions * search.unshared_tokens
    if search.kv_budget_bytes is not None:
        most = min(most, search.kv_budget_bytes // policy.kv_token_bytes)
    line = _growing("reward KV", token, search, most, left_bytes)
    least = pool_tokens(search.path_tokens, token) * token
    return Line(line.holder, line.kind, line.bytes, line.known, min(line.bytes, least), line.note)


def kv_note(tokens: int, search: SearchNeeds) -> str:
    """Say how many tokens a cache holds, and how many branches those are."""
    branches = max(0, tokens - search.prompt_tokens) // search.total_tokens
    return f"{tokens:,} tokens: {branches:,} branches unshared, width {search.width:,}"


def _growing(holder: str, token: int, search: SearchNeeds, most_tokens: int, left_bytes: int | None) -> Line:
    least_tokens = search.unshared_tokens if search.kv_holds == "width" else search.path_tokens
    least = pool_tokens(least_tokens, token) * token
    grown = pool_tokens(most_tokens, token) * token
    held = max(least, grown if left_bytes is None else min(grown, left_bytes))
    return Line(holder, "kv", held, least_bytes=least, note=f"may grow to {kv_note(held // token, search)}")


def _weights_note(model: Model) -> str:
    if model.quantize != "none":
        return f"{model.shape.parameters / 1e6:,.1f} M, linear layers in {model.quantize}"
    return f"{model.shape.parameters / 1e6:,.1f} M x {model.number_bytes} bytes"


def process_line(*models: Model | None, embeds: bool, adapts: bool = False) -> Line:
    """Return what this process holds beside weights: its libraries, and a tokenizer for each model."""
    size = PROCESS_BYTES + TOKENIZER_BYTES * sum(model.shape.vocabulary for model in models if model is not None)
    size += SENTENCES_BYTES * embeds + PEFT_BYTES * adapts
    return Line("process", "runtime", size, "measured", note="Python, torch, transformers, tokenizers")
