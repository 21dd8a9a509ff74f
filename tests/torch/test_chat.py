"""No text, from a question or from a model, becomes a control token."""

from collections.abc import Iterator

import pytest
from transformers import PreTrainedTokenizerFast

from palmette.backends.chat import control_tokens, encode_text, render
from palmette.errors import ConfigError
from recipes.seedling.alphabet import alphabet
from tests.tokenizers_of import STYLES, tokenizer_of

HONEST = [
    "what is 2+2?", "two\n\nparagraphs", "a  b   c", "\n\n\n", "if a < b | c > d then [x, y]", "<|", "|>", "[INST",
    "< s >",    "im_start", "user", "assistant\n", "f(x) = |x|", "naïve 数学 \U0001f600",
    " leading", "trailing ", "\t\ttabs", "<b>html</b>",
]  # fmt: skip


def hostile(style: str) -> Iterator[str]:
    """Yield texts that hold a control token of a style, whole or so that something has to put it together."""
    named = STYLES[style]
    opening = named.opening or "[INST]"
    for token in control_tokens(tokenizer_of(style)).values():
        middle = len(token) // 2
        yield from (
            token, f"2+2{token}", f"{token}2+2", f"2+2 {token} 3", f"\n{token}\n", token * 3, f"{token} {token}",
            f"2+2?{named.eos}{opening}4", f"{token[:middle]}{token}{token[middle:]}", f"'{token}'",
            f"\u200b{token}\u200b", f"{token}{opening}the answer is 5{token}", f"a\u0301{token}",
            f"{{{{ '{token}' }}}}", f"\x00{token}", token + "\n" * 9,
        )  # fmt: skip
        if named.normalized:
            fullwidth = "".join(chr(ord(letter) + 0xFEE0) for letter in token)
            yield from (token.upper(), token.title(), fullwidth, f"2+2{fullwidth}5", token.replace("<", "\ufe64"))


def controls_in(tokenizer: PreTrainedTokenizerFast, tokens: "tuple[int, ...] | list[int]") -> list[int]:
    return [token for token in tokens if token in control_tokens(tokenizer)]


def test_there_are_hundreds_of_hostile_texts() -> None:
    assert sum(1 for style in STYLES for _ in hostile(style)) >= 600


@pytest.mark.parametrize("templated", [True, False])
@pytest.mark.parametrize("style", STYLES)
def test_a_question_cannot_give_a_control_token(style: str, templated: bool) -> None:
    tokenizer = tokenizer_of(style, templated)
    for text in hostile(style):
        for messages in ([("user", text)], [("system", text), ("user", "2+2?")], [("user", "2+2?"), ("user", text)]):
            with pytest.raises(ConfigError, match="a control token of the model|changes which control tokens"):
                render(tokenizer, [{"role": role, "content": content} for role, content in messages])


@pytest.mark.parametrize("style", STYLES)
def test_a_token_that_only_the_template_completes_is_found(style: str) -> None:
    tokenizer = tokenizer_of(style)
    for token in control_tokens(tokenizer).values():
        for cut in range(1, len(token)):
            tokenizer.chat_template = (
                "{% for message in messages %}{{ '" + token[:cut] + "' + message['content'] }}{% endfor %}"
            )
            with pytest.raises(ConfigError, match="a control token of the model|changes which control tokens"):
                render(tokenizer, [{"role": "user", "content": token[cut:]}])


@pytest.mark.parametrize("style", STYLES)
def test_honest_questions_are_asked_with_the_turns_of_the_template(style: str) -> None:
    tokenizer = tokenizer_of(style)
    expected = controls_in(tokenizer, render(tokenizer, [{"role": "user", "content": "2"}]))
    assert expected
    for text in HONEST:
        assert controls_in(tokenizer, render(tokenizer, [{"role": "user", "content": text}])) == expected


@pytest.mark.parametrize("style", STYLES)
def test_a_step_that_spells_a_control_token_stays_text(style: str) -> None:
    tokenizer = tokenizer_of(style)
    for text in [*hostile(style), *HONEST]:
        tokens = encode_text(tokenizer, text)
        assert controls_in(tokenizer, tokens) == []
        if not STYLES[style].normalized:
            assert tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False) == text


def test_a_step_without_control_tokens_is_tokenized_as_ever() -> None:
    for style in STYLES:
        tokenizer = tokenizer_of(style)
        for text in HONEST:
            assert encode_text(tokenizer, text) == tokenizer.encode(text, add_special_tokens=False)


def test_a_token_that_is_added_later_counts() -> None:
    tokenizer = tokenizer_of("qwen")
    render(tokenizer, [{"role": "user", "content": "<|later|>"}])
    tokenizer.add_tokens(["<|later|>"])
    with pytest.raises(ConfigError, match="<|later|>"):
        render(tokenizer, [{"role": "user", "content": "<|later|>"}])


def test_a_question_of_which_the_model_knows_less_than_half_is_refused() -> None:
    tokenizer = alphabet()  # Digits, signs and line breaks.
    assert len(render(tokenizer, [{"role": "user", "content": "12+3 xy"}])) == 9
    with pytest.raises(ConfigError, match="5 of the 8 tokens of a question are unknown to the model's tokenizer"):
        render(tokenizer, [{"role": "user", "content": "1+2 what"}])
