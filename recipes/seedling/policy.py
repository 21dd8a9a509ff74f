"""Trains the policy from scratch on `ladder`, until it solves half of the problems.

Shapes: R rows, T tokens, V vocabulary.
"""

import copy
import random
from collections.abc import Iterator
from itertools import islice

import torch
from rich.progress import track
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from palmette.tasks import ladder

BATCH_TOKENS = 2048  # Small: at this size updates are what is short, not tokens.
LEARNING_RATE = 3e-3
IGNORED = -100
GOOD_ENOUGH = 0.5  # A policy that is always right leaves search nothing to do.
CHECK_UPDATES = 250

Row = tuple[list[int], int]
"""A problem with its solution as tokens, and how many of them are the prompt."""


def new_policy(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return an untrained Llama of 1.2 M parameters.

    Six layers of 128 find their place in the expression sooner than four of 160: loss 0.68 against 0.90 after 700
    updates.
    """
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=6,
        intermediate_size=352,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def train_policy(tokenizer: PreTrainedTokenizerFast, updates: int, seed: int) -> LlamaForCausalLM:
    """Train for at most that many updates of about 2,048 tokens each; stop early at GOOD_ENOUGH."""
    torch.manual_seed(seed)
    model = new_policy(tokenizer)
    data = batches(tokenizer, updates, seed)
    _train(model, tokenizer, data, updates, seed, falling=0.4, good_enough=GOOD_ENOUGH)
    return model.eval()


def ripen(policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, updates: int, seed: int) -> LlamaForCausalLM:
    """Train a copy of the policy on, until it hardly errs: the body that a reward model begins from.

    Who is to tell right lines from wrong ones has to know the right ones better than the policy does.
    """
    model = copy.deepcopy(policy).train()
    _train(model, tokenizer, batches(tokenizer, 0, seed + 101), updates, seed + 1, falling=0.6, good_enough=1.0)
    return model.eval()


def _train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    data: Iterator[list[Row]],
    updates: int,
    seed: int,
    *,
    falling: float,
    good_enough: float,
) -> None:
    """Train in place; the learning rate rises over 100 updates and falls over the last part, `falling` of all."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    recent: list[float] = []
    held_out = [encode(tokenizer, problem) for problem in islice(ladder.problems(3, "train", seed + 1), 256)]
    for update in track(range(updates), "policy"):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (update + 1) / 100, (updates - update) / (falling * updates))
        loss = solution_loss(model, *collate(next(data), tokenizer.pad_token_id))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        recent.append(loss.item())
        if (update + 1) % CHECK_UPDATES == 0:
            chance = canonical_chance(model, held_out, tokenizer.pad_token_id)
            loss_now = sum(recent[-CHECK_UPDATES:]) / CHECK_UPDATES
            print(f"update {update + 1}: loss {loss_now:.4f}, canonical solution {chance:.3f}", flush=True)
            if chance >= good_enough:
                break


@torch.inference_mode()
def canonical_chance(model: LlamaForCausalLM, rows: list[Row], pad: int) -> float:
    """Return the mean probability of writing the canonical solution at temperature 1: a floor under pass@1."""
    chances: list[float] = []
    for start in range(0, len(rows), 64):
        tokens_RT, labels_RT = collate(rows[start : start + 64], pad)
        logits = model(input_ids=tokens_RT[:, :-1], use_cache=False).logits
        losses = cross_entropy(logits.transpose(1, 2), labels_RT[:, 1:], ignore_index=IGNORED, reduction="none")
        chances += (-losses.sum(1)).exp().tolist()
    return sum(chances) / len(chances)


def batches(tokenizer: PreTrainedTokenizerFast, updates: int, seed: int) -> Iterator[list[Row]]:
    """Yield batches of rows of about one length; grade 3 takes over after the first quarter."""
    generator = random.Random(seed)
    streams = [ladder.problems(grade, "train", seed) for grade in (1, 2, 3)]
    drawn = 0
    while True:
        mix = (3, 3, 2) if drawn < updates // 4 else (1, 2, 7)
        problems = (next(generator.choices(streams, mix)[0]) for _ in range(512))
        rows = sorted((encode(tokenizer, problem) for problem in problems), key=lambda row: len(row[0]))
        ready: list[list[Row]] = [[]]
        for row in rows:
            if len(row[0]) * (len(ready[-1]) + 1) > BATCH_TOKENS:
                ready.append([])
            ready[-1].append(row)
        generator.shuffle(ready)
        drawn += len(ready)
        yield from ready


def encode(tokenizer: PreTrainedTokenizerFast, problem: ladder.Problem) -> Row:
    """Return a problem as the search puts it: prompt, lines, the end token in place of the last line break."""
    prompt = tokenizer.encode(f"<bos>{problem.expression}\n", add_special_tokens=False)
    lines = tokenizer.encode("\n".join(problem.lines), add_special_tokens=False)
    return [*prompt, *lines, tokenizer.eos_token_id], len(prompt)


def collate(rows: list[Row], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad rows on the right; prompts and padding carry no label."""
    longest = max(len(tokens) for tokens, _ in rows)
    tokens_RT = torch.full((len(rows), longest), pad)
    labels_RT = torch.full((len(rows), longest), IGNORED)
    for index, (tokens, prompt) in enumerate(rows):
        tokens_RT[index, : len(tokens)] = torch.tensor(tokens)
        labels_RT[index, prompt : len(tokens)] = torch.tensor(tokens[prompt:])
    return tokens_RT, labels_RT


def solution_loss(model: LlamaForCausalLM, tokens_RT: torch.Tensor, labels_RT: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over solution tokens; the body in bfloat16, the head on labeled positions alone."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=tokens_RT, use_cache=False).last_hidden_state
    labeled = labels_RT[:, 1:] != IGNORED
    logits = model.lm_head(hidden[:, :-1][labeled].float())
    return cross_entropy(logits, labels_RT[:, 1:][labeled])
