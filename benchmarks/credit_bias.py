"""What a step is worth, estimated from a tree by its leaves and by its children, against many rollouts from the step.

    python -m benchmarks.credit_bias

Trees of 16 leaves on ladder with the seedling, scored by a reward model. Its steps are so sure at temperature 1 that
siblings are mostly equal, hence temperature 1.5 by default, for trees and rollouts alike. The trees are REBASE as
published; the same trees with every pruned branch completed by one rollout of the policy, which tells what pruning
does from what widths do; REBASE that gives every leaf at least one child (4 first steps, then 8, then 16 branches), so
that the reward model sets widths but prunes nothing; and a fixed tree, 4-2-2. For the prompt and every step of depth 1
and 2 that has an outcome below it, the error is the estimate minus the share of right answers among rollouts that begin
with the step.

Errors are averaged within a question and then over questions; standard errors are over questions, by jackknife.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import palmette
from palmette.run.parts import Parts, build_parts
from palmette.search.answer import aggregate_scores
from palmette.search.strategies.rebase import share
from palmette.strategy import Children, Frontier
from palmette.train.credit.credit import CreditTree
from palmette.train.credit.tree_samples import credit_tree
from palmette.train.credit.values import child_means, leaf_means
from palmette.tree import Tree

WIDTH = 16
DEPTHS = (0, 1, 2)
GROWING = (4, 8, 16)
TEMPERATURE = 0.2
REBASE, COMPLETED = "rebase", "rebase, pruned branches completed"
GROWN = (REBASE, "rebase, nothing pruned", "fixed tree 4-2-2")
TREES = (REBASE, COMPLETED, *GROWN[1:])
LOW_SCORE = 0.99
RULES = ("leaves", "children")

SEED = 7919
"""Of the rollouts: no tree has it."""

Prefix = tuple[int, ...]


def rebase_without_pruning(frontier: Frontier, width: int, room: int | None) -> Children:
    """Give every leaf one child and share what GROWING leaves of the wave's branches by REBASE; later one each."""
    depth = frontier.tree.nodes[frontier.leaves[0]].depth
    children = dict.fromkeys(frontier.leaves, 1)
    ended = sum(node.finished for node in frontier.tree.nodes)
    more = GROWING[depth] - ended - len(children) if depth < len(GROWING) else 0
    if more > 0:
        for leaf, count in share(frontier.ranked(), more, TEMPERATURE).items():
            children[leaf] += count
    return children


