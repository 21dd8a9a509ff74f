"""Rows as tokens, the losses of training on them, and reward models as they are saved."""

import copy
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForTokenClassification, LlamaForCausalLM, PreTrainedTokenizerFast

from palmette.errors import ConfigError
from palmette.run.row_models import merged_weights, save_classifier
from palmette.settings import SftSettings
from palmette.train.model_parts import body_of, train_all, train_lora
from palmette.train.supervised.encode import (
    EncodedRow,
    Text,
    encode_conversation,
    encode_rows,
    encode_steps,
    samples_of,
)
from palmette.train.supervised.losses import answer_losses, label_losses
from palmette.train.supervised.rows import Conversation, LabeledSteps
from palmette.train.update.learner import Learner
from palmette.train.update.optimizer import AdamSettings
from palmette.train.update.value_head import ValueHead

BOS, EOS, LINE = 1, 2, 20  # Digits are 4 to 13, then + - * ( ) = and the line break.


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_an_answer_is_learned_with_its_end_after_the_prompt_as_it_is_asked(tokenizer: PreTrainedTokenizerFast) -> None:
    row = Conversation("here", (user("1+2"), assistant("3")), (1,))
    (text,) = encode_conversation(tokenizer, row)
    # <bos> 1 + 2 line break, then 3 <eos>.
    assert list(text.tokens) == [BOS, 5, 14, 6, LINE, 7, EOS]
    sample = text.sample(0)
    assert (sample.prompt, sample.response, sample.mask) == ((BOS, 5, 14, 6, LINE), (7, EOS), None)


def test_every_answer_of_a_conversation_is_a_text_of_its_own(tokenizer: PreTrainedTokenizerFast) -> None:
    row = Conversation("here", (user("1"), assistant("2"), user("3"), assistant("4")), (1, 3))
    first, second = encode_conversation(tokenizer, row)
    # This template shows the last message only.
    assert list(first.tokens) == [BOS, 5, LINE, 6, EOS]
    assert list(second.tokens) == [BOS, 7, LINE, 8, EOS]


def test_a_control_token_in_a_prompt_is_refused_and_in_an_answer_is_text(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ConfigError, match=r"^here: a question holds '<eos>'"):
        encode_conversation(tokenizer, Conversation("here", (user("<eos>"), assistant("1")), (1,)))
    (text,) = encode_conversation(tokenizer, Conversation("here", (user("1"), assistant("2<eos>3")), (1,)))
    assert list(text.tokens).count(EOS) == 1 and text.tokens[-1] == EOS


def test_steps_are_labeled_at_their_last_token(tokenizer: PreTrainedTokenizerFast) -> None:
    row = LabeledSteps("here", (user("1+2"),), ("1+2=3", "3\n"), (1.0, 0.25))
    (text,) = encode_steps(tokenizer, row, "\n")
    # <bos> 1 + 2 \n | 1 + 2 = 3 \n | 3 \n <eos>, and one more token, before which the state at <eos> is read.
    assert list(text.tokens) == [BOS, 5, 14, 6, LINE, 5, 14, 6, 19, 7, LINE, 7, LINE, EOS, EOS]
    assert text.labels == ((10, 1.0), (13, 0.25))
    sample = text.sample(0)
    assert sample.mask == (False,) * 6 + (True,) + (False,) * 2 + (True,)
    assert sample.returns is not None and sample.counted(sample.returns) == [1.0, 0.25]
    cut = LabeledSteps("here", (user("1"),), ("2",), (0.0,), finished=False)
    (text,) = encode_steps(tokenizer, cut, "\n")
    assert (list(text.tokens), text.labels) == ([BOS, 5, LINE, 6, EOS], ((3, 0.0),))


class Merging:
    """A tokenizer in which two line breaks are one token: text that follows changes the tokens before it."""

    eos_token_id, chat_template = EOS, None
    added_tokens_decoder: dict[int, str] = {}  # noqa: RUF012
    all_special_ids = all_special_tokens = ()
    unk_token_id = bos_token_id = None

    def __len__(self) -> int:
        return 1000

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(character) if character != "§" else 999 for character in text.replace("\n\n", "§")]


def test_a_step_whose_tokens_the_next_one_changes_is_read_in_a_text_of_its_own() -> None:
    row = LabeledSteps("here", (user("q"),), ("a", "\nb"), (1.0, 0.0))
    first, second = encode_steps(Merging(), row, "\n")
    assert (list(first.tokens), first.labels) == ([113, 10, 97, 10, EOS], ((3, 1.0),))
    assert (list(second.tokens), second.labels) == ([113, 10, 97, 999, 98, EOS, EOS], ((5, 0.0),))


