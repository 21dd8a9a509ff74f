"""Steps that are sampled each in its own way, and a backend that is interrupted so that others can be started."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from palmette.backends.backend import Expansion, Interruptible, Step, Tokenizes
from palmette.backends.local import LocalBackend
from palmette.engine.cuts import Sampling

Prompt = Callable[[str], tuple[int, ...]]


def backend(policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, **sampling: float) -> LocalBackend:
    return LocalBackend(policy, tokenizer, sampling=Sampling(**sampling), batch_rows=64)  # type: ignore[arg-type]


def steps(prompt: Prompt, text: str, count: int, **told: float) -> list[Expansion]:
    asked = [Expansion(text, 0, prompt(text), seed, 24, seed + 1) for seed in range(count)]
    return [replace(each, **told) for each in asked]  # type: ignore[arg-type]


def written(found: Iterable[Step]) -> list[tuple[object, ...]]:
    """Without log-probabilities: their last bits depend on what else is in the batch."""
    return [(step.tokens, step.text, step.finish, step.temperature) for step in found]


def test_a_step_with_its_own_temperature_is_the_step_of_a_policy_that_has_it(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    cold, cut = steps(prompt, "1+2", 8, temperature=0.3), steps(prompt, "3*4", 8, top_p=0.5)
    plain = steps(prompt, "5", 8)
    together = backend(policy, tokenizer).expand([*cold, *cut, *plain])
    alone = backend(policy, tokenizer, temperature=0.3).expand(steps(prompt, "1+2", 8))
    assert (
        written(together[:8]) == written(alone) != written(backend(policy, tokenizer).expand(steps(prompt, "1+2", 8)))
    )
    assert written(together[8:16]) == written(backend(policy, tokenizer, top_p=0.5).expand(steps(prompt, "3*4", 8)))
    assert written(together[16:]) == written(backend(policy, tokenizer).expand(plain))
    assert [step.temperature for step in together] == [0.3] * 8 + [1.0] * 16
    assert backend(policy, tokenizer).expand(steps(prompt, "1+2", 1, temperature=0.0))[0].temperature == 1.0


def test_an_interrupted_backend_returns_without_a_step_and_goes_on_to_the_same_ones(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    asked = steps(prompt, "1+2", 6)
    whole = backend(policy, tokenizer).expand(asked)
    cut = backend(policy, tokenizer)
    assert isinstance(cut, Interruptible)
    cut.start(asked)
    found: dict[Expansion, Step] = {}
    returns = 0
    while len(found) < len(asked):
        cut.interrupt()
        assert cut.finished() == []
        found.update(cut.finished())
        returns += 1
    assert written(found[each] for each in asked) == written(whole)
    assert cut.finished() == [] and returns > 1


def test_prompts_without_a_template_and_the_spelling_of_tokens(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    reader = backend(policy, tokenizer)
    assert isinstance(reader, Tokenizes)
    tokens = reader.encode_text("12+3<eos>")
    assert tokenizer.eos_token_id not in tokens, "the text of a control token is text"
    assert "".join(reader.spell(reader.encode_text("12+3\n"))).endswith("12+3\n")