class FromPrefixes:
    """The policy's backend, for which a prompt can also be a prefix of tokens: the number of one of `prefixes`."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.prefixes: list[Prefix] = []

    def encode(self, messages: Sequence[dict[str, str]]) -> Prefix:
        """Return the tokens of a prompt, or the prefix that is named."""
        content = messages[-1]["content"]
        if content.startswith("prefix "):
            return self.prefixes[int(content.removeprefix("prefix "))]
        found: Prefix = self._backend.encode(messages)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class Truth:
    """The share of right answers among rollouts that begin with a prefix, at least `rollouts` of them."""

    def __init__(self, backend: FromPrefixes, rollouts: int, settings: dict[str, Any]) -> None:
        self._backend = backend
        self._rollouts = rollouts
        self._searcher = palmette.Searcher(
            "seedling", None, "best_of_n", seed=SEED, width=rollouts, parts=Parts(backend, None), settings=settings
        )
        self._found: dict[Prefix, list[float]] = defaultdict(list)
        self.tokens = 0

    def roll_out(self, asked: Sequence[tuple[Prefix, str | None]]) -> None:
        """Roll out from prefixes (with their reference answers) that have too few rollouts yet.

        A rollout counts for every beginning of it that ends with one of the first steps.
        """
        wanted = [pair for pair in dict.fromkeys(asked) if len(self._found[pair[0]]) < self._rollouts]
        questions = []
        for prefix, reference in wanted:
            number = len(self._backend.prefixes)
            self._backend.prefixes.append(prefix)
            message = {"role": "user", "content": f"prefix {number}"}
            questions.append(palmette.Question(f"prefix {number}", (message,), reference))
        if not questions:
            return
        for result in self._searcher.search(palmette.Task("prefixes", tuple(questions), step_end="\n")):
            self.tokens += result.tokens
            for leaf in result.leaves:
                for node in result.tree.path(leaf.id)[: DEPTHS[-1] + 1]:
                    self._found[result.tree.path_tokens(node.id)].append(leaf.reward or 0.0)

    def of(self, prefix: Prefix) -> tuple[float, int]:
        """Return the share of right answers and the number of rollouts."""
        found = self._found[prefix]
        return sum(found) / len(found), len(found)


class Completions:
    """Rewards of single rollouts from the ends of pruned branches, a new one for every branch."""

    def __init__(self, backend: FromPrefixes, settings: dict[str, Any]) -> None:
        self._backend = backend
        self._settings = settings

    def complete(self, results: Sequence[palmette.SearchResult]) -> list[CreditTree]:
        """Return the trees with a reward for every pruned leaf."""
        questions, places = [], []
        for number, result in enumerate(results):
            for node in result.tree.nodes:
                if node.state == "pruned":
                    name = f"prefix {len(self._backend.prefixes)}"
                    self._backend.prefixes.append(result.tree.path_tokens(node.id))
                    message = {"role": "user", "content": name}
                    questions.append(palmette.Question(f"completed {name}", (message,), result.question.reference))
                    places.append((number, node.id))
        rewards = [list(credit_tree(result.tree).rewards) for result in results]
        if questions:
            searcher = palmette.Searcher(
                "seedling", None, "best_of_n", seed=SEED, width=1, parts=Parts(self._backend, None),
                settings=self._settings,
            )  # fmt: skip
            found = searcher.search(palmette.Task("completions", tuple(questions), step_end="\n"))
            for (number, leaf), completed in zip(places, found, strict=True):
                rewards[number][leaf] = completed.leaves[0].reward or 0.0
        trees = [credit_tree(result.tree) for result in results]
        return [CreditTree(tree.parents, tuple(own), tree.tokens) for tree, own in zip(trees, rewards, strict=True)]


@dataclass(frozen=True)
class Step:
    """One step of a tree with both estimates of its value, the true one, and its aggregated score."""

    question: str
    trees: str
    depth: int
    estimates: dict[str, float]
    true: float
    rollouts: int
    score: float | None

    def error(self, rule: str) -> float:
        """Return the estimate by a rule minus the true value."""
        return self.estimates[rule] - self.true


def grow(
    parts: Parts, task: palmette.Task, kind: str, seed: int, settings: dict[str, Any]
) -> list[palmette.SearchResult]:
    """Return a judged tree for each question."""
    strategies: dict[str, tuple[Any, dict[str, Any]]] = {
        REBASE: ("rebase", {}),
        "rebase, nothing pruned": (rebase_without_pruning, {}),
        "fixed tree 4-2-2": ("fixed_tree", {"branches": [4, 2, 2]}),
    }
    strategy, own = strategies[kind]
    searcher = palmette.Searcher(
        "seedling", strategy=strategy, seed=seed, width=WIDTH, parts=parts, settings=settings, **own
    )
    return searcher.search(task)


def places(tree: Tree, credited: CreditTree) -> list[int]:
    """Return the prompt and the steps of the first depths with an outcome below them that are not the last ones."""
    return [
        node.id
        for node in tree.nodes
        if node.depth in DEPTHS and credited.alive[node.id] and credited.children[node.id]
    ]


def steps_of(result: palmette.SearchResult, credited: CreditTree, kind: str, truth: Truth) -> list[Step]:
    """Return the steps of a tree whose values are compared."""
    tree = result.tree
    by_rule = {"leaves": leaf_means(credited), "children": child_means(credited)}
    found = []
    for node in places(tree, credited):
        true, rollouts = truth.of(tree.path_tokens(node))
        estimates = {rule: values[node] or 0.0 for rule, values in by_rule.items()}
        score = aggregate_scores(tree.scores(node), "prod") if node else None
        found.append(Step(result.question.id, kind, tree.nodes[node].depth, estimates, true, rollouts, score))
    return found


def jackknife(steps: Sequence[Step], statistic: Callable[[Sequence[Sequence[Step]]], float]) -> tuple[float, float]:
    """Return a statistic of the steps by question, and its standard error over questions."""
    by_question: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        by_question[step.question].append(step)
    groups = list(by_question.values())
    left_out = [statistic(groups[:place] + groups[place + 1 :]) for place in range(len(groups))]
    mean = sum(left_out) / len(left_out)
    squares = sum((value - mean) ** 2 for value in left_out)
    return statistic(groups), math.sqrt(squares * (len(groups) - 1) / len(groups))


def mean_of(value: Callable[[Step], float]) -> Callable[[Sequence[Sequence[Step]]], float]:
    """Return a statistic: the mean over questions of the mean over a question's steps."""
    return lambda groups: sum(sum(map(value, group)) / len(group) for group in groups) / len(groups)


def correlation(rule: str) -> Callable[[Sequence[Sequence[Step]]], float]:
    """Return a statistic: the correlation of errors with scores over all steps; NaN where one of them has no spread."""

    def statistic(groups: Sequence[Sequence[Step]]) -> float:
        pairs = [(step.error(rule), step.score or 0.0) for group in groups for step in group]
        means = [sum(values) / len(pairs) for values in zip(*pairs, strict=True)]
        apart = [(error - means[0], score - means[1]) for error, score in pairs]
        scale = math.sqrt(sum(error**2 for error, _ in apart) * sum(score**2 for _, score in apart))
        return sum(error * score for error, score in apart) / scale if scale else math.nan

    return statistic


