"""Rows as a profile lays them out, up to the token where the last step's score is read."""

from collections.abc import Sequence

from palmette.backends.backend import Message
from palmette.prefixes import common_length
from palmette.score.rows.profile_prompt import Renderer, question_of
from palmette.score.rows.row import PromptKey, Row, Tokens, prompt_key
from palmette.score.scorer import Candidate


class ProfileRows:
    """Rows of a renderer; see `Rows`. The prompt is what two different first steps have in common."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.prompts: dict[PromptKey, Tokens] = {}

    def of(self, candidates: Sequence[Candidate]) -> list[Row]:
        """Return the row of each candidate; see `Rows`."""
        read: dict[tuple[str, tuple[str, ...]], Tokens] = {}

        def tokens_of(question: str, steps: tuple[str, ...]) -> Tokens:
            """Return the tokens up to where the last step is read."""
            if (question, steps) not in read:
                rendered = self._renderer.render(question, steps)
                read[question, steps] = rendered.tokens[: rendered.read_at[-1] + 1]
            return read[question, steps]

        rows: list[Row] = []
        for candidate in candidates:
            question = question_of(candidate.messages) if candidate.question is None else candidate.question
            key = prompt_key(candidate.messages)
            if key not in self.prompts:
                # What two different steps have in common: a first step may change the last tokens of the prompt.
                first, second = tokens_of(question, ("0",)), tokens_of(question, ("x",))
                self.prompts[key] = first[: max(1, common_length(first, second))]
            tokens = tokens_of(question, candidate.steps)
            above = tokens_of(question, candidate.steps[:-1]) if candidate.steps[1:] else self.prompts[key]
            rows.append(Row(tokens, len(tokens) - common_length(tokens, above)))
        return rows

    def check_prompt(self, messages: Sequence[Message]) -> None:
        """Raise ConfigError for messages that the reward model cannot be given; see `Rows`."""
        self._renderer.check_question(question_of(messages))
