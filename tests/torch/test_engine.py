"""Trees grown wave by wave on the tree cache, against the same steps written one by one without any cache."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from palmette.backends.backend import Expansion
from palmette.backends.local import LocalBackend
from palmette.engine.cuts import Sampling
from palmette.engine.pieces import Piece
from palmette.engine.sampler import Streams, draw
from palmette.engine.tree_model import TreeModel
from palmette.errors import BackendError, BudgetError

Prompt = Callable[[str], tuple[int, ...]]
Paths = dict[str, dict[int, tuple[int, ...]]]
TEXTS = {"a": "1+2", "b": "(3+4)*2-5", "c": "12*12-(7-3)+8-(2*2)"}
STEP_TOKENS = 12


@torch.inference_mode()
def slow(policy: LlamaForCausalLM, wish: Expansion, end: int, line: int) -> tuple[int, ...]:
    tokens: list[int] = []
    while len(tokens) < wish.max_tokens:
        logits = policy(input_ids=torch.tensor([[*wish.prefix, *tokens]]), use_cache=False).logits[:, -1]
        tokens.append(int(draw(logits, Streams([wish.seed], [len(tokens)]), Sampling()).tokens_R[0]))
        if tokens[-1] == end or (tokens[-1] == line and set(tokens) != {line}):
            break
    return tuple(tokens)


def backend(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, temperature: float = 1.0, **options: Any
) -> LocalBackend:
    return LocalBackend(policy, tokenizer, sampling=Sampling(temperature), **options)


def waves(under_test: LocalBackend, paths: Paths, seed: int, expand: Callable[[list[Expansion]], None]) -> None:
    """Grow 5 waves of random children; after each, release a random part of the leaves."""
    rng = random.Random(seed)
    leaves = [(question, 0) for question in paths]
    for _ in range(5):
        wishes: list[Expansion] = []
        for question, parent in leaves:
            for _ in range(rng.choice([1, 1, 2, 5])):
                node = 1 + max([0, *paths[question], *(w.node or 0 for w in wishes if w.question == question)])
                prefix = paths[question][parent]
                wishes.append(Expansion(question, parent, prefix, rng.getrandbits(60), STEP_TOKENS, node))
        expand(wishes)
        under_test.tree.cache.check_integrity()
        grown = [(wish.question, wish.node or 0) for wish in wishes]
        leaves = rng.sample(grown, min(5, len(grown)))
        for question, node in grown:
            if (question, node) not in leaves:
                under_test.release(question, [node])
        under_test.tree.cache.check_integrity()


@pytest.mark.parametrize(("rows", "budget_tokens"), [(64, None), (3, None), (64, 200), (5, 100)])
def test_trees_grow_as_if_every_step_were_written_alone(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, rows: int, budget_tokens: int | None
) -> None:
    token_bytes = backend(policy, tokenizer, batch_rows=1).kv_bytes_per_token
    budget = None if budget_tokens is None else budget_tokens * token_bytes
    shared = backend(policy, tokenizer, batch_rows=rows, kv_bytes=budget)
    pool = shared.tree.cache.pool
    line = int(tokenizer.convert_tokens_to_ids("\n"))  # type: ignore[arg-type]
    paths: Paths = {question: {0: prompt(text)} for question, text in TEXTS.items()}
    written = 0

    def expand(wishes: list[Expansion]) -> None:
        nonlocal written
        for wish, step in zip(wishes, shared.expand(wishes), strict=True):
            assert step.tokens == slow(policy, wish, tokenizer.eos_token_id, line)
            paths[wish.question][wish.node or 0] = (*wish.prefix, *step.tokens)
            written += 1
        assert budget is None or pool.taken_bytes <= budget

    waves(shared, paths, rows, expand)
    assert written > 30
    for question in paths:
        shared.release(question, list(paths[question]))
    assert pool.taken_bytes == 0


def test_the_pool_holds_every_distinct_beginning_once(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    shared = backend(policy, tokenizer, batch_rows=64)
    prefix = prompt("(3+4)*2-5")
    steps = shared.expand([Expansion("q", 0, prefix, seed, 20, seed + 1) for seed in range(30)])
    # The last token of a step waits for its first child.
    beginnings = {step.tokens[:end] for step in steps for end in range(1, len(step.tokens))}
    held = shared.tree.cache.pool.taken_bytes / shared.kv_bytes_per_token
    assert held == len(prefix) + len(beginnings)


def test_a_step_that_continues_a_known_node_computes_only_what_is_new(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = backend(policy, tokenizer, batch_rows=64, drafts=False)
    prefix = prompt("(3+4)*2-5")
    (step,) = shared.expand([Expansion("q", 0, prefix, 1, 20, 1)])
    computed = []
    run = TreeModel.run

    def watched(self: TreeModel, pieces: Any, every: Any) -> torch.Tensor:
        computed.append(sum(piece.last - piece.first for piece in pieces))
        return run(self, pieces, every)

    monkeypatch.setattr(TreeModel, "run", watched)
    wishes = [Expansion("q", 1, (*prefix, *step.tokens), seed, 20, seed) for seed in range(2, 10)]
    grown = shared.expand(wishes)
    assert computed[0] == 1  # the last token of the step above, once for all its children
    # Then every distinct beginning of a child, however many children begin with it.
    assert sum(computed) == 1 + len({child.tokens[:end] for child in grown for end in range(1, len(child.tokens))})


def test_a_budget_too_small_for_one_path_is_refused_with_one_that_fits(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    wish = Expansion("q", 0, prompt("12*12-(7-3)+8-(2*2)") * 3, 5, 4, 1)
    token_bytes = backend(policy, tokenizer, batch_rows=1).kv_bytes_per_token
    small = backend(policy, tokenizer, batch_rows=4, kv_bytes=32 * token_bytes)
    with pytest.raises(BudgetError) as caught:
        small.expand([wish])
    assert small.tree.cache.pool.taken_bytes == 0
    assert str(caught.value) == (
        f"one path has 63 tokens of KV so far, the KV budget holds 32: a token takes {token_bytes} bytes, "
        f"and the longest prompt with all its steps must fit"
    )
    advised = backend(policy, tokenizer, batch_rows=4, kv_bytes=(63 + 4) * token_bytes)
    assert advised.expand([wish])[0].tokens == backend(policy, tokenizer, batch_rows=1).expand([wish])[0].tokens


def test_a_budget_too_small_to_check_the_model_is_refused_as_one(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    token_bytes = backend(policy, tokenizer, batch_rows=1).kv_bytes_per_token
    with pytest.raises(BudgetError, match="one path has 5 tokens of KV so far, the KV budget holds 1"):
        backend(policy, tokenizer, batch_rows=4, kv_bytes=token_bytes)


TINY: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "initializer_range": 0.4,
}  # fmt: skip


def tiny(kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**{**TINY, **changes})).eval()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("mistral", {"sliding_window": 3}),
        ("gemma", {}),
        ("gemma2", {"sliding_window": 3, "attn_logit_softcapping": 1.0, "query_pre_attn_scalar": 8}),
        ("gemma3_text", {"sliding_window": 3, "query_pre_attn_scalar": 8}),
        ("phi3", {}),
        ("smollm3", {}),
        ("olmo2", {}),
        # Windows that stand in the mask alone, and longer than the few tokens of `check`.
        ("llama4_text", {"attention_chunk_size": 7, "num_local_experts": 2, "intermediate_size_mlp": 48}),
        ("phimoe", {"sliding_window": 7, "num_local_experts": 4}),
        ("qwen2_moe", {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0, "num_experts": 4,
                       "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}),
        ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "sliding_window": 7}),
    ],
)  # fmt: skip
@torch.inference_mode()
def test_models_of_many_kinds_give_on_the_tree_what_they_give_alone(kind: str, changes: dict[str, Any]) -> None:
    model = tiny(kind, **changes)
    tree = TreeModel(model)
    tree.check()
    trunk = tree.cache.add(None, [5, 17, 30, 8, 22, 3, 14, 15, 9, 26])
    twigs = [tree.cache.add(trunk, tokens) for tokens in ([9], [31, 4], [12, 12, 36, 7])]
    for tick in ([trunk], twigs):
        pieces = [Piece(node, 0, len(node.tokens)) for node in tick]
        tree.cache.reserve([(piece.node, piece.last) for piece in pieces], twigs)
        found = tree.run(pieces)
    model.set_attn_implementation("eager")  # SDPA leaves out Gemma 2's cap.
    alone = [model(input_ids=torch.tensor([twig.path_tokens()])).logits[0, -1] for twig in twigs]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "sinks"),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "layer 0 has no attention"),
        ("mamba", {}, "layer 0 has no attention"),
        ("doge", {"sliding_window": 7}, "not of the usual form"),
    ],
)
def test_models_that_cannot_are_refused_by_name_with_the_reason(
    kind: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BackendError, match=f"{kind}.*{reason}"):
        TreeModel(tiny(kind, **changes)).check()


def test_children_that_write_the_same_are_computed_and_kept_once_until_the_last_is_released(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    greedy = backend(policy, tokenizer, temperature=0.0, batch_rows=64, drafts=False)
    prefix = prompt("(3+4)*2-5")
    alone = greedy.expand([Expansion("alone", 0, prefix, 1, 20, 1)])[0]
    calls, held = greedy.calls, greedy.tree.cache.pool.taken_bytes
    twins = greedy.expand([Expansion("q", 0, prefix, seed, 20, 1 + seed) for seed in range(8)])
    assert twins == [alone] * 8
    assert greedy.calls == 2 * calls
    assert greedy.tree.cache.pool.taken_bytes == 2 * held
    # Children of two twins stand below one node: they too are written once.
    calls = greedy.calls
    wishes = [Expansion("q", twin, (*prefix, *alone.tokens), 9, 20, 10 + twin) for twin in (3, 4)]
    first, second = greedy.expand(wishes)
    assert first == second
    assert greedy.calls - calls == len(first.tokens)
    held = greedy.tree.cache.pool.taken_bytes
    greedy.release("q", [1, 2, 3, 5, 6, 7, 8, 13])
    assert greedy.tree.cache.pool.taken_bytes == held
    greedy.release("q", [14, 4, 0])
    greedy.release("alone", [0, 1])
    greedy.tree.cache.check_integrity()
    assert greedy.tree.cache.pool.taken_bytes == 0


def test_a_step_cut_short_does_not_grow_with_its_longer_twin(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    greedy = backend(policy, tokenizer, temperature=0.0, batch_rows=64)
    prefix = prompt("12*12-(7-3)")
    whole = greedy.expand([Expansion("alone", 0, prefix, 1, 20, 1)])[0]
    assert len(whole.tokens) > 3
    short, long = greedy.expand([Expansion("q", 0, prefix, 1, 3, 1), Expansion("q", 0, prefix, 1, 20, 2)])
    assert (short.tokens, short.finish) == (whole.tokens[:3], "length")
    assert (long.tokens, long.text, long.finish) == (whole.tokens, whole.text, whole.finish)
    assert long.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    (rest,) = greedy.expand([Expansion("q", 1, (*prefix, *short.tokens), 1, 20, 3)])
    assert short.tokens + rest.tokens == whole.tokens
    greedy.release("q", [0, 1, 2, 3])
    greedy.release("alone", [0, 1])
    assert greedy.tree.cache.pool.taken_bytes == 0


def test_prompts_that_begin_alike_share_it_and_write_the_same(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    shown = "1+2\n3\n(3+4)*2-5\n7*2-5\n14-5\n9\n"
    prompts = {question: prompt(shown + text) for question, text in TEXTS.items()}
    shared = backend(policy, tokenizer, batch_rows=64)
    line = int(tokenizer.convert_tokens_to_ids("\n"))  # type: ignore[arg-type]
    for (
        question,
        prefix,
    ) in prompts.items():  # One after the other: the first is computed when the second is cut off it.
        wishes = [Expansion(question, 0, prefix, seed, 8, seed + 1) for seed in range(4)]
        for wish, step in zip(wishes, shared.expand(wishes), strict=True):
            assert step.tokens == slow(policy, wish, tokenizer.eos_token_id, line)
    shared.tree.cache.check_integrity()
    for question in prompts:
        shared.release(question, range(1, 5))
    common = len(prompt(shown)) - 1
    pool = shared.tree.cache.pool
    assert pool.taken_bytes == shared.kv_bytes_per_token * (
        common + sum(len(prefix) - common for prefix in prompts.values())
    )
    for question in prompts:
        shared.release(question, [0])
    assert pool.taken_bytes == 0
