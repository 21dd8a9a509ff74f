"""Writes steps on servers: asks until a step has ended by palmette's own rule, and cuts what was written beyond."""

import asyncio
import hashlib
from functools import partial

from palmette.backends.backend import Expansion, Step
from palmette.backends.servers.dialect import Dialect, Request
from palmette.backends.servers.pool import Pool
from palmette.backends.step_text import StepText
from palmette.errors import BackendError
from palmette.units import one_line


class StepWriter:
    """Writes at most `most_in_flight` steps side by side; further ones wait for a place."""

    def __init__(self, dialect: Dialect, pool: Pool, text: StepText, most_in_flight: int) -> None:
        self._dialect = dialect
        self._pool = pool
        self._text = text
        self._places = asyncio.Semaphore(most_in_flight)
        self.stale_steps = 0
        """Steps of which a server said that it wrote them with other weights than those it has to have."""
        self.stale: dict[str, set[str]] = {}
        """The names of such weights, by question."""

    async def write(self, expansion: Expansion) -> Step:
        """Return the step of an expansion.

        Where it ends is decided by `StepText`, from tokens alone: the server's stop strings only save it work. A server
        stops at a delimiter with no text before it, for example, and knows nothing of a stop string that begins in the
        parent's step. So the answer may go on after the step, or has to be continued.
        """
        stops = [expansion.step_end] if expansion.stop is None else [expansion.step_end, expansion.stop]
        tokens: list[int] = []
        logprobs: list[float] = []
        others: set[str] = set()
        cached: int | None = None
        async with self._places:
            while True:
                begun = len(tokens)
                request = Request(
                    prompt=[*expansion.prefix, *tokens],
                    seed=_seed(expansion.seed, begun),
                    max_tokens=expansion.max_tokens - begun,
                    stops=stops,
                    temperature=expansion.temperature,
                    top_p=expansion.top_p,
                )
                written = await self._pool.run(expansion.question, partial(self._dialect.write, request=request))
                if not written.tokens or len(written.tokens) != len(written.logprobs):
                    raise BackendError(
                        f"the server wrote {len(written.tokens)} tokens with {len(written.logprobs)} log-probabilities "
                        f"for question {one_line(expansion.question, 80)}: expected one token or more, with one each"
                    )
                weights = getattr(self._dialect, "weights", None)
                if weights is not None and written.version is not None and written.version != weights.name:
                    others.add(written.version)
                cached = written.cached_tokens if not begun else cached
                tokens += written.tokens
                logprobs += written.logprobs
                for count in range(begun + 1, len(tokens) + 1):
                    ending = self._text.ending(expansion, tokens[:count])
                    if ending is not None:
                        finish, text = ending
                        if others:
                            self.stale_steps += 1
                            self.stale.setdefault(expansion.question, set()).update(others)
                        temperature = self._dialect.logprob_temperature(expansion.temperature)
                        return Step(tuple(tokens[:count]), text, tuple(logprobs[:count]), finish, temperature, cached)


def _seed(seed: int, place: int) -> int:
    """Return the seed of the request that begins at this place of a step: the step's own for the first one."""
    if not place:
        return seed
    digest = hashlib.blake2b(f"{seed}\0{place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
