"""Trains the process reward model to see where a solution leaves the right path.

A ripe copy of the policy knows the right lines: the chance it gives to a token tells a wrong one at once (on samples of
the policy the chance of the whole solution has an AUC of 0.996 for solved against failed). The reward model begins as
the ripe copy with two layers more, which learn to notice such tokens and to remember them at the end of every line.
Labels at line ends alone did not teach it that, nor did samples alone: too few of their tokens are wrong. So half of
the batches are right solutions with digits changed, and every token says whether the ripe copy expected it.

Shapes: R rows, T tokens, V vocabulary.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import torch
from rich.progress import track
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification, PreTrainedTokenizerFast

from palmette.tasks import ladder
from recipes.seedling.policy import encode

BATCH_ROWS = 24
LEARNING_RATE = 2e-3
BODY_RATE = 1e-3
EXTRA_LAYERS = 2
CHANGED = (0.01, 0.04, 0.12)
EXPECTED = 0.5
UNLABELED = -1.0


@dataclass(frozen=True)
class Sample:
    """A solution with its prompt as tokens, and a label at each step's last token: is all right so far."""

    tokens: list[int]
    labels: dict[int, bool]
    solved: bool


@torch.inference_mode()
def sample_solutions(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, split: ladder.Split, count: int, seed: int
) -> list[Sample]:
    """Let the policy solve `count` problems of the default grade once each, at temperature 1."""
    torch.manual_seed(seed)
    problems = list(islice(ladder.problems(ladder.DEFAULT_GRADE, split, seed), count))
    problems.sort(key=lambda problem: len(problem.expression))
    samples = []
    for start in track(range(0, count, 256), f"samples of the policy ({split})"):
        batch = problems[start : start + 256]
        prompts = [f"<bos>{problem.expression}\n" for problem in batch]
        inputs = tokenizer(
            prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False,
            return_token_type_ids=False,
        )  # fmt: skip
        written = cast(Any, model).generate(
            **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=240
        )
        answers = written[:, inputs["input_ids"].shape[1] :].tolist()
        samples += [judge(tokenizer, problem, answer) for problem, answer in zip(batch, answers, strict=True)]
    return samples


def judge(tokenizer: PreTrainedTokenizerFast, problem: ladder.Problem, answer: list[int]) -> Sample:
    """Label each line: right when it and all before it follow, and the last only when nothing is left to do."""
    prompt = tokenizer.encode(f"<bos>{problem.expression}\n", add_special_tokens=False)
    end, line_break = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("\n")
    answer = answer[: answer.index(end) + 1] if end in answer else answer
    state: tuple[ladder.Token, ...] | None = ladder.parse(problem.expression)
    labels: dict[int, bool] = {}
    begin, solved, right = 0, False, True
    for place, token in enumerate(answer):
        if token in (end, line_break):
            follows, state = ladder.follow(state, str(tokenizer.decode(answer[begin:place])))
            right = right and follows
            if token == end:
                solved = state is not None and state == (problem.answer,)
                right = right and state is not None and len(state) == 1
            labels[len(prompt) + place] = right
            begin = place + 1
    return Sample([*prompt, *answer], labels, solved)


