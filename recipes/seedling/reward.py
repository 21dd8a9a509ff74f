"""Trains the process reward model on the policy's own samples, judged line by line.

Shapes: R rows, T tokens.
"""

import random
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import torch
from rich.progress import track
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification, PreTrainedTokenizerFast

from palmette.tasks import ladder

BATCH_ROWS = 24
LEARNING_RATE = 1e-3
UNLABELED = -1.0


@dataclass(frozen=True)
class Sample:
    """A solution the policy wrote: its tokens with the prompt, and a label at each step's last token."""

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
    """Label each line: right when it follows from the lines before, and the last only when nothing is left to do."""
    prompt = tokenizer.encode(f"<bos>{problem.expression}\n", add_special_tokens=False)
    end, line_break = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("\n")
    answer = answer[: answer.index(end) + 1] if end in answer else answer
    state: tuple[ladder.Token, ...] | None = ladder.parse(problem.expression)
    labels: dict[int, bool] = {}
    begin, solved = 0, False
    for place, token in enumerate(answer):
        if token in (end, line_break):
            right, state = ladder.follow(state, str(tokenizer.decode(answer[begin:place])))
            if token == end:
                solved = state is not None and state == (problem.answer,)
                right = right and state is not None and len(state) == 1
            labels[len(prompt) + place] = right
            begin = place + 1
    return Sample([*prompt, *answer], labels, solved)


def train_reward(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, samples: list[Sample], epochs: int, seed: int
) -> LlamaForTokenClassification:
    """Train a scalar head and the whole body, begun from the policy's, to tell right lines from wrong ones."""
    torch.manual_seed(seed)
    config = LlamaConfig.from_dict(policy.config.to_dict())
    config.num_labels = 1
    model = LlamaForTokenClassification(config)
    model.model.load_state_dict(policy.model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    generator = random.Random(seed)
    order = [batch for _ in range(epochs) for batch in _shuffled_batches(samples, generator)]
    recent: list[float] = []
    for update, batch in enumerate(track(order, "reward model")):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (update + 1) / 100, (len(order) - update) / (0.6 * len(order)))
        tokens_RT, labels_RT = _collate(batch, tokenizer.pad_token_id)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.model(input_ids=tokens_RT, use_cache=False).last_hidden_state
        labeled = labels_RT != UNLABELED
        logits = model.score(hidden[labeled].float())[:, 0]
        loss = binary_cross_entropy_with_logits(logits, labels_RT[labeled])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        recent.append(loss.item())
        if (update + 1) % 250 == 0:
            print(f"update {update + 1}: loss {sum(recent[-250:]) / 250:.4f}", flush=True)
    return model.eval()


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
