"""What each setting of a search does alone, on `words` with a policy and a judge that are models, as a table.

    python -m benchmarks.words_knobs --policy seedling-words --reward seedling-words-prm --grade 2 --plain

Every row is compared with REBASE on the same questions, at the same temperature and with the same judge. The models are
loaded once, and each text is embedded once: questions per second of ETS are not those of a search of its own. `--only`
names groups of rows.
"""

import argparse
import copy
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.words_runs import Run, add_options, limits, open_runs, searched, settings_of
from benchmarks.words_search import Noisy
from palmette import Searcher
from palmette.run.parts import Parts, load_backend
from palmette.score.scorer import Embedder


@dataclass(frozen=True)
class Knob:
    """A row: what is set for a strategy, the temperature of the policy and the judge's error."""

    strategy: str
    settings: tuple[str, ...] = ()
    temperature: float = 1.0
    noise: float = 0.0

    @property
    def title(self) -> str:
        """What differs from the defaults."""
        said = [setting.removeprefix("search.") for setting in self.settings]
        said += [f"temperature={self.temperature:g}"] * (self.temperature != 1) + [f"noise={self.noise:g}"] * bool(
            self.noise
        )
        return " ".join(said) or "defaults"


@dataclass
class Remembering:
    """An embedder that embeds each text once: rows of the table have most of their texts in common."""

    embedder: Embedder
    name: str
    vectors: dict[str, Any] = field(default_factory=dict)

    def embed(self, texts: Sequence[str]) -> list[Any]:
        """Return one vector for each text."""
        new = [text for text in texts if text not in self.vectors]
        if new:
            self.vectors |= zip(new, np.asarray(self.embedder.embed(new)), strict=True)
        return [self.vectors[text] for text in texts]


def _ets(*settings: str) -> Knob:
    return Knob("ets", tuple(f"{'' if setting.startswith('embedder') else 'search.'}{setting}" for setting in settings))


COMPARED = ("best_of_n", "ets", "espalier", "beam")
GROUPS: dict[str, tuple[Knob, ...]] = {
    "ets": (_ets(), Knob("espalier"), Knob("beam"), Knob("dvts")),
    "weight": tuple(_ets(f"lambda_kv={weight}") for weight in (1.0, 1.5, 2.0, 3.0)),
    "cost": tuple(_ets("kv_cost=tokens", f"lambda_kv={weight}") for weight in (1.25, 2.0)),
    "cut": tuple(_ets(f"embedder.cut={cut}") for cut in (0.02, 0.1, 0.2, 0.3)),
    "diversity": tuple(_ets(f"lambda_diversity={weight}") for weight in (0, 0.75, 3.0)),
    "several": (
        _ets("embedder.cut=0.1", "lambda_kv=1.4"),
        _ets("embedder.cut=0.2", "lambda_kv=1.4"),
        _ets("lambda_diversity=0", "kv_cost=tokens", "lambda_kv=1.5"),
        _ets("lambda_diversity=0", "kv_cost=tokens", "lambda_kv=2.0"),
    ),
    "espalier": tuple(Knob("espalier", (f"search.lambda_held={weight}",)) for weight in (0, 0.5, 2.0, 3.0)),
    "judge": tuple(Knob(strategy, noise=noise) for noise in (1.0, 3.0) for strategy in COMPARED),
    "temperature": tuple(Knob(name, temperature=degree) for degree in (0.7, 1.3) for name in COMPARED),
}


def row(knob: Knob, run: Run, rebase: Run) -> str:
    """Return a row of the table."""
    held = run.mean("held")
    return (
        f"| {knob.strategy} | {knob.title} | {statistics.fmean(run.right()):.3f} | {run.against(rebase)} "
        f"| {held:,.0f} | {rebase.mean('held') / held:.2f} | {run.mean('tokens'):,.0f} "
        f"| {len(run.answers) / run.seconds:.2f} |"
    )


def main() -> None:
    """Print a row for each setting, and one of REBASE for each temperature and error of the judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    options = parser.parse_args()
    print(f"width {options.width}, {len(options.seeds)} x {options.questions} questions of grade {options.grade}\n")
    print("| strategy | | weighted | against REBASE | KV held, mean | REBASE's mean / this | tokens | questions/s |")
    print("|---|---|---:|---|---:|---:|---:|---:|", flush=True)
    with Searcher(strategy="ets", settings=settings_of(options), **limits(options)) as searcher:
        loaded = searcher.load()
        assert loaded.scorer is not None and loaded.embedder is not None
        embedder = Remembering(loaded.embedder, loaded.embedder.name)
        bases: dict[tuple[float, float], tuple[Parts, Run]] = {}
        for group in options.only:
            for knob in GROUPS[group]:
                print(f"{knob.strategy} {knob.title}", file=sys.stderr, flush=True)
                at = knob.temperature, knob.noise
                if at not in bases:
                    policy = searcher.config.policy.model_copy(update={"temperature": knob.temperature})
                    backend = load_backend(policy) if knob.temperature != 1 else loaded.backend
                    scorer = Noisy(loaded.scorer, knob.noise) if knob.noise else loaded.scorer
                    parts = Parts(backend, scorer, embedder)
                    plain = replace(knob, strategy="rebase", settings=())
                    bases[at] = parts, answers(plain, parts, options)
                    print(row(plain, bases[at][1], bases[at][1]), flush=True)
                parts, base = bases[at]
                print(row(knob, answers(knob, parts, options), base), flush=True)


def answers(knob: Knob, parts: Parts, options: argparse.Namespace) -> Run:
    """Return the answers with a knob set, in a folder of its own."""
    given = copy.copy(options)
    given.set = [*options.set, *knob.settings]
    if options.runs:
        given.runs = options.runs / knob.title.replace(" ", "_")
        open_runs(given)
    return searched(lambda: parts, knob.strategy, options.width, given)


if __name__ == "__main__":
    main()
