"""The out-of-memory retry around work that fails above a size: what it returns, records and lets pass."""

import errno
import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest

from palmette.errors import BackendError, BudgetError, ConfigError
from palmette.events import OomRetry
from palmette.memory.device import DeviceMemory
from palmette.memory.guard import Guard, run_whole
from palmette.memory.oom import is_out_of_memory
from palmette.score.guarded import GuardedEmbedder

GIB = 2**30


class Machine:
    """A device of 16 GiB whose free memory is counted down by what is held."""

    def __init__(self, held: int = 0) -> None:
        self.held = held
        self.retries: list[OomRetry] = []
        self.reclaims = 0

    def reclaim(self) -> int:
        self.reclaims += 1
        freed, self.held = self.held // 2, self.held - self.held // 2
        return freed

    def observe(self) -> DeviceMemory:
        return DeviceMemory("cpu", 16 * GIB, 16 * GIB - self.held, self.held, other_bytes=3 * GIB)

    def guard(self, name: str = "wave", free_caches: Callable[[], bool] = lambda: False, **options: int) -> Guard:
        return Guard(
            name,
            unit="node",
            reclaim=self.reclaim,
            observe=self.observe,
            record=self.retries.append,
            free_caches=free_caches,
            limit_bytes=options.get("limit_bytes"),
            planned_bytes=options.get("planned_bytes"),
        )


def up_to(most: int) -> Callable[[Sequence[int]], list[int]]:
    def work(piece: Sequence[int]) -> list[int]:
        if len(piece) > most:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: 12")
        return [item * item for item in piece]

    return work


def test_work_that_runs_out_of_memory_returns_what_it_would_have_returned() -> None:
    machine = Machine()
    results = machine.guard().run(range(20), up_to(3))
    assert [value for piece in results for value in piece] == [item * item for item in range(20)]
    assert [(retry.tried, retry.limit) for retry in machine.retries] == [(20, 10), (10, 5), (5, 2)]
    assert machine.reclaims == 3
    assert all("DefaultCPUAllocator" in retry.reason for retry in machine.retries)


def test_the_size_that_worked_is_remembered_between_calls() -> None:
    machine = Machine()
    guard = machine.guard()
    guard.run(range(8), up_to(4))
    guard.run(range(8), up_to(4))
    assert len(machine.retries) == 1


def test_the_smallest_piece_that_fails_is_a_budget_error_with_the_sizes_tried() -> None:
    machine = Machine(held=8 * GIB)
    with pytest.raises(BudgetError) as caught:
        machine.guard(planned_bytes=15 * GIB).run(range(8), up_to(0))
    assert str(caught.value) == (
        "out of memory at the smallest wave (1 node, tried 8, 4, 2, 1). Planned 15.0 GiB; the device has 15.5 GiB "
        "free: this process holds 512.0 MiB, other processes hold 3.0 GiB."
    )
    assert caught.value.exit_code == 3
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert [(retry.tried, retry.limit) for retry in machine.retries] == [(8, 4), (4, 2), (2, 1), (1, None)]


def test_caches_are_freed_before_the_work_is_given_up() -> None:
    machine, answers, most = Machine(), [True, False], [0]

    def free_caches() -> bool:
        most[0] = 4
        return answers.pop(0)

    results = machine.guard(free_caches=free_caches).run(range(4), lambda piece: up_to(most[0])(piece))
    assert results == [[0, 1, 4, 9]]
    assert [(retry.tried, retry.limit, retry.spared) for retry in machine.retries] == [
        (4, 2, False),
        (2, 1, False),
        (1, None, True),
    ]


@pytest.mark.parametrize("error", [ValueError("no"), RuntimeError("shapes differ"), BudgetError("no"), KeyError(1)])
def test_any_other_error_passes_unchanged(error: Exception) -> None:
    machine = Machine()

    def work(piece: Sequence[int]) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        machine.guard().run([1, 2], work)
    assert caught.value is error
    assert caught.value.__traceback__ is not None
    assert not machine.retries


