"""How wide a search of an effort is and how long its branches may grow, as far as the plan has room. Pure."""

from dataclasses import dataclass

from palmette.serve.asking.fields import Effort
from palmette.serve.refusals import wrong

_SHARES: dict[Effort, tuple[float, float]] = {
    "minimal": (0.25, 0.5), "low": (0.5, 1.0), "medium": (1.0, 1.0), "high": (2.0, 1.0), "xhigh": (4.0, 1.0),
}  # fmt: skip
"""Of the gateway's own width and of its tokens a branch (`search.width`, `search.total_tokens`), for each effort."""


@dataclass(frozen=True)
class Extent:
    """How far a tree may grow: `width` branches of `total_tokens` each, below a prompt."""

    width: int
    total_tokens: int
    prompt_tokens: int

    @property
    def kv_tokens(self) -> int:
        """KV tokens if the branches share nothing but the prompt: no search holds more (`SearchNeeds`)."""
        return self.prompt_tokens + self.width * self.total_tokens


@dataclass(frozen=True)
class Room:
    """What there is: the policy's context and the KV tokens of all trees, None without a limit; the gateway's own."""

    context_tokens: int | None
    kv_tokens: int | None
    width: int
    total_tokens: int
    most_width: int


def extent(
    room: Room, prompt_tokens: int, effort: Effort | None, *, width: int | None, total_tokens: int | None
) -> Extent:
    """Return the extent of a request's tree. What the request gives itself is kept to or refused, never changed.

    Without a width the effort chooses one, and one that the KV tokens hold. Raises ApiError 400 for what can never fit.
    """
    share, tokens_share = _SHARES.get(effort or "medium", (1.0, 1.0))
    longest = total_tokens or max(1, round(tokens_share * room.total_tokens))
    if room.context_tokens is not None:
        left = room.context_tokens - prompt_tokens
        if left < 1 or (total_tokens is not None and total_tokens > left):
            raise wrong(
                f"the model takes {room.context_tokens} tokens, the prompt has {prompt_tokens}"
                + (f" and max_tokens is {total_tokens}: ask for {left} or fewer" if left > 0 else ""),
                "messages" if left < 1 else "max_tokens",
                "context_length_exceeded",
            )
        longest = min(longest, left)
    if width is not None and width > room.most_width:
        raise wrong(f"width {width} is over the limit of this gateway, {room.most_width}", "palmette", "invalid_value")
    wanted = width or max(1, min(room.most_width, round(share * room.width)))
    if room.kv_tokens is None:
        return Extent(wanted, longest, prompt_tokens)
    free = room.kv_tokens - prompt_tokens
    if total_tokens is None and free >= 1:
        longest = min(longest, free // (width or 1)) or 1
    fitting = free // longest
    if fitting < (width or 1):
        asked = Extent(width or 1, longest, prompt_tokens)
        fits = f"width {fitting}" if fitting > 0 else f"max_tokens {free}" if free > 0 else "a shorter prompt"
        raise wrong(
            f"this tree may hold {asked.kv_tokens} KV tokens and can never fit into the {room.kv_tokens} of this "
            f"gateway. Fits: {fits}",
            "palmette" if width else "max_tokens",
            "tree_too_large",
        )
    return Extent(min(wanted, fitting), longest, prompt_tokens)
