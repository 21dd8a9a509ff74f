"""Log-probabilities with their gradients: extra memory and time of our chunks, of full logits and of verl's way.

    python -m benchmarks.logprobs --turns 3

Each side runs in a process of its own, the sides take turns. Memory is the peak resident set above what was held
before the first call; time is CPU time of one forward and backward pass; differences are shares of the largest value.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.peaks import peak_of_process
from palmette.memory.host import resident_bytes
from palmette.train.logprobs import plain_logprobs, token_logprobs
from palmette.train.model_parts import Head
from palmette.units import format_bytes


def verl_logprobs(hidden_TD: torch.Tensor, head: Head, tokens_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same by full logits, divided in place, one logsumexp for each row, as verl does on CPU tensors."""
    logits_TV = hidden_TD @ head.weight_VD.t()
    logits_TV.div_(head.temperature)
    chosen_T = logits_TV.gather(1, tokens_T[:, None])[:, 0]
    logprobs_T = chosen_T - torch.stack([row_V.logsumexp(-1) for row_V in logits_TV])
    chances_TV = torch.softmax(logits_TV, -1)
    return logprobs_T, logits_TV.logsumexp(-1) - (chances_TV * logits_TV).sum(-1)


SIDES = {"palmette": token_logprobs, "plain": plain_logprobs, "verl": verl_logprobs}


def one_side(name: str, tokens: int, vocabulary: int, width: int, results: Path) -> None:
    """Run one side; print its extra bytes and seconds, write its values and gradients."""
    torch.manual_seed(0)
    hidden_TD = torch.randn(tokens, width, requires_grad=True)
    weight_VD = (torch.randn(vocabulary, width) / width**0.5).requires_grad_()
    tokens_T = torch.randint(vocabulary, (tokens,))
    above_T, above_entropy_T = torch.randn(tokens) / tokens, torch.randn(tokens) / tokens
    torch.mm(hidden_TD.detach()[:8], weight_VD.detach()[:8].t())  # The matrix library's own start.
    before, begun = resident_bytes(), time.process_time()
    logprobs_T, entropies_T = SIDES[name](hidden_TD, Head(weight_VD, temperature=0.8), tokens_T)
    ((logprobs_T * above_T).sum() + (entropies_T * above_entropy_T).sum()).backward()
    print(peak_of_process() - before, time.process_time() - begun)
    torch.save([logprobs_T.detach(), entropies_T.detach(), hidden_TD.grad, weight_VD.grad], results)


def main() -> None:
    """Print one line for each side and the ratios to ours."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    if options.side:
        one_side(options.side, options.tokens, options.vocabulary, options.width, options.results)
        return
    extra: dict[str, list[int]] = {name: [] for name in SIDES}
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    shape = [f"--{key}={getattr(options, key)}" for key in ("tokens", "vocabulary", "width")]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.turns):
            for name in SIDES:
                command = [sys.executable, "-m", "benchmarks.logprobs", *shape, "--side", name]
                done = subprocess.run([*command, "--results", f"{folder}/{name}"], check=True, stdout=subprocess.PIPE)
                told = done.stdout.split()
                extra[name].append(int(told[0]))
                seconds[name].append(float(told[1]))
        values = {name: torch.load(f"{folder}/{name}", mmap=True) for name in SIDES}
        for name in SIDES:
            held, spent = max(extra[name]), statistics.median(seconds[name])
            apart = [
                float((ours - theirs).abs().max() / theirs.abs().max())
                for ours, theirs in zip(values[name], values["plain"], strict=True)
            ]
            more, longer = held / max(extra["palmette"]), spent / statistics.median(seconds["palmette"])
            print(
                f"{name:9} {format_bytes(held):>10} extra ({more:5.1f} x ours)  {spent:6.2f} s ({longer:4.2f} x ours)  "
                f"off plain by at most {max(apart[:2]):.0e} in values, {max(apart[2:]):.0e} in gradients"
            )


if __name__ == "__main__":
    main()