def test_an_interrupt_passes_unchanged() -> None:
    def work(piece: Sequence[int]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Machine().guard().run([1, 2], work)


class Block:
    """Stands for a tensor, and can be referenced weakly."""


def test_the_tensors_of_a_failed_piece_are_freed_before_memory_is_reclaimed() -> None:
    alive: list[weakref.ref[Block]] = []
    at_reclaim: list[int] = []

    def inner() -> None:
        block = Block()
        alive.append(weakref.ref(block))
        raise MemoryError

    def work(piece: Sequence[int]) -> int:
        block = Block()
        alive.append(weakref.ref(block))
        if len(piece) > 1:
            try:
                inner()
            except MemoryError as error:
                raise BackendError("the policy cannot be decoded") from error
        return len(piece)

    def reclaim() -> int:
        at_reclaim.append(sum(block() is not None for block in alive))
        return 0

    gc.disable()
    try:
        guard = Guard("wave", unit="node", reclaim=reclaim, observe=Machine().observe)
        assert guard.run([1, 2], work) == [1, 1]
    finally:
        gc.enable()
    assert at_reclaim == [0]


def test_work_that_cannot_fail_cleanly_is_restarted_from_its_first_piece() -> None:
    machine, summed, failing = Machine(), [0], [3]

    def work(piece: Sequence[int]) -> int:
        for item in piece:
            if item == 5 and failing[0]:
                failing[0] -= 1
                raise MemoryError  # after a part of the piece was added
            summed[0] += item
        return len(piece)

    def restart() -> None:
        summed[0] = 0

    pieces = machine.guard().run(list(range(1, 9)), work, restart=restart)
    assert summed == [36]
    assert sum(pieces) == 8
    assert [retry.tried for retry in machine.retries] == [8, 4, 2]


def test_groups_stay_whole_and_costs_are_what_is_halved() -> None:
    seen: list[list[tuple[str, int]]] = []

    def work(piece: Sequence[tuple[str, int]]) -> None:
        seen.append(list(piece))
        if sum(tokens for _, tokens in piece) > 250:
            raise MemoryError

    items = [("a", 100), ("a", 100), ("b", 100), ("b", 100), ("c", 50), ("c", 50)]
    machine = Machine()
    machine.guard().run(items, work, cost=lambda item: item[1], group=lambda item: item[0])
    assert seen == [items, items[:2], items[2:4], items[4:]]
    assert [(retry.tried, retry.limit) for retry in machine.retries] == [(500, 250)]


def test_above_its_limit_a_piece_is_halved_before_it_is_tried() -> None:
    machine = Machine(held=8 * GIB)
    seen: list[int] = []

    def work(piece: Sequence[int]) -> None:
        seen.append(len(piece))
        machine.held = 2 * GIB

    machine.guard(limit_bytes=3 * GIB).run(range(8), work)
    assert seen == [4, 4]
    assert machine.retries[0].reason == "4.0 GiB held, the limit is 3.0 GiB"


def test_above_its_limit_at_the_smallest_piece_the_work_ends() -> None:
    machine = Machine(held=64 * GIB)
    with pytest.raises(BudgetError, match=r"this process holds 16.0 GiB of 1.0 GiB that it may hold"):
        machine.guard(limit_bytes=GIB).run([1], lambda piece: None)


class Lengths:
    """An embedder that runs out of memory above so many texts at a time."""

    name = "lengths"

    def __init__(self, most: int) -> None:
        self.most = most

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        if len(texts) > self.most:
            raise MemoryError
        return [[float(len(text))] for text in texts]


def test_an_embedder_run_in_pieces_returns_one_vector_for_each_text_in_order() -> None:
    texts = [letter * count for count, letter in enumerate("abcdefg", start=1)]
    guarded = GuardedEmbedder(Lengths(2), Machine().guard().run, nullcontext)
    assert guarded.embed(texts) == [[float(count)] for count in range(1, 8)]


def test_without_a_guard_the_error_ends_the_work() -> None:
    with pytest.raises(MemoryError):
        GuardedEmbedder(Lengths(2), run_whole, nullcontext).embed(["a", "b", "c"])


def chained(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        RuntimeError("unable to mmap 32 bytes from file </x>: Cannot allocate memory (12)"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("std::bad_alloc"),
        chained(BackendError("wrapped"), RuntimeError("std::bad_alloc")),
        chained(BackendError("wrapped"), chained(ValueError("x"), MemoryError())),
    ],
)
def test_errors_of_every_allocator_are_recognized(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("out of memory"),
        OSError(errno.ENOSPC, "No space left"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        chained(BudgetError("gave up"), MemoryError()),
        chained(ConfigError("x"), MemoryError()),
        chained(BackendError("wrapped"), RuntimeError("shape")),
    ],
)
def test_other_errors_are_not(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def test_an_error_that_came_up_while_memory_ran_out_is_its_own() -> None:
    other = KeyError("a bug in cleaning up")
    other.__context__ = MemoryError()
    assert not is_out_of_memory(other)
