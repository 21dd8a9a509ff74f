"""The profile of a reward model: how question and steps are laid out, and where and how a step's score is read."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

QUESTION = "{question}"

SERVED_HEAD = "score"
"""The head that stock servers load, by how the names of its tensors begin."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TokenReading(_Table):
    """The model is a language model: the score is the softmax over the logits of two tokens, at the good one."""

    kind: Literal["tokens"]
    good: str = Field(min_length=1)
    bad: str = Field(min_length=1)
    good_id: int | None = Field(None, ge=0)
    bad_id: int | None = Field(None, ge=0)


class LabelReading(_Table):
    """The model has a head with two labels for each token: the score is the softmax over them, at `good`.

    `weights` is how the names of the head's tensors begin: `NAME.weight`, or `NAME.0.weight` and `NAME.2.weight` of two
    linear layers with a ReLU between.
    """

    kind: Literal["labels"]
    weights: str = Field("score", min_length=1)
    good: Literal[0, 1] = 1


class ValueReading(_Table):
    """The model has a head with one number for each token: the score is its sigmoid. `weights` as for labels."""

    kind: Literal["value"]
    weights: str = Field("score", min_length=1)


class Profile(_Table):
    """How a reward model is given a question with its steps, and how it answers.

    `models` are the names of published models that are read like this, without their organization. The layouts:

    - text: `prompt`, then for each step the step and `tag`, with `between` before every further step;
    - chat: the `system` message, `prompt` as the user's message, the steps with their tags as the assistant's;
    - turns: a turn of the user for each step, `prompt` before the first one, and `tag` as the assistant's answer.

    Steps are stripped. A step is cut where `split` stands, and each part gets a tag; with `line_breaks` spaces, the
    line breaks inside become spaces. Text is tokenized as a `whole`, or question, steps and tags each `apart`. `bos` is
    for the layout text: as the tokenizer adds it by itself, required, or put first if the tokenizer has one. Ids are
    looked up in the tokenizer; where one is recorded here it has to be the same.
    """

    models: list[str] = Field(default_factory=list)
    layout: Literal["text", "chat", "turns"]
    system: str | None = None
    prompt: str = QUESTION
    tag: str = Field(min_length=1)
    tag_id: int | None = Field(None, ge=0)
    between: str = ""
    tokenized: Literal["whole", "apart"] = "whole"
    bos: Literal["default", "required", "if_any"] = "default"
    split: str | None = Field(None, min_length=1)
    line_breaks: Literal["keep", "spaces"] = "keep"
    read_at: Literal["tag", "before_tag"] = "tag"
    read: Annotated[TokenReading | LabelReading | ValueReading, Field(discriminator="kind")]

    @property
    def is_servable(self) -> bool:
        """Whether stock servers load what is read: a language model, or the head that they know."""
        return self.read.kind == "tokens" or self.read.weights == SERVED_HEAD

    @model_validator(mode="after")
    def _consistent(self) -> "Profile":
        if self.prompt.count(QUESTION) != 1:
            raise ValueError(f"prompt has to contain {QUESTION} once")
        if self.system is not None and self.layout == "text":
            raise ValueError("system is for the layouts chat and turns: put it into prompt")
        if self.bos != "default" and self.layout != "text":
            raise ValueError("bos is for the layout text: a chat template brings its own")
        if self.between and self.layout == "turns":
            raise ValueError("between is for the layouts text and chat: turns are separated by the chat template")
        return self
