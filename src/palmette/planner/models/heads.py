"""The heads of models: a language model's, a classifier's, a reward model's."""

from collections.abc import Mapping
from typing import Any

from palmette.planner.models.tensors import Numbers, Tensor, tensors_of


def head_tensors(
    declared: str, values: Mapping[str, Any], numbers: Numbers, *, as_encoder: bool
) -> tuple[list[Tensor], int]:
    """Return the tensors of a model's head and how many numbers it returns for each token.

    The architecture's name decides: reward models of the Qwen family have two layers, the first as wide as the model;
    other reward models and classifiers have one. `declared` is the language model's head of the family.
    """
    architecture = str((values.get("architectures") or ["ForCausalLM"])[0])
    told = values.get("num_labels")
    listed = len(values.get("id2label") or ())
    hidden = numbers["h"]
    if as_encoder or (architecture.endswith("Model") and "Reward" not in architecture):
        return [], hidden
    if "RewardModel" in architecture:
        labels = listed or (told if isinstance(told, int) else 2 if "Process" in architecture else 1)
        if "Qwen" not in architecture:
            return [Tensor("v_head.weight", (labels, hidden))], labels
        return [
            Tensor("score.0.weight", (hidden, hidden)), Tensor("score.0.bias", (hidden,)),
            Tensor("score.2.weight", (labels, hidden)), Tensor("score.2.bias", (labels,)),
        ], labels  # fmt: skip
    labels = listed or (told if isinstance(told, int) else 2)
    if "TokenClassification" in architecture:
        return [Tensor("score.weight", (labels, hidden)), Tensor("score.bias", (labels,))], labels
    if "SequenceClassification" in architecture:
        return [Tensor("score.weight", (labels, hidden))], labels
    # Where the head is the embedding, only its bias is its own.
    tensors = tensors_of(declared, numbers)
    return [own for own in tensors if not numbers["t"] or own.name.endswith(".bias")], numbers["V"]
