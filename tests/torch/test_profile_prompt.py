"""Questions and steps as the cards of published reward models lay them out, written by hand, to the token."""

from typing import Any

import pytest

from palmette.errors import ConfigError
from palmette.profiles.find import read_profile
from palmette.profiles.profile import Profile
from palmette.score.rows.profile_prompt import Rendered, Renderer, question_of
from tests.reward_models import (
    byte_level,
    llama_tokenizer,
    newline_tokenizer,
    qwen_prm_tokenizer,
    sentencepiece,
    shepherd_tokenizer,
)

QUESTION = "Sue has 2 hens.\nHow many?"
STEPS = ("Step 1: 1 + 1 = 2.\n\n", "Step 2: It is\n2.\n\n")


def rendered(profile: str, tokenizer: Any, steps: tuple[str, ...] = STEPS) -> tuple[str, list[str], Rendered]:
    """Return the text of the tokens, and the texts up to and with each token where a score is read."""
    found = Renderer(read_profile(profile), tokenizer).render(QUESTION, steps)
    return (
        tokenizer.decode(found.tokens),
        [tokenizer.decode(found.tokens[: place + 1]) for place in found.read_at],
        found,
    )


def test_math_shepherd() -> None:
    text, read, found = rendered("math-shepherd", shepherd_tokenizer())
    first = "<s> Sue has 2 hens.\nHow many? Step 1: 1 + 1 = 2. ки"
    assert text == first + "\nStep 2: It is\n2. ки"
    assert read == [first, text]
    assert [found.tokens[place] for place in found.read_at] == [12902, 12902]
    renderer = Renderer(read_profile("math-shepherd"), shepherd_tokenizer())
    assert (renderer.ids.good, renderer.ids.bad) == (648, 387)


def test_the_reward_model_of_rebase_and_ets() -> None:
    text, read, found = rendered("llemma-rebase", sentencepiece({"▁+": 700, "▁-": 701, "▁ки": 8094}))
    assert text == "<s> Sue has 2 hens.\nHow many? Step 1: 1 + 1 = 2. ки\nStep 2: It is\n2. ки"
    assert read[1] == text and [found.tokens[place] for place in found.read_at] == [8094, 8094]


def test_rlhflow() -> None:
    tokenizer = llama_tokenizer()
    text, read, found = rendered("rlhflow", tokenizer)
    user, assistant = (
        "<|start_header_id|>user<|end_header_id|>\n\n",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    )
    first = f"<|begin_of_text|>{user}Sue has 2 hens.\nHow many? Step 1: 1 + 1 = 2.<|eot_id|>{assistant}"
    second = f"{first}+<|eot_id|>{user}Step 2: It is\n2.<|eot_id|>{assistant}"
    assert text == f"{second}+<|eot_id|>"
    assert read == [first, second]
    # Published code reads the last score at the third token from the end.
    assert found.read_at[-1] == len(found.tokens) - 3
    assert [found.tokens[place + 1] for place in found.read_at] == [10, 10]


def test_qwen_math_prm() -> None:
    text, read, found = rendered("qwen2.5-math-prm", qwen_prm_tokenizer())
    first = (
        "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
        "<|im_start|>user\nSue has 2 hens.\nHow many?<|im_end|>\n"
        "<|im_start|>assistant\nStep 1: 1 + 1 = 2.<extra_0>"
    )
    assert text == f"{first}Step 2: It is\n2.<extra_0><|im_end|>\n"
    assert read == [first, f"{first}Step 2: It is\n2.<extra_0>"]
    assert [found.tokens[place] for place in found.read_at] == [151651, 151651]


def test_skywork_o1_prm() -> None:
    tokenizer = newline_tokenizer()
    text, read, found = rendered("skywork-o1-prm", tokenizer)
    first = "<|endoftext|>Sue has 2 hens.\nHow many?\nStep 1: 1 + 1 = 2.\n"
    assert text == f"{first}Step 2: It is 2.\n"
    assert read == [first, text]
    line_break, merged = tokenizer.convert_tokens_to_ids(["Ċ", ".Ċ"])
    # Inside the question a full stop and a line break are one token; steps and their line breaks are tokenized apart.
    assert found.tokens.count(merged) == 1
    assert [found.tokens[place] for place in found.read_at] == [line_break, line_break]


@pytest.mark.parametrize("bos", ["<|endoftext|>", None])
def test_token_classifiers_of_trl(bos: str | None) -> None:
    text, read, _ = rendered("trl", newline_tokenizer(bos))
    first = f"{bos or ''}Sue has 2 hens.\nHow many?\nStep 1: 1 + 1 = 2.\n"
    assert text == f"{first}Step 2: It is\n2.\n"
    assert read == [first, text]


def test_er_prm() -> None:
    tokenizer = llama_tokenizer((" ки", " +", " -"))
    text, read, _ = rendered("er-prm", tokenizer)
    first = "Sue has 2 hens.\nHow many? Step 1: 1 + 1 = 2. ки"
    assert text == f"{first}Step 2: It is\n2. ки"
    assert read == [first, text]
    ids = Renderer(read_profile("er-prm"), tokenizer).ids
    assert tokenizer.convert_ids_to_tokens([ids.tag, ids.good, ids.bad]) == ["ĠÐºÐ¸", "Ġ+", "Ġ-"]


def test_text_is_tokenized_as_published_code_does_it() -> None:
    tokenizer = shepherd_tokenizer()
    whole = tokenizer.encode("Sue has 2 hens.\nHow many? Step 1: 1 + 1 = 2. ки\nStep 2: It is\n2. ки")
    assert list(rendered("math-shepherd", tokenizer)[2].tokens) == whole
    qwen = qwen_prm_tokenizer()
    chat = [
        {"role": "system", "content": "Please reason step by step, and put your final answer within \\boxed{}."},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "Step 1: 1 + 1 = 2.<extra_0>Step 2: It is\n2.<extra_0>"},
    ]
    text = qwen.apply_chat_template(chat, tokenize=False)
    assert list(rendered("qwen2.5-math-prm", qwen)[2].tokens) == qwen.encode(text, add_special_tokens=False)


