"""The prompt of a request as tokens, after what this policy cannot do for it was refused by name."""

from palmette.backends.backend import TakesSampling, Tokenizes
from palmette.run.parts import Parts
from palmette.score.scorer import ReadsPrompts
from palmette.serve.asking.ask import Ask
from palmette.serve.refusals import unsupported, wrong
from palmette.settings import PolicySettings


def read_prompt(ask: Ask, parts: Parts, policy: PolicySettings) -> tuple[int, ...]:
    """Return the tokens of a request's prompt; to be called by the engine's thread, which owns the tokenizers.

    Raises ApiError for what is not served with this policy, ConfigError for messages that its models cannot be given.
    """
    backend, scorer = parts.backend, parts.scorer
    for field, told, own in (("temperature", ask.temperature, policy.temperature), ("top_p", ask.top_p, policy.top_p)):
        if told not in (None, own) and not isinstance(backend, TakesSampling):
            raise unsupported(field, f"this policy samples with {field} {own}: leave {field} out")
    if ask.logprobs and not isinstance(backend, Tokenizes):
        raise unsupported("logprobs", "logprobs are not served: the policy's tokens have no texts here")
    if ask.kind == "text":
        if not isinstance(backend, Tokenizes):
            raise unsupported("prompt", "prompts without messages are not served with this policy")
        tokens = backend.encode_text(ask.question)
    else:
        tokens = backend.encode(ask.messages)
    reader: object = scorer
    if ask.strategy is not None and isinstance(reader, ReadsPrompts):
        reader.check_prompt(ask.messages)
    if not tokens:
        raise wrong("the prompt is empty", "prompt" if ask.kind == "text" else "messages")
    return tuple(tokens)
