"""What is asked of memory, as values: the models, how wide a search is, how large an update."""

from dataclasses import dataclass, field
from typing import Literal

from palmette.planner.shape import DTYPE_BYTES, ModelShape, quantized_bytes


@dataclass(frozen=True)
class Model:
    """A model in a role. `device` is what the settings say: auto, cpu, cuda or cuda:N."""

    name: str
    shape: ModelShape
    dtype: str
    device: str = "auto"
    adapter_bytes: int = 0
    quantize: str = "none"
    """What linear layers are narrowed to where the model runs inside this process on a CPU."""

    @property
    def weight_bytes(self) -> int:
        """Weights with the adapter on top."""
        if self.quantize != "none":
            return quantized_bytes(self.shape, self.dtype, self.quantize) + self.adapter_bytes
        return self.shape.weight_bytes(self.dtype) + self.adapter_bytes

    @property
    def kv_token_bytes(self) -> int:
        """Keys and values of one token."""
        return self.shape.kv_bytes_per_token(self.dtype)

    @property
    def number_bytes(self) -> int:
        """Bytes of one number in its dtype."""
        return DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class SearchNeeds:
    """How a search grows. Budgets are bytes of KV, None where a cache may grow as it needs.

    `sorted_logits` are those of a row that a cut by rank may sort, more than there are for all.
    """

    width: int
    questions: int
    prompt_tokens: int
    step_tokens: int
    total_tokens: int
    depth: int
    policy_rows: int = 512
    reward_rows: int = 512
    embed_rows: int = 128
    scales_logits: bool = False
    cuts_logits: bool = False
    sorted_logits: int = 0
    by_likelihood: bool = False
    kv_budget_bytes: int | None = None
    reward_kv_budget_bytes: int | None = None
    kv_holds: Literal["path", "width"] = "path"

    @property
    def path_tokens(self) -> int:
        """Tokens of one whole branch with its prompt."""
        return self.prompt_tokens + self.total_tokens

    @property
    def branches(self) -> int:
        """Branches of all questions in flight."""
        return self.width * self.questions

    @property
    def unshared_tokens(self) -> int:
        """KV tokens of one question's branches if they shared nothing but the prompt."""
        return self.prompt_tokens + self.width * self.total_tokens


@dataclass(frozen=True)
class UpdateNeeds:
    """What one optimizer step is made of."""

    method: Literal["full", "lora"]
    lora_rank: int
    lora_targets: tuple[str, ...]
    optimizer_dtype: str
    questions: int
    group_size: int
    prompt_tokens: int
    response_tokens: int
    micro_batch_tokens: int
    checkpointing: bool
    logits: Literal["chunked", "inplace", "plain"]
    reference: Literal["none", "host"]

    @property
    def update_tokens(self) -> int:
        """Tokens of all sequences of an update, at the most."""
        return self.questions * self.group_size * (self.prompt_tokens + self.response_tokens)

    @property
    def batch_tokens(self) -> int:
        """Tokens of one forward and backward pass: a sequence is never cut, so one of them is the least."""
        longest = self.prompt_tokens + self.response_tokens
        return max(longest, min(self.micro_batch_tokens, self.update_tokens))


@dataclass(frozen=True)
class Job:
    """All that a plan is made from, devices apart. An embedder that is not needed is None."""

    policy: Model
    reward: Model | None
    embedder: Model | None
    search: SearchNeeds
    update: UpdateNeeds | None = None
    inference_share: float = 0.95
    training_share: float = 0.90
    any_embed_device: bool = False
    served: bool = True
    """On GPUs: by servers of their own, or by the engine inside this process."""
    server: str = "sglang"
    predicted: dict[str, int] = field(default_factory=dict)
    """Bytes of update lines by kind, from a prediction; they take the place of formulas."""

    @property
    def mode(self) -> str:
        """`search` or `train`."""
        return "search" if self.update is None else "train"
