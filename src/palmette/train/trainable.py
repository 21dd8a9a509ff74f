"""Which weights of a model an update changes: all of them, or adapters beside them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from palmette.errors import BackendError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def train_all(model: "PreTrainedModel") -> "PreTrainedModel":
    """Return the model with gradients wanted for every weight."""
    return model.requires_grad_(True)


def train_lora(
    model: "PreTrainedModel", *, rank: int = 16, alpha: int | None = None, targets: Sequence[str] = LINEAR_LAYERS
) -> Any:
    """Return the model with LoRA adapters on its linear layers; only they want gradients.

    `alpha` is twice the rank where it is not given. Raises BackendError without peft.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise BackendError("LoRA needs peft: pip install 'palmette[adapters]'") from error
    config = LoraConfig(r=rank, lora_alpha=2 * rank if alpha is None else alpha, target_modules=list(targets))
    return get_peft_model(model, config)
