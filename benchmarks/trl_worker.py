"""Trains with TRL's GRPOTrainer in an environment of its own; prints a line of JSON for each update.

python trl_worker.py MODEL_FOLDER QUESTIONS.json OPTIONS.json
"""

import json
import sys
import time
from pathlib import Path

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.sum_reward import last_number_is_right


def peak_bytes() -> int:
    """Return the most that this process has held."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


class Told(TrainerCallback):
    """Prints what each update took and what its reward was."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:  # type: ignore[no-untyped-def]
        """Print the numbers of one update."""
        now = time.perf_counter()
        if logs and "reward" in logs:
            told = {"seconds": now - self._begun, "reward": logs["reward"], "peak_bytes": peak_bytes()}
            told |= {
                name: logs[name] for name in ("kl", "entropy", "grad_norm", "completions/mean_length") if name in logs
            }
            print("UPDATE " + json.dumps(told), flush=True)
            self._begun = now


def main() -> None:
    """Train for as many updates as the options say."""
    folder, questions, options = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), json.loads(sys.argv[3])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    peft = None
    if options["method"] == "lora":
        from peft import LoraConfig

        peft = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    config = GRPOConfig(
        output_dir=options["out"],
        use_cpu=True,
        bf16=False,
        learning_rate=options["learning_rate"],
        lr_scheduler_type="constant",
        per_device_train_batch_size=options["questions"] * options["width"],
        num_generations=options["width"],
        max_completion_length=options["tokens"],
        beta=options["kl_weight"],
        temperature=1.0,
        max_steps=options["updates"],
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        seed=options["seed"],
        shuffle_dataset=False,
        gradient_checkpointing=options["gradient_checkpointing"],
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=last_number_is_right,
        args=config,
        train_dataset=Dataset.from_list(questions),
        callbacks=[Told()],
        peft_config=peft,
    )
    trainer.train()


if __name__ == "__main__":
    main()