def changed_solutions(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[list[Sample]]:
    """Yield batches of right solutions in which digits were changed at random, few or many in each."""
    generator = random.Random(seed)
    digits = tokenizer.encode("0123456789", add_special_tokens=False)
    problems = ladder.problems(ladder.DEFAULT_GRADE, "train", seed)
    while True:
        batch = []
        for problem in sorted(islice(problems, 16 * BATCH_ROWS), key=lambda problem: len(problem.expression)):
            tokens, prompt = encode(tokenizer, problem)
            rate = generator.choice(CHANGED)
            answer = [
                generator.choice(digits) if token in digits and generator.random() < rate else token
                for token in tokens[prompt:]
            ]
            batch.append(judge(tokenizer, problem, answer))
        ready = [batch[start : start + BATCH_ROWS] for start in range(0, len(batch), BATCH_ROWS)]
        generator.shuffle(ready)
        yield from ready


def new_reward(ripe: LlamaForCausalLM) -> LlamaForTokenClassification:
    """Return the ripe copy's body with layers on top that do nothing yet, and a scalar head."""
    config = LlamaConfig.from_dict(ripe.config.to_dict())
    config.num_labels = 1
    config.num_hidden_layers += EXTRA_LAYERS
    model = LlamaForTokenClassification(config)
    model.model.load_state_dict(ripe.model.state_dict(), strict=False)
    for layer in model.model.layers[-EXTRA_LAYERS:]:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def train_reward(
    ripe: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, samples: list[Sample], updates: int, seed: int
) -> LlamaForTokenClassification:
    """Train on changed solutions and on the policy's samples by turns; a second head, not kept, learns every token."""
    torch.manual_seed(seed)
    model = new_reward(ripe)
    notices = torch.nn.Linear(model.config.hidden_size, 1)
    fresh = [
        *model.model.layers[-EXTRA_LAYERS:].parameters(),
        *model.model.norm.parameters(),
        *model.score.parameters(),
    ]
    known = {id(weights) for weights in fresh}
    body = [weights for weights in model.parameters() if id(weights) not in known]
    rates = (LEARNING_RATE, BODY_RATE)
    groups: list[dict[str, Any]] = [{"params": [*fresh, *notices.parameters()]}, {"params": body}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    changed, sampled = changed_solutions(tokenizer, seed + 3), _endless_batches(samples, random.Random(seed))
    recent: list[tuple[float, float]] = []
    for update in track(range(updates), "reward model"):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1, (update + 1) / 50, (updates - update) / (0.6 * updates))
        tokens_RT, labels_RT = _collate(next(changed if update % 2 else sampled), tokenizer.pad_token_id)
        expected_RT = _expected(ripe, tokens_RT)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.model(input_ids=tokens_RT, use_cache=False).last_hidden_state
        labeled, real = labels_RT != UNLABELED, tokens_RT[:, 1:] != tokenizer.pad_token_id
        line_loss = binary_cross_entropy_with_logits(model.score(hidden[labeled].float())[:, 0], labels_RT[labeled])
        token_loss = binary_cross_entropy_with_logits(notices(hidden[:, 1:][real].float())[:, 0], expected_RT[real])
        (line_loss + token_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        recent.append((line_loss.item(), token_loss.item()))
        if (update + 1) % 100 == 0:
            lines, noticed = (sum(losses) / 100 for losses in zip(*recent[-100:], strict=True))
            print(f"update {update + 1}: loss of lines {lines:.4f}, of tokens {noticed:.4f}", flush=True)
    return model.eval()


@torch.inference_mode()
def _expected(ripe: LlamaForCausalLM, tokens_RT: torch.Tensor) -> torch.Tensor:
    """Return 1 for each token after the first that the ripe copy expected, 0 for the others."""
    with torch.autocast("cpu", torch.bfloat16):
        logits_RTV = ripe(input_ids=tokens_RT[:, :-1], use_cache=False).logits
    chances_RT = logits_RTV.float().softmax(-1).gather(2, tokens_RT[:, 1:, None])[..., 0]
    return (chances_RT > EXPECTED).float()


@torch.inference_mode()
def step_scores(
    model: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast, samples: list[Sample]
) -> tuple[list[float], list[bool]]:
    """Return the score and the label of every step."""
    scores: list[float] = []
    labels: list[bool] = []
    for start in range(0, len(samples), 128):
        tokens_RT, labels_RT = _collate(samples[start : start + 128], tokenizer.pad_token_id)
        labeled = labels_RT != UNLABELED
        mask = (tokens_RT != tokenizer.pad_token_id).long()
        logits = model(input_ids=tokens_RT, attention_mask=mask).logits[..., 0]
        scores += logits[labeled].sigmoid().tolist()
        labels += (labels_RT[labeled] > 0.5).tolist()
    return scores, labels


def auc(scores: list[float], labels: list[bool]) -> float:
    """Return the chance that a right step scores above a wrong one; ties count half."""
    ranked = sorted(zip(scores, labels, strict=True))
    wrong_below, wins, place = 0, 0.0, 0
    while place < len(ranked):
        end = place
        while end < len(ranked) and ranked[end][0] == ranked[place][0]:
            end += 1
        right = sum(label for _, label in ranked[place:end])
        wrong = end - place - right
        wins += right * (wrong_below + wrong / 2)
        wrong_below += wrong
        place = end
    rights = sum(labels)
    return wins / (rights * (len(labels) - rights))


def _endless_batches(samples: list[Sample], generator: random.Random) -> Iterator[list[Sample]]:
    while True:
        yield from _shuffled_batches(samples, generator)


def _shuffled_batches(samples: list[Sample], generator: random.Random) -> list[list[Sample]]:
    jittered = sorted(samples, key=lambda sample: len(sample.tokens) + generator.random() * 8)
    ready = [jittered[start : start + BATCH_ROWS] for start in range(0, len(jittered), BATCH_ROWS)]
    generator.shuffle(ready)
    return ready


def _collate(samples: list[Sample], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(sample.tokens) for sample in samples)
    tokens_RT = torch.full((len(samples), longest), pad)
    labels_RT = torch.full((len(samples), longest), UNLABELED)
    for index, sample in enumerate(samples):
        tokens_RT[index, : len(sample.tokens)] = torch.tensor(sample.tokens)
        for place, right in sample.labels.items():
            labels_RT[index, place] = float(right)
    return tokens_RT, labels_RT
