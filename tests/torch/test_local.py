"""The backend against a reference so slow that it is plainly right: one row, no cache, no padding, every token anew."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
)

from palmette.backends.backend import Expansion, OnDevice, Step, TakesWeights
from palmette.backends.local import LocalBackend, context_tokens
from palmette.engine.cuts import Sampling
from palmette.engine.sampler import Streams, draw
from palmette.errors import BackendError, ConfigError
from palmette.memory.guard import GivesUpCache
from palmette.memory.oom import TellsCacheFull

from .conftest import tiny_config

Prompt = Callable[[str], tuple[int, ...]]
TEXTS = ("1+2", "(3+4)*2-5", "9", "12*12-(7-3)+8-(2*2)", "1+2")


def backend(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: int = 64, **sampling: float
) -> LocalBackend:
    settings = Sampling(**sampling)  # type: ignore[arg-type]
    return LocalBackend(policy, tokenizer, sampling=settings, batch_rows=rows)


def wishes(prompt: Prompt, copies: int = 4, tokens: int = 24) -> list[Expansion]:
    prefixes = [prompt(text) for text in TEXTS]
    return [
        Expansion(f"q{number}", 0, prefix, 100 * number + copy, tokens)
        for number, prefix in enumerate(prefixes)
        for copy in range(copies)
    ]


@torch.inference_mode()
def slow(policy: LlamaForCausalLM, expansion: Expansion, sampling: Sampling, end: int, line: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < expansion.max_tokens:
        logits = policy(input_ids=torch.tensor([[*expansion.prefix, *tokens]]), use_cache=False).logits[:, -1]
        drawn = draw(logits, Streams([expansion.seed], [len(tokens)]), sampling)
        tokens.append(int(drawn.tokens_R[0]))
        if tokens[-1] == end or (tokens[-1] == line and len(tokens) > 1 and set(tokens[:-1]) != {line}):
            break
    return tokens


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.8}, {"top_k": 3}, {"min_p": 0.1}]
)
def test_steps_equal_those_of_the_slow_reference_token_for_token(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, sampling: dict[str, float]
) -> None:
    asked = wishes(prompt)
    settings = Sampling(**sampling)  # type: ignore[arg-type]
    line = int(tokenizer.convert_tokens_to_ids("\n"))  # type: ignore[arg-type]
    expected = [slow(policy, expansion, settings, tokenizer.eos_token_id, line) for expansion in asked]
    steps = backend(policy, tokenizer, 64, **sampling).expand(asked)
    assert [list(step.tokens) for step in steps] == expected
    assert len({tuple(tokens) for tokens in expected}) > 3  # the model is not stuck on one step


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_the_same_seed_gives_the_same_step_whatever_the_batch(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, rows: int
) -> None:
    asked = wishes(prompt, copies=8)
    together = backend(policy, tokenizer).expand(asked)
    apart = backend(policy, tokenizer, rows).expand(asked)
    backwards = backend(policy, tokenizer).expand(asked[::-1])[::-1]
    assert [step.tokens for step in apart] == [step.tokens for step in together]
    assert [step.tokens for step in backwards] == [step.tokens for step in together]


@pytest.mark.parametrize(("temperature", "told"), [(0.5, 0.5), (1.0, 1.0), (1.3, 1.3), (0.0, 1.0)])
def test_log_probabilities_are_the_models_own_at_the_temperature_that_a_step_tells(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, temperature: float, told: float
) -> None:
    for step, expansion in zip(
        backend(policy, tokenizer, temperature=temperature, top_k=5).expand(wishes(prompt)), wishes(prompt), strict=True
    ):
        assert step.temperature == told
        with torch.inference_mode():
            logits = policy(input_ids=torch.tensor([[*expansion.prefix, *step.tokens]]), use_cache=False).logits[0]
        plain = (logits / told).log_softmax(-1)[len(expansion.prefix) - 1 : -1]
        expected = plain.gather(1, torch.tensor(step.tokens)[:, None])[:, 0].tolist()
        assert step.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_step_ends_at_its_delimiter_at_the_end_token_or_at_its_length(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    steps = backend(policy, tokenizer).expand(wishes(prompt, copies=60))
    by_finish: dict[str, list[Step]] = {}
    for step in steps:
        by_finish.setdefault(step.finish, []).append(step)
    assert set(by_finish) == {"step", "end", "length"}
    for step in steps:
        assert step.text == tokenizer.decode(list(step.tokens), skip_special_tokens=True)
    assert all(step.text.endswith("\n") and step.text.strip() for step in by_finish["step"])
    assert all(step.tokens[-1] == tokenizer.eos_token_id for step in by_finish["end"])
    assert all(len(step.tokens) == 24 for step in by_finish["length"])


def test_a_prompt_too_long_for_the_model_is_refused_with_what_to_lower(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    (first, *_) = wishes(prompt)
    with pytest.raises(
        ConfigError, match=r"may need 605 tokens, the policy takes 512: lower search.total_tokens by 93"
    ):
        backend(policy, tokenizer).expand([replace(first, max_tokens=600)])


def test_weights_that_give_no_finite_logits_are_an_error_of_the_backend(
    tokenizer: PreTrainedTokenizerFast, policy: LlamaForCausalLM, prompt: Prompt
) -> None:
    broken = LlamaForCausalLM(policy.config)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    with pytest.raises(BackendError, match="not finite"):
        backend(broken.eval(), tokenizer).expand(wishes(prompt))


def test_kv_bytes_count_keys_and_values_of_every_layer(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert backend(policy, tokenizer).kv_bytes_per_token == 2 * 2 * 2 * 8 * 4  # k+v, layers, kv heads, width, float32


def test_a_backend_inside_the_process_tells_by_its_contracts_what_it_can_do_beyond_a_search(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    local: object = backend(policy, tokenizer)
    assert isinstance(local, TakesWeights) and local.weight_version == 0
    assert isinstance(local, OnDevice) and local.device == "cpu"
    assert isinstance(local, TellsCacheFull) and local.cache_full is None
    assert isinstance(local, GivesUpCache)


def test_a_step_tells_how_much_of_its_prefix_was_cached_when_it_was_started(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    local, prefix = backend(policy, tokenizer), prompt("(1+2)*3-4+5*6-7+8*9")
    first = Expansion("a", 0, prefix, 1, 4, node=1)
    [alone, beside] = local.expand([first, replace(first, seed=2, node=2)])
    assert alone.cached_tokens == beside.cached_tokens == 0
    [same] = local.expand([replace(first, question="b")])
    assert same.cached_tokens == len(prefix) - 1  # The last token is computed in any case.
    [below] = local.expand([replace(first, parent=1, prefix=(*prefix, *alone.tokens), node=3)])
    assert below.cached_tokens == len(prefix) + len(alone.tokens) - 1
    for question in "ab":
        local.release(question, [0, 1, 2, 3])
    assert local.expand([first])[0].cached_tokens == 0


def test_nothing_asked_is_nothing_done(policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    assert backend(policy, tokenizer).expand([]) == []


def test_a_delimiter_of_several_characters_is_found_across_tokens(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    plain = backend(policy, tokenizer).expand(wishes(prompt, copies=40, tokens=24))
    pairs = [step.text[4:6] for step in plain if len(step.text) > 8]
    delimiter = max(set(pairs), key=pairs.count)
    asked = [replace(wish, step_end=delimiter) for wish in wishes(prompt, copies=40, tokens=24)]
    steps = backend(policy, tokenizer).expand(asked)
    ended = [step for step in steps if step.finish == "step"]
    assert ended
    for step in steps:
        # Where a step ends, its delimiter is new; where it does not, there is none after its first character.
        body = step.text.lstrip()
        while body.startswith(delimiter):
            body = body[len(delimiter) :].lstrip()
        assert (delimiter in body) == (step.finish == "step")
        if step.finish == "step":
            assert body.endswith(delimiter)


def test_a_stop_text_ends_the_solution_wherever_tokens_begin(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    asked = wishes(prompt, copies=40, tokens=24)
    plain = backend(policy, tokenizer).expand(asked)
    pairs = [step.text[3:5] for step in plain if len(step.text) > 8 and "\n" not in step.text[3:5]]
    stop = max(set(pairs), key=pairs.count)
    stopping = backend(policy, tokenizer).expand([replace(wish, stop=stop) for wish in asked])
    ended = 0
    for step, free in zip(stopping, plain, strict=True):
        place = free.text.find(stop)
        if place < 0:
            assert (step.tokens, step.finish) == (free.tokens, free.finish)
            continue
        ended += 1
        assert (step.finish, step.text) == ("end", free.text[: place + len(stop)])
    assert ended > 1


def test_rows_of_one_call_end_by_their_own_rules_as_they_do_alone(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    # The same prefix and seed under three rules: the rows share their tokens until the first of them ends.
    plain = wishes(prompt, copies=10)
    text = "".join(step.text for step in backend(policy, tokenizer).expand(plain)).replace("\n", "")
    often = max(set(text), key=text.count)
    rules: list[dict[str, Any]] = [{"step_end": "\n"}, {"step_end": often}, {"stop": often}]

    def expand(asked: list[Expansion]) -> list[tuple[tuple[int, ...], str, str]]:
        return [(step.tokens, step.text, step.finish) for step in backend(policy, tokenizer).expand(asked)]

    alone = [expand([replace(wish, **rule) for wish in plain]) for rule in rules]
    together = expand([replace(wish, **rule) for wish in plain for rule in rules])
    assert [together[place :: len(rules)] for place in range(len(rules))] == alone
    assert alone[0] != alone[1] != alone[2]


def test_a_model_that_turns_positions_otherwise_in_long_texts_takes_only_short_ones() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    phi = Phi3Config(
        hidden_size=32,
        num_attention_heads=4,
        num_hidden_layers=1,
        max_position_embeddings=64,
        original_max_position_embeddings=32,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "factor": 2.0, **factors},
        vocab_size=40,
        intermediate_size=32,
        pad_token_id=0,
    )
    assert context_tokens(Phi3ForCausalLM(phi)) == 32
    tuned = Llama4TextConfig(**{**TINY_LLAMA4, "attn_temperature_tuning": True, "floor_scale": 16})
    assert context_tokens(Llama4ForCausalLM(tuned)) == 16
    assert (
        context_tokens(Llama4ForCausalLM(Llama4TextConfig(**{**TINY_LLAMA4, "attn_temperature_tuning": False}))) == 64
    )


TINY_LLAMA4: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "intermediate_size_mlp": 48, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
    "num_local_experts": 2, "pad_token_id": 0,
}  # fmt: skip


def test_a_stop_text_that_begins_in_the_step_above_ends_the_solution(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    # A step's first character ends a stop text that its parent's last one began.
    local = backend(policy, tokenizer)
    above = prompt("1+2") + tuple(tokenizer.encode("3\n", add_special_tokens=False))
    asked = [Expansion("q", 7, above, seed, 24) for seed in range(40)]
    plain = [step for step in local.expand(asked) if step.text[:1] not in ("", "\n")]
    stop = "\n" + max((step.text[0] for step in plain), key=[step.text[0] for step in plain].count)
    stopped = local.expand([replace(wish, stop=stop) for wish in asked])
    ended = [step for step in stopped if step.finish == "end" and step.text == stop[1]]
    assert len(ended) == sum(step.text[0] == stop[1] for step in plain) > 0
    at_the_prompt = local.expand([Expansion("r", 0, above, wish.seed, 24, stop=stop) for wish in asked])
    assert not [step for step in at_the_prompt if step.finish == "end" and step.text == stop[1]]


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")


def test_a_delimiter_that_ends_in_a_space_is_found_where_tokens_begin_with_the_space() -> None:
    words = ["<pad>", "<bos>", "<eos>", ".", "\u2581The", "\u2581so", "\u2581it", "\u2581is", "5", "7", "\n"]
    pieces = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="."))
    pieces.decoder = decoders.Metaspace()
    tokenizer = wrapped(pieces)
    torch.manual_seed(0)
    local = backend(LlamaForCausalLM(tiny_config(tokenizer)).eval(), tokenizer)
    steps = local.expand([Expansion("q", 0, (1, 4), seed, 24, step_end=". ") for seed in range(40)])
    ended = [step for step in steps if step.finish == "step"]
    assert len(ended) > 10
    for step in steps:
        assert (". " in step.text.lstrip(". ")) == (step.finish == "step")


def test_steps_cut_inside_characters_have_the_text_of_their_tokens_when_joined() -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate(["<pad>", "<bos>", "<eos>", *letters])}
    pieces = Tokenizer(models.BPE(vocabulary, []))
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    tokenizer = wrapped(pieces)
    torch.manual_seed(0)
    local = backend(LlamaForCausalLM(tiny_config(tokenizer)).eval(), tokenizer)
    for number, text in enumerate(["\U0001f600\u00e9\u4e2d" * 2, "a\U0001f600", "\u4e2d\u4e2d"]):
        written = tokenizer.encode(text)
        for cut in range(1, len(written)):  # A step may begin inside a character of the step before it.
            prefix = (1, *written[:cut])
            steps: list[Step] = []
            for length in (1, 2, 3, 1, 2):
                asked = Expansion(f"q{number}.{cut}", len(steps), prefix, cut + 31 * len(steps), length, step_end="\n")
                steps += local.expand([asked])
                prefix += steps[-1].tokens
            whole, above = (str(tokenizer.decode(list(tokens))) for tokens in (prefix[1:], written[:cut]))
            joined = above.rstrip("\ufffd") + "".join(step.text for step in steps)
            assert joined.rstrip("\ufffd") == whole.replace("<eos>", "").rstrip("\ufffd")
