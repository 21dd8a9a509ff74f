"""The task `words` by grades: steps, lengths, and how often a guess without reasoning is right.

    python -m benchmarks.words

1,500 questions of the test split for each grade. Tokens are SmolLM2's, without the chat template. The most frequent
answers are those of 1,500 questions of the train split.
"""

import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from transformers import AutoTokenizer

from palmette.tasks.words.generate import GRADES, problems
from palmette.tasks.words.problem import Problem
from palmette.tasks.words.solution import solve
from palmette.tasks.words.structure import Split, structure_of
from palmette.tasks.words.vocabulary import vocabulary
from palmette.zoo.resolve import resolve

QUESTIONS = 1500


def made(grade: int, split: Split) -> tuple[list[Problem], float]:
    """Return questions, and how many were made in a second."""
    begun = time.perf_counter()
    found = list(islice(problems(grade, split, 7), QUESTIONS))
    return found, QUESTIONS / (time.perf_counter() - begun)


def spread(values: Sequence[int]) -> str:
    """Return mean and maximum."""
    return f"{sum(values) / len(values):.1f}, {max(values)}"


def guesses(problem: Problem, constants: Sequence[int]) -> dict[str, bool]:
    """Tell which guesses are right."""
    numbers = [int(number) for number in re.findall(r"\d+", problem.text)]
    pairs = [(one, other) for one in numbers for other in numbers]
    results = {result for a, b in pairs for result in (a + b, a - b, a * b, a / b)}
    return {
        "most frequent answer": problem.answer == constants[0],
        "one of the 5 most frequent": problem.answer in constants,
        "any number of the text": problem.answer in numbers,
        "last number of the text": problem.answer == numbers[-1],
        "sum of all numbers": problem.answer == sum(numbers),
        "sum of the last two": problem.answer == sum(numbers[-2:]),
        "a result of some two of them": problem.answer in results,
    }


def main() -> None:
    """Print a paragraph for each grade."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("smollm2-135m"))

    def tokens(text: str) -> int:
        return len(tokenizer(text)["input_ids"])

    generator = random.Random(0)
    print(f"vocabulary: {len(vocabulary())} words, digits and signs")
    for grade in GRADES:
        train, train_speed = made(grade, "train")
        test, test_speed = made(grade, "test")
        solutions = [solve(problem, generator) for problem in test]
        lines = [line for solution in solutions for line in solution[:-1]]
        facts = [fact for problem in test for fact in problem.text.split(". ")[:-1]]
        print(f"grade {grade} (mean, maximum)")
        print(f"  steps {spread([p.steps for p in test])}; facts {spread([len(p.facts) for p in test])}")
        print(f"  words: question {spread([len(p.text.split()) for p in test])}", end="")
        print(f"; solution {spread([len(' '.join(solution).split()) for solution in solutions])}", end="")
        print(f"; fact {spread([len(f.split()) for f in facts])}; line {spread([len(x.split()) for x in lines])}")
        print(f"  tokens: question {spread([tokens(p.text) for p in test])}", end="")
        print(f"; solution {spread([tokens(chr(10).join(s)) for s in solutions])}", end="")
        print(f"; line {spread([tokens(line + chr(10)) for line in lines[:3000]])}")
        structures = [len({structure_of(p) for p in some}) for some in (train, test)]
        print(f"  structures in {QUESTIONS} questions: train {structures[0]}, test {structures[1]}")
        print(f"  made in a second: train {train_speed:.0f}, test {test_speed:.0f}")
        constants = [answer for answer, _ in Counter(p.answer for p in train).most_common(5)]
        right: Counter[str] = Counter()
        for problem in test:
            right.update(name for name, is_right in guesses(problem, constants).items() if is_right)
        for name in guesses(test[0], constants):
            print(f"  {name}: {right[name] / QUESTIONS:.1%}")


if __name__ == "__main__":
    main()
