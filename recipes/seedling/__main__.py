"""`python -m recipes.seedling`: trains both seedlings and prints what they can do."""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from palmette.train.supervised.measures import auc
from recipes.seedling.alphabet import alphabet
from recipes.seedling.policy import ripen, train_policy
from recipes.seedling.reward import Sample, sample_solutions, step_scores, train_reward

UPDATES = 7000
RIPENING = 6000
SAMPLES = 24_000
EPOCHS = 2
SEED = 0


def main() -> None:
    """Train the policy, then its reward model while a copy ripens on another core; measure all on the test split."""
    parser = argparse.ArgumentParser(description="Train the seedlings.")
    parser.add_argument("--out", type=Path, default=Path("src/palmette/zoo"))
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--ripening", type=int, default=RIPENING)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--keep-policy", action="store_true", help="train only what scores it")
    options = parser.parse_args()
    torch.set_num_threads(1)  # Sums depend on the number of threads: one gives the shipped weights on any machine.
    begun = time.monotonic()
    tokenizer = alphabet()
    folder = options.out / "seedling"
    if options.keep_policy:
        policy = LlamaForCausalLM.from_pretrained(folder).eval()
    else:
        policy = train_policy(tokenizer, options.updates, SEED)
        policy.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    print(f"policy: done after {(time.monotonic() - begun) / 60:.1f} min", flush=True)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other_core:
        ripening = other_core.submit(ripen_copy, folder, options.out / "seedling-ripe", options.ripening)
        test = sample_solutions(policy, tokenizer, "test", 2048, SEED + 1)
        print(f"policy: pass@1 {sum(sample.solved for sample in test) / len(test):.3f} on {len(test)} test problems")
        train = sample_solutions(policy, tokenizer, "train", options.samples, SEED + 2)
        reward = train_reward(policy, tokenizer, train, options.epochs, SEED)
        reward.save_pretrained(options.out / "seedling-prm")
        tokenizer.save_pretrained(options.out / "seedling-prm")
        scores, labels = step_scores(reward, tokenizer, test)
        wrong = 1 - sum(labels) / len(labels)
        print(f"reward model: step AUC {auc(scores, labels):.4f} on {len(labels)} steps, {wrong:.1%} of them wrong")
        ripening.result()
    ripe = LlamaForCausalLM.from_pretrained(options.out / "seedling-ripe").eval()
    (line_break,) = tokenizer.encode("\n", add_special_tokens=False)
    chances = [chance(ripe, sample, line_break) for sample in test]
    solved = [sample.solved for sample in test]
    print(f"ripe policy: AUC {auc(chances, solved):.4f} of its chance for a solution, on {len(test)} samples")
    print(f"all: done after {(time.monotonic() - begun) / 60:.1f} min")


def ripen_copy(folder: Path, out: Path, updates: int) -> None:
    """Train the policy of a folder on, into another."""
    torch.set_num_threads(1)
    tokenizer = alphabet()
    ripen(LlamaForCausalLM.from_pretrained(folder), tokenizer, updates, SEED).save_pretrained(out)
    tokenizer.save_pretrained(out)


@torch.inference_mode()
def chance(model: LlamaForCausalLM, sample: Sample, line_break: int) -> float:
    """Return the logarithm of the model's chance for what a sample writes after the prompt, which is one line."""
    tokens = torch.tensor([sample.tokens])
    chances = model(input_ids=tokens[:, :-1]).logits.log_softmax(-1).gather(2, tokens[:, 1:, None])
    return float(chances[0, sample.tokens.index(line_break) :].sum())


if __name__ == "__main__":
    main()