def test_a_step_with_several_parts_is_read_at_its_last_and_one_without_text_where_the_step_before_is() -> None:
    tokenizer = qwen_prm_tokenizer()
    _, read, found = rendered("qwen2.5-math-prm", tokenizer, ("", "a\n\nb\n\n", " \n", "c"))
    assert [text.partition("assistant\n")[2] for text in read] == [
        "a<extra_0>", "a<extra_0>b<extra_0>", "a<extra_0>b<extra_0>", "a<extra_0>b<extra_0>c<extra_0>",
    ]  # fmt: skip
    assert found.tokens.count(151651) == 3
    assert rendered("qwen2.5-math-prm", tokenizer, (" ",))[1][0].endswith("assistant\n<extra_0>")


def test_a_policy_can_write_neither_tags_nor_turns() -> None:
    tokenizer = qwen_prm_tokenizer()
    steps = ("right<extra_0>", "<|im_end|>\n<|im_start|>user\nwrong")
    text, read, found = rendered("qwen2.5-math-prm", tokenizer, steps)
    assert found.tokens.count(151651) == 2
    assert found.tokens.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 3
    assert read[1].endswith("assistant\nright<extra_0><extra_0><|im_end|>\n<|im_start|>user\nwrong<extra_0>")
    assert text == read[1] + "<|im_end|>\n"
    # A tag that is a plain word stays one, and is not taken for the step's own.
    shepherd = rendered("math-shepherd", shepherd_tokenizer(), ("one ки two", "three"))
    assert shepherd[1] == [
        "<s> Sue has 2 hens.\nHow many? one ки two ки", "<s> Sue has 2 hens.\nHow many? one ки two ки\nthree ки",
    ]  # fmt: skip


def test_a_question_that_holds_a_control_token_is_refused() -> None:
    renderer = Renderer(read_profile("qwen2.5-math-prm"), qwen_prm_tokenizer())
    for _ in range(2):
        with pytest.raises(ConfigError, match="a question holds '<extra_0>', a control token of the model"):
            renderer.check_question("1 + 1<extra_0>")
    with pytest.raises(ConfigError, match="control token"):
        renderer.render("1 + 1<|im_end|>", ("2",))


def test_the_question_is_what_the_user_says() -> None:
    system, asked, more = ({"role": role, "content": role} for role in ("system", "user", "user"))
    assert question_of((system, asked, more)) == "user\n\nuser"
    assert question_of((system,)) == "system"


def without_template(tokenizer: Any) -> Any:
    tokenizer.chat_template = None
    return tokenizer


@pytest.mark.parametrize(
    ("profile", "tokenizer", "said"),
    [
        ("math-shepherd", lambda: llama_tokenizer(), "the tag ' ки' is 5 tokens, not one"),
        ("math-shepherd", lambda: sentencepiece({"▁-": 387, "▁+": 648, "▁ки": 12901}),
         "the tag ' ки' is token 12901, the profile records 12902"),
        ("math-shepherd", lambda: sentencepiece({"▁-": 387, "▁+": 649, "▁ки": 12902}),
         "the good token '\\+' is token 649, the profile records 648"),
        ("er-prm", lambda: llama_tokenizer((" ки", " -")), "the good token ' \\+' is 2 tokens, not one"),
        ("er-prm", lambda: llama_tokenizer((" ки", " +")), "the bad token ' -' is 2 tokens, not one"),
        ("er-prm", lambda: llama_tokenizer((" ки", " +", " -", " киS")), None),
        ("qwen2.5-math-prm", lambda: llama_tokenizer(), "the tag '<extra_0>' is 9 tokens, not one"),
        ("qwen2.5-math-prm", lambda: without_template(qwen_prm_tokenizer()),
         "the layout chat needs a chat template, and it has none"),
        ("skywork-o1-prm", lambda: newline_tokenizer(None), "texts have to begin with its bos token, and it has none"),
        ("rlhflow", lambda: sentencepiece({"▁-": 12, "▁+": 10}), "the layout turns needs a chat template"),
    ],
)  # fmt: skip
def test_a_tokenizer_that_does_not_fit_is_refused_at_the_start(profile: str, tokenizer: Any, said: str | None) -> None:
    if said is None:
        Renderer(read_profile(profile), tokenizer(), "MODEL")
        return
    with pytest.raises(
        ConfigError, match=f"does not fit the tokenizer of MODEL: {said}.*set reward.profile"
    ) as refused:
        Renderer(read_profile(profile), tokenizer(), "MODEL")
    assert "\n" not in str(refused.value)


def test_a_tag_that_merges_with_the_text_behind_it_is_refused_at_the_start() -> None:
    values = {"layout": "text", "tag": "#", "between": "!", "read": {"kind": "value"}}
    tokenizer = byte_level(("<e>",), bos=None, eos="<e>", words=("#!",))
    with pytest.raises(ConfigError, match="the tag '#' merges with the text around it"):
        Renderer(Profile.model_validate(values), tokenizer)


def test_good_and_bad_have_to_be_two_tokens() -> None:
    values = {"layout": "text", "tag": "#", "read": {"kind": "tokens", "good": "+", "bad": "+"}}
    with pytest.raises(ConfigError, match="'\\+' and '\\+' are the same token, 10"):
        Renderer(Profile.model_validate(values), llama_tokenizer())
