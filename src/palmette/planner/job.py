"""What a plan is asked for, as values: the models, how wide a search is, how large an update."""

from dataclasses import dataclass, field, replace
from typing import Literal

from palmette.planner.models.quantized import quantized_bytes
from palmette.planner.models.shape import DTYPE_BYTES, ModelShape
from palmette.planner.models.shard import shard


@dataclass(frozen=True)
class Model:
    """A model in a role. `device` is what the settings say: auto, cpu, cuda or cuda:N."""

    name: str
    shape: ModelShape
    dtype: str
    device: str = "auto"
    adapter_bytes: int = 0
    quantize: str = "none"
    """What linear layers are quantized to where the model runs inside this process on a CPU."""

    shards: int = 1
    """GPUs that a server cuts the model for."""

    def sharded(self) -> "Model":
        """Return the model with the shape of what one GPU holds of it."""
        return self if self.shards == 1 else replace(self, shape=shard(self.shape, self.shards))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, with those of the adapter."""
        if self.quantize != "none":
            return quantized_bytes(self.shape, self.dtype, self.quantize) + self.adapter_bytes
        return self.shape.weight_bytes(self.dtype) + self.adapter_bytes

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        return self.shape.kv_bytes_per_token(self.dtype)

    @property
    def number_bytes(self) -> int:
        """Bytes of one number in the model's dtype."""
        return DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class SearchNeeds:
    """How large a search may grow. KV budgets are in bytes, None where a KV cache grows as needed."""

    width: int
    questions: int
    """Questions in flight together."""
    prompt_tokens: int
    step_tokens: int
    total_tokens: int
    depth: int
    first_step_tokens: int = 1
    """How long a first step is expected to be where a KV budget has to hold it."""
    policy_rows: int = 512
    reward_rows: int = 512
    embed_rows: int = 128
    drafts: bool = True
    """Whether a tick of few rows computes drafted tokens too."""
    scales_logits: bool = False
    """Whether a temperature divides the logits."""
    filters_logits: bool = False
    """Whether top-k, top-p or min-p leaves tokens out."""
    sorted_logits: int = 0
    """Logits of a row that top-k or top-p sorts; may exceed the vocabulary, which means all of them."""
    by_likelihood: bool = False
    tag_tokens: int = 0
    """Tokens that the reward model's profile adds to each step."""
    kv_budget_bytes: int | None = None
    reward_kv_budget_bytes: int | None = None
    kv_holds: Literal["path", "width"] = "path"

    @property
    def as_scored(self) -> "SearchNeeds":
        """The same search as the reward model reads it, whose steps have their tags."""
        steps = min(self.depth, self.total_tokens)
        return replace(
            self,
            step_tokens=self.step_tokens + self.tag_tokens,
            total_tokens=self.total_tokens + steps * self.tag_tokens,
            tag_tokens=0,
        )

    @property
    def path_tokens(self) -> int:
        """Tokens of one whole branch with its prompt."""
        return self.prompt_tokens + self.total_tokens

    @property
    def start_tokens(self) -> int:
        """Tokens of a prompt with a first step: the least that one question's share of a KV budget must hold."""
        return self.prompt_tokens + self.first_step_tokens

    @property
    def branches(self) -> int:
        """Branches of all questions in flight."""
        return self.width * self.questions

    @property
    def unshared_tokens(self) -> int:
        """KV tokens of one question's branches if they shared nothing but the prompt: no search holds more."""
        return self.prompt_tokens + self.width * self.total_tokens


@dataclass(frozen=True)
class UpdateNeeds:
    """How large one optimizer step is."""

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
    reference: Literal["none", "host"]
    sharing: Literal["auto", "off", "packed", "depth_first"] = "off"
    """How prefixes that samples share are computed once, as `train.packed.sharing` has it."""
    reads: tuple[Literal["reference", "values"], ...] = ()
    """Phases before an update that read all samples without gradients: the reference policy, a critic's values."""
    host_optimizer: bool = False
    """Whether the optimizer's state of a policy on a GPU is in host memory."""

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest sequence."""
        return self.prompt_tokens + self.response_tokens

    @property
    def update_tokens(self) -> int:
        """The most tokens that all sequences of an update have."""
        return self.questions * self.group_size * self.longest_tokens

    @property
    def batch_tokens(self) -> int:
        """The most tokens of one forward and backward pass; at least one whole sequence, since none is cut."""
        return max(self.longest_tokens, min(self.micro_batch_tokens, self.update_tokens))


@dataclass(frozen=True)
class Job:
    """Everything a plan is made from, except the devices. `embedder` is None where none is needed."""

    policy: Model
    reward: Model | None
    embedder: Model | None
    search: SearchNeeds
    update: UpdateNeeds | None = None
    critic: Model | None = None
    """A critic that is a model of its own, beside the policy on its device."""
    small_reward: Model | None = None
    """A smaller model that steps are read by too, beside the reward model on its device."""
    inference_share: float = 0.95
    training_share: float = 0.90
    any_embed_device: bool = False
    served: bool = True
    """Whether models on GPUs run in servers of their own, or in the engine inside this process."""
    server: str = "sglang"
    host_roles: tuple[str, ...] = ()
    """Roles whose models run in servers of their own on the host."""
    policy_elsewhere: bool = False
    """Whether the policy is on servers that are not planned here: of a job inside this process it holds nothing."""
    checks_kv_budgets: bool = True
    """Whether a KV budget must hold prompts of `prompt_tokens`; a search checks its real prompts instead."""
    predicted: dict[str, int] = field(default_factory=dict)
    """Predicted bytes of an update by the kind of line; they replace the formulas."""

    @property
    def mode(self) -> str:
        """`search` or `train`."""
        return "search" if self.update is None else "train"