def report(steps: Sequence[Step]) -> None:
    """Print a table row for each kind of tree and depth."""
    columns = (
        *("trees", "depth", "steps", f"score below {LOW_SCORE}", "true value", "error by leaves", "error by children"),
        *("difference", "RMSE by leaves", "RMSE by children", "correlation with score: leaves, children"),
    )
    print(f"| {' | '.join(columns)} |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    for kind in TREES:
        for depth in DEPTHS:
            chosen = [step for step in steps if (step.trees, step.depth) == (kind, depth)]
            true, _ = jackknife(chosen, mean_of(lambda step: step.true))
            low = sum(step.score < LOW_SCORE for step in chosen if step.score is not None)
            cells = [kind, str(depth), f"{len(chosen):,}", f"{low:,}" if depth else "", f"{true:.3f}"]
            for rule in RULES:
                cells.append(shown(*jackknife(chosen, mean_of(lambda step, rule=rule: step.error(rule)))))  # type: ignore[misc]
            gap = jackknife(chosen, mean_of(lambda step: step.estimates["leaves"] - step.estimates["children"]))
            cells.append(shown(*gap))
            for rule in RULES:
                squared = mean_of(lambda step, rule=rule: step.error(rule) ** 2)  # type: ignore[misc]
                root, error = jackknife(chosen, lambda groups, of=squared: math.sqrt(of(groups)))  # type: ignore[misc]
                cells.append(f"{root:.3f} ± {error:.3f}")
            both = [shown(*jackknife(chosen, correlation(rule))) for rule in RULES]
            cells.append(", ".join(both) if depth else "")
            print(f"| {' | '.join(cells)} |")
    noise = math.sqrt(sum(step.true * (1 - step.true) / step.rollouts for step in steps) / len(steps))
    print(f"\nThe true values are themselves off by {noise:.3f} (root mean square), from at least", end=" ")
    print(f"{min(step.rollouts for step in steps)} rollouts each.")


def shown(value: float, error: float) -> str:
    """Return a signed number with its standard error, or that there is none."""
    if math.isnan(value) or math.isnan(error):
        return "undefined"
    return f"{value:+.3f} ± {error:.3f}"


def main() -> None:
    """Grow all trees, roll out from their steps, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--grade", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=1.5)
    parser.add_argument("--reward", default="seedling-ripe")
    parser.add_argument("--trees", type=int, default=2, help="of each kind for each question")
    parser.add_argument("--rollouts", type=int, default=256, help="from each step, at least")
    parser.add_argument("--at-once", type=int, default=10, help="questions that are looked at together")
    chosen = parser.parse_args()
    settings = {"policy.temperature": chosen.temperature}
    loaded = build_parts(palmette.Searcher("seedling", chosen.reward, "rebase", width=WIDTH, settings=settings).config)
    backend = FromPrefixes(loaded.backend)
    parts = Parts(backend, loaded.scorer)
    truth = Truth(backend, chosen.rollouts, settings)
    completions = Completions(backend, settings)
    whole = palmette.load_task("ladder", questions=chosen.questions, grade=chosen.grade)
    steps: list[Step] = []
    lost: dict[str, list[bool]] = {kind: [] for kind in TREES}
    for first in range(0, chosen.questions, chosen.at_once):
        task = palmette.Task("ladder", whole.questions[first : first + chosen.at_once], step_end=whole.step_end)
        grown = [(kind, grow(parts, task, kind, seed, settings)) for kind in GROWN for seed in range(chosen.trees)]
        judged = [(kind, result, credit_tree(result.tree)) for kind, found in grown for result in found]
        by_rebase = [result for kind, result, _ in judged if kind == REBASE]
        whole_trees = zip(by_rebase, completions.complete(by_rebase), strict=True)
        judged += [(COMPLETED, result, credited) for result, credited in whole_trees]
        for depth in DEPTHS:  # From the prompt first: its rollouts serve the likelier steps.
            asked = []
            for _, result, credited in judged:
                for node in places(result.tree, credited):
                    if result.tree.nodes[node].depth == depth:
                        asked.append((result.tree.path_tokens(node), result.question.reference))
            truth.roll_out(asked)
        for kind, result, credited in judged:
            steps += steps_of(result, credited, kind, truth)
            lost[kind] += [not alive for alive in credited.alive[1:]]
        print(f"{first + len(task.questions)} questions, {truth.tokens:,} tokens of rollouts", flush=True)
    report(steps)
    shares = ", ".join(f"{sum(dead) / len(dead):.3f} ({kind})" for kind, dead in lost.items())
    print(f"Share of all steps without an outcome below them: {shares}.")


if __name__ == "__main__":
    main()
