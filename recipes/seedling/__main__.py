"""`python -m recipes.seedling`: trains both seedlings and prints what they can do."""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from recipes.seedling.alphabet import alphabet
from recipes.seedling.policy import ripen, train_policy
from recipes.seedling.reward import auc, sample_solutions, step_scores, train_reward

UPDATES = 7000
RIPENING = 6000
SAMPLES = 24_000
REWARD_UPDATES = 2400
SEED = 0


def main() -> None:
    """Train the policy, sample it while a copy ripens, train the reward model, measure both on the test split."""
    parser = argparse.ArgumentParser(description="Train the seedlings.")
    parser.add_argument("--out", type=Path, default=Path("src/palmette/zoo"))
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--ripening", type=int, default=RIPENING)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--reward-updates", type=int, default=REWARD_UPDATES)
    parser.add_argument("--keep-policy", action="store_true", help="train only the reward model")
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
        ripening = other_core.submit(ripe_copy, folder, options.ripening)
        test = sample_solutions(policy, tokenizer, "test", 2048, SEED + 1)
        print(f"policy: pass@1 {sum(sample.solved for sample in test) / len(test):.3f} on {len(test)} test problems")
        train = sample_solutions(policy, tokenizer, "train", options.samples, SEED + 2)
        ripe = ripening.result()
    print(f"ripe copy and samples: done after {(time.monotonic() - begun) / 60:.1f} min", flush=True)
    reward = train_reward(ripe, tokenizer, train, options.reward_updates, SEED)
    reward.save_pretrained(options.out / "seedling-prm")
    tokenizer.save_pretrained(options.out / "seedling-prm")
    scores, labels = step_scores(reward, tokenizer, test)
    wrong = 1 - sum(labels) / len(labels)
    print(f"reward model: step AUC {auc(scores, labels):.4f} on {len(labels)} steps, {wrong:.1%} of them wrong")
    print(f"both: done after {(time.monotonic() - begun) / 60:.1f} min")


def ripe_copy(folder: Path, updates: int) -> LlamaForCausalLM:
    """Return the policy of a folder trained on."""
    torch.set_num_threads(1)
    return ripen(LlamaForCausalLM.from_pretrained(folder), alphabet(), updates, SEED)


if __name__ == "__main__":
    main()
