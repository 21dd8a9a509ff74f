"""AdamW against Muon on a small model of `words` from scratch: the loss of held-out answers as updates go by.

    python -m benchmarks.optimizers --updates 600

Every side gets the same rows in the same order from the same untrained model, each optimizer at several learning rates,
of which the best one at the end counts; and Muon once more with prompts that are learned too.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import palmette
from palmette.events import RowsTested
from recipes.seedling_words.alphabet import alphabet
from recipes.seedling_words.untrained import new_policy
from recipes.words import write_rows

SIDES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("adamw 1e-3", {"train.optimizer": "adamw", "train.learning_rate": 1e-3}),
    ("adamw 3e-3", {"train.optimizer": "adamw", "train.learning_rate": 3e-3}),
    ("adamw 6e-3", {"train.optimizer": "adamw", "train.learning_rate": 6e-3}),
    ("muon 4e-3", {"train.optimizer": "muon", "train.learning_rate": 4e-3}),
    ("muon 8e-3", {"train.optimizer": "muon", "train.learning_rate": 8e-3}),
    ("muon 8e-3, prompts 0.3", {"train.optimizer": "muon", "train.learning_rate": 8e-3, "sft.prompt_weight": 0.3}),
)


def main() -> None:
    """Print a row for each side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--sides", nargs="+", default=[name for name, _ in SIDES])
    options = parser.parse_args()
    tokenizer = alphabet()
    with tempfile.TemporaryDirectory() as folder:
        untrained = Path(folder) / "untrained"
        new_policy(tokenizer, 0, 128, 3).save_pretrained(untrained)
        tokenizer.save_pretrained(untrained)
        # A row has about 150 tokens, an update 1,280.
        data = write_rows(Path(folder) / "rows.jsonl", "1,2", 9 * options.updates, "--plain-questions", seed=1)
        every = max(1, options.updates // 4)
        for place, (name, given) in enumerate(SIDES):
            if name not in options.sides:
                continue
            tested: list[RowsTested] = []

            def note(event: Any, tested: list[RowsTested] = tested) -> None:
                if isinstance(event, RowsTested):
                    tested.append(event)

            palmette.sft(
                str(untrained),
                data,
                out=Path(folder) / str(place),
                seed=0,
                settings={
                    "sft.batch_tokens": 1280,
                    "sft.test_share": 0.03,
                    "train.warmup_updates": 50,
                    "train.gradient_checkpointing": False,
                    "train.eval_every": every,
                    **given,
                },
                progress=note,
            )
            told = "  ".join(f"{event.update}: {event.numbers['loss']:.3f}" for event in tested[1:])
            print(f"{name:24} loss of answers after so many updates: {told}", flush=True)


if __name__ == "__main__":
    main()