def test_rows_that_are_too_long_are_refused_or_counted(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [Conversation(f"line {size}", (user("1"), assistant("2" * size)), (1,)) for size in (2, 9, 3)]

    def encoded(settings: SftSettings, context: int | None) -> Any:
        return encode_rows(rows, lambda row: encode_conversation(tokenizer, row), settings, "sft", context)

    with pytest.raises(ConfigError, match="line 9: the row has 13 tokens, the model takes 12: shorten it, or set sft"):
        encoded(SftSettings(), 12)
    with pytest.raises(ConfigError, match="line 9: the row has 13 tokens, sft.most_tokens is 8"):
        encoded(SftSettings(most_tokens=8), 12)
    found = encoded(SftSettings(most_tokens=8, too_long="skip"), None)
    assert ([row.place for row in found.rows], found.skipped) == (["line 2", "line 3"], 1)
    with pytest.raises(ConfigError, match="all 3 rows are longer than 3 tokens"):
        encoded(SftSettings(most_tokens=3, too_long="skip"), None)
    assert encoded(SftSettings(), None).digest == encoded(SftSettings(), 100).digest != found.digest


def rows_of(tokenizer: PreTrainedTokenizerFast) -> list[EncodedRow]:
    texts = [("1+2", "3"), ("(3+4)*2-5", "3+4=7\n7*2=14\n14-5=9"), ("1+2", "1+2=3")]
    rows = [Conversation("", (user(prompt), assistant(answer)), (1,)) for prompt, answer in texts]
    return [EncodedRow("", b"", encode_conversation(tokenizer, row)) for row in rows]


@pytest.mark.parametrize("sharing", ["off", "packed", "depth_first"])
def test_the_loss_of_answers_and_its_gradient_are_those_of_transformers(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, sharing: Any
) -> None:
    rows = rows_of(tokenizer)
    model = train_all(copy.deepcopy(policy).double())
    learner = Learner(
        model, policy_loss=answer_losses, adam=AdamSettings(learning_rate=1e-9, max_norm=None), sharing=sharing
    )
    samples = samples_of(rows, range(len(rows)))
    result = learner.update(samples, micro_batch_tokens=64)
    theirs = copy.deepcopy(policy).double().requires_grad_(True)
    texts = [row.texts[0] for row in rows]
    longest = max(len(text.tokens) for text in texts)
    tokens = torch.tensor([[*text.tokens, *[0] * (longest - len(text.tokens))] for text in texts])
    labels = torch.full_like(tokens, -100)
    for place, text in enumerate(texts):
        labels[place, text.prompt_tokens : len(text.tokens)] = torch.tensor(text.tokens[text.prompt_tokens :])
    loss = theirs(input_ids=tokens, labels=labels).loss
    loss.backward()
    norm = torch.stack([weight.grad.norm() for weight in theirs.parameters() if weight.grad is not None]).norm()
    assert result.loss == pytest.approx(loss.item(), rel=1e-6)
    assert result.gradient_norm == pytest.approx(norm.item(), rel=1e-6)
    assert result.response_tokens == int((labels != -100).sum())


@pytest.mark.parametrize("sharing", ["off", "packed", "depth_first"])
def test_prompts_with_a_weight_are_learned_as_much_as_it_says(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, sharing: Any
) -> None:
    rows = rows_of(tokenizer)
    learner = Learner(
        train_all(copy.deepcopy(policy).double()),
        policy_loss=answer_losses,
        adam=AdamSettings(learning_rate=1e-9, max_norm=None),
        sharing=sharing,
    )
    result = learner.update(samples_of(rows, range(len(rows)), prompt_weight=0.25), micro_batch_tokens=64)
    theirs = copy.deepcopy(policy).double().requires_grad_(True)
    texts = [row.texts[0] for row in rows]
    losses = []
    for text in texts:
        tokens = torch.tensor(text.tokens)
        each = torch.nn.functional.cross_entropy(theirs(tokens[None, :-1]).logits[0], tokens[1:], reduction="none")
        weights = torch.ones_like(each)
        weights[: text.prompt_tokens - 1] = 0.25  # What is predicted at a place is the next token.
        losses.append((weights * each).sum())
    total = sum(len(text.tokens) - 1 for text in texts)
    loss = torch.stack(losses).sum() / total
    loss.backward()
    norm = torch.stack([weight.grad.norm() for weight in theirs.parameters() if weight.grad is not None]).norm()
    assert result.loss == pytest.approx(loss.item(), rel=1e-6)
    assert result.gradient_norm == pytest.approx(norm.item(), rel=1e-6)
    assert result.response_tokens == total


@pytest.mark.parametrize("sharing", ["off", "packed"])
def test_the_loss_of_labels_is_the_cross_entropy_at_the_last_token_of_steps(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, sharing: Any
) -> None:
    model = train_all(copy.deepcopy(policy).double())
    head = ValueHead(32, dtype=torch.float64)
    torch.nn.init.normal_(head.linear.weight, generator=torch.Generator().manual_seed(0))
    row = LabeledSteps("", (user("1+2"),), ("1+2=3", "3"), (1.0, 0.25))
    (text,) = encode_steps(tokenizer, row, "\n")
    learner = Learner(model, policy_loss=label_losses, value_head=head, sharing=sharing)
    with torch.no_grad():
        hidden_LD = body_of(model)(input_ids=torch.tensor([list(text.tokens)])).last_hidden_state[0]
        chances = head(hidden_LD[[place for place, _ in text.labels or ()]]).sigmoid()
        expected = -(chances[0].log() + 0.25 * chances[1].log() + 0.75 * (1 - chances[1]).log()) / 2
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    result = learner.update([text.sample(0)], micro_batch_tokens=64, learning_rate=1e-3)
    assert result.loss == pytest.approx(expected.item(), rel=1e-9)
    assert result.response_tokens == 2
    assert any(not torch.equal(weight, before[name]) for name, weight in model.named_parameters())


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_saved_reward_model_says_what_the_trained_one_says(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, method: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model: Any = copy.deepcopy(policy)
    model = train_lora(model, rank=4) if method == "lora" else train_all(model)
    if method == "lora":
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.1)
    head = torch.nn.Linear(32, 1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_classifier(model, head, tmp_path)
    saved = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    tokens = torch.tensor([[BOS, 5, 14, 6, LINE, 7]])
    with torch.no_grad():
        trained = head(body_of(model)(input_ids=tokens).last_hidden_state)
        assert saved.config.num_labels == 1
        assert torch.allclose(saved(input_ids=tokens).logits, trained, atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert merged_weights(body_of(model)).keys() == policy.model.state_dict().keys()


def test_a_text_holds_four_bytes_a_token() -> None:
    text = Text(array("I", [1, 2, 70_000]), 1)
    assert len(text.tokens.tobytes()) == 12
    assert text.sample(3).group == 3
