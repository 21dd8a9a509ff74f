"""What a critic that is a model of its own holds beside the policy: between updates, and in its own update."""

from dataclasses import replace

from palmette.planner.job import Model, UpdateNeeds
from palmette.planner.lines import Line
from palmette.planner.update_sizes import adapter_line, optimizer_line, update_lines


def critic_state_lines(critic: Model, update: UpdateNeeds) -> list[Line]:
    """Return what stays between updates: its weights, adapters and optimizer state."""
    weights = Line("critic weights", "weights", critic.weight_bytes, note="train.critic")
    trained = _without_head(critic)
    return [weights, *map(_of_critic, [*adapter_line(trained, update), optimizer_line(trained, update)])]


def critic_update_lines(critic: Model, update: UpdateNeeds) -> list[Line]:
    """Return what its update adds to that: gradients and activations, no logits.

    It is made before the policy's, whose gradients and activations are not there yet.
    """
    trained = _without_head(critic)
    # Of a vocabulary of 1 the formulas count no logits and no gradient of an output layer; the embedding's is added.
    silent = replace(trained, shape=replace(trained.shape, vocabulary=1))
    lines = [line for line in update_lines(silent, update, {}) if line.kind != "logits"]
    if update.method == "full":
        size = critic.shape.vocabulary * critic.shape.hidden * critic.number_bytes
        lines.append(Line("gradients in flight", "gradients", size, note="the embedding's, before it is accumulated"))
    return [line if line.kind == "runtime" else _of_critic(line) for line in lines]


def _without_head(critic: Model) -> Model:
    """Return the critic without its output layer, which is loaded and neither computed nor trained."""
    parts = {kind: count for kind, count in critic.shape.parts.items() if kind != "head"}
    return replace(critic, shape=replace(critic.shape, parts=parts))


def _of_critic(line: Line) -> Line:
    return replace(line, holder=f"critic {line.holder}")
