"""What the backend samples, a learner at the same temperature finds as likely as the backend did."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from palmette.backends.backend import Expansion
from palmette.backends.local import LocalBackend
from palmette.engine.cuts import Sampling
from palmette.errors import PalmetteError
from palmette.train.model_parts import train_all
from palmette.train.samples import Sample
from palmette.train.update.learner import Learner
from palmette.train.update.optimizer import AdamSettings
from palmette.train.update.reference import response_logprobs
from palmette.train.update.update_result import UpdateResult

Prompt = Callable[[str], tuple[int, ...]]
SAMPLINGS = [
    Sampling(0.7), Sampling(1.0), Sampling(1.3), Sampling(0.0),
    Sampling(0.7, top_p=0.8), Sampling(1.0, top_p=0.8), Sampling(1.3, top_p=0.8),
]  # fmt: skip


def sampled(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, sampling: Sampling
) -> list[Sample]:
    """Grow up to two steps below each of three prompts, in 8 branches; return each step with all above it as prompt."""
    backend = LocalBackend(policy, tokenizer, sampling=sampling, batch_rows=16)
    wishes = [
        Expansion(text, 0, prompt(text), 100 * place + branch, 16, 1 + branch)
        for place, text in enumerate(("1+2", "(3+4)*2-5", "12*12-(7-3)+8-(2*2)"))
        for branch in range(8)
    ]
    samples: list[Sample] = []
    for _ in range(2):
        steps = backend.expand(wishes)
        for wish, step in zip(wishes, steps, strict=True):
            advantages = tuple((-1.0) ** place for place in range(len(step.tokens)))
            sample = Sample(
                wish.prefix,
                step.tokens,
                advantages,
                wish.question,
                old_logprobs=step.logprobs,
                temperature=step.temperature,
            )
            samples.append(sample)
        wishes = [
            Expansion(wish.question, wish.node or 0, (*wish.prefix, *step.tokens), wish.seed + 1, 16, 10 + number)
            for number, (wish, step) in enumerate(zip(wishes, steps, strict=True))
            if step.finish != "end"
        ]
    return samples


def first_update(policy: LlamaForCausalLM, samples: Sequence[Sample], temperature: float) -> UpdateResult:
    learner = Learner(train_all(copy.deepcopy(policy)), temperature=temperature)
    return learner.update(samples, micro_batch_tokens=200)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
# The engine's logits are float32 whatever the weights are. In float32 weights, two ways through this wide model differ
# by up to 1.1e-5, each of them by 0.9e-5 from the same in float64.
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-5), (torch.float32, 3e-5)])
def test_every_ratio_of_the_first_update_is_1(
    policy: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompt: Prompt,
    sampling: Sampling,
    dtype: torch.dtype,
    atol: float,
) -> None:
    policy = copy.deepcopy(policy)
    policy.to(dtype)  # type: ignore[arg-type]
    samples = sampled(policy, tokenizer, prompt, sampling)
    temperature = sampling.temperature or 1.0
    assert {sample.temperature for sample in samples} == {temperature}
    told = first_update(policy, samples, temperature)
    assert told.response_tokens > 100
    for ratio in (told.ratio_low, told.ratio_mean, told.ratio_high):
        assert ratio == pytest.approx(1.0, abs=atol)
    assert told.clipped_share == 0
    # The same by the path that gives the numbers of a reference.
    for sample, logprobs in zip(samples, response_logprobs(policy, samples, micro_batch_tokens=200), strict=True):
        assert sample.old_logprobs == pytest.approx(logprobs, abs=atol)


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_a_learner_at_another_temperature_refuses_the_steps(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, temperature: float
) -> None:
    samples = sampled(policy, tokenizer, prompt, Sampling(temperature))
    with pytest.raises(PalmetteError, match=f"sample 0 is at temperature {temperature}, the learner at 1.0"):
        first_update(policy, samples, 1.0)
    # What it refuses: told that they were at 1, it would take ratios far from 1 for news about the policy.
    told = first_update(policy, [replace(sample, temperature=1.0) for sample in samples], 1.0)
    assert told.ratio_low < 0.9 and told.ratio_high > 1.1 and told.clipped_share > 0.05


def test_ratios_leave_1_as_the_policy_leaves_the_one_that_sampled(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    samples = sampled(policy, tokenizer, prompt, Sampling(0.7))
    model = train_all(copy.deepcopy(policy))
    learner = Learner(model, adam=AdamSettings(learning_rate=1e-3), temperature=0.7)
    learner.update(samples, micro_batch_tokens=200)
    with torch.no_grad():
        now = response_logprobs(model, samples, micro_batch_tokens=200)
    told = learner.update(samples, micro_batch_tokens=200)
    moved = [
        torch.exp(torch.tensor(new) - torch.tensor(sample.old_logprobs))
        for sample, new in zip(samples, now, strict=True)
    ]
    ratios = torch.cat(moved)
    assert told.ratio_low < 0.99 and told.ratio_high > 1.01
    assert (told.ratio_low, told.ratio_mean, told.ratio_high) == pytest.approx(
        (float(ratios.min()), float(ratios.mean()), float(ratios.max())), abs=1e-5
    )
