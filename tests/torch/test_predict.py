"""Peaks counted on fake tensors are those counted on real ones."""

import copy

import pytest
import torch
from transformers import LlamaForCausalLM

from palmette.memory.tracker import GRADIENTS, OPTIMIZER, TEMPORARY, WEIGHTS, Tracker, predict
from palmette.train.model_parts import train_all, train_lora
from palmette.train.update.fake_update import UpdateShape, predict_update, run_updates
from palmette.train.update.learner import Savings


def test_a_tensor_counts_once_until_its_last_view_is_gone() -> None:
    with Tracker() as tracker:
        numbers = torch.zeros(100)
        view = numbers[:10].view(2, 5)
        assert tracker.held_bytes == 400
        del numbers
        assert tracker.held_bytes == 400
        del view
    assert (tracker.held_bytes, tracker.peak_bytes) == (0, 400)


def test_the_peak_is_counted_by_kind() -> None:
    with Tracker() as tracker:
        weight = torch.zeros(100)
        tracker.track([weight], WEIGHTS)
        with tracker.counting_as(OPTIMIZER):
            state = torch.zeros(50)
        del state
        scratch = torch.zeros(60)
    assert tracker.peak_lines == {WEIGHTS: 400, TEMPORARY: 240}
    assert scratch.numel() == 60


def test_a_gradient_is_counted_as_one_once_it_is_accumulated() -> None:
    weight = torch.zeros(100, requires_grad=True)
    with Tracker() as tracker:
        tracker.track_gradients([weight])
        (weight * 2).sum().backward()
    assert tracker.lines[GRADIENTS] == 400
    assert tracker.lines[TEMPORARY] == 0


def test_sizes_are_rounded_up_as_an_allocator_does() -> None:
    with Tracker(granule_bytes=512) as tracker:
        one = torch.zeros(1)
        assert tracker.held_bytes == 512
    assert one.numel() == 1


def test_work_on_fake_tensors_takes_no_memory() -> None:
    found = predict(lambda tracker, device: torch.empty(2**45, dtype=torch.uint8, device=device))
    assert found.peak_bytes == 2**45  # 32 TiB.


def test_a_prediction_for_cuda_without_cuda_has_a_note() -> None:
    found = predict(lambda tracker, device: torch.empty(1, device="cpu"), device="cuda")
    assert found.peak_bytes == 512
    assert bool(found.notes) == (torch.version.cuda is None)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("rank", [None, 4])
def test_an_update_s_predicted_peak_is_its_real_one(
    policy: LlamaForCausalLM, checkpointing: bool, rank: int | None
) -> None:
    shape = UpdateShape(4, 20, 40, 2, rank, Savings(checkpointing=checkpointing))
    predicted = predict_update(policy.config, shape)
    own = copy.deepcopy(policy)
    model = train_all(own) if rank is None else train_lora(own.requires_grad_(False), rank=rank)
    tracker = Tracker()
    tracker.track([*model.parameters(), *model.buffers()], WEIGHTS)
    with tracker:
        run_updates(model, shape, tracker)
    assert predicted.peak_bytes == pytest.approx(tracker.peak_bytes, rel=0.01)
    assert predicted.lines[WEIGHTS] == tracker.peak_lines[WEIGHTS]
    trained = sum(weight.numel() * 4 for weight in model.parameters() if weight.requires_grad)
    assert predicted.lines[OPTIMIZER] == pytest.approx(2 * trained, rel=0.01)


def test_checkpointing_and_smaller_micro_batches_are_predicted_to_help(policy: LlamaForCausalLM) -> None:
    def temporary(rows: int, checkpointing: bool) -> int:
        shape = UpdateShape(rows, 20, 40, 1, None, Savings(checkpointing=checkpointing))
        return predict_update(policy.config, shape).lines[TEMPORARY]

    assert temporary(8, True) < temporary(8, False)
    assert temporary(4, False) < 0.6 * temporary(8, False)
