"""Search one question of your own with the shipped models.

Prints the answer with its score, what each way of voting elects, how the leaves voted, what the tree's branches shared
in the KV cache, and the tree itself, a line for each step.
"""

import argparse
from collections import Counter

import palmette

parser = argparse.ArgumentParser(description="Search one question.")
parser.add_argument("question", nargs="?", default="(3+4)*2-5")
parser.add_argument("--strategy", default="ets")
parser.add_argument("--width", type=int, default=8)
asked = parser.parse_args()

with palmette.Searcher(policy="seedling", strategy=asked.strategy, width=asked.width) as searcher:
    result = searcher.search(asked.question)

print(f"answer {result.answer}, score {result.score:.3f}")
for vote, choice in result.choices.items():
    print(f"{vote:<8} elects {choice.answer}")
votes = Counter(ballot.canonical for ballot in result.ballots)
print("votes", ", ".join(f"{answer}: {count}" for answer, count in votes.most_common()))
print(f"{result.tokens} tokens written; KV peak {result.peak_kv_tokens} tokens, {result.unshared_kv_tokens} unshared")
print(result.tree)
