"""Which worker gets which questions, and how many workers a cluster has room for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.config import load_config
from palmette.errors import BudgetError, ConfigError
from palmette.run.cluster.demand import count_of_workers, demand_of, gpu_notices
from palmette.scale.crew import cause_of_death
from palmette.scale.fit import Demand, NodeRoom, most_workers, shortage
from palmette.scale.shares import Shares

GIB = 2**30


def test_a_worker_has_one_question_more_than_it_searches_at_once() -> None:
    shares = Shares(map(str, range(100)), in_flight=4)
    assert shares.take("a", 2) == ["0", "1", "2", "3", "4"]
    assert shares.take("a", 2) == []
    assert shares.finished("a", "1") and shares.take("a", 2) == ["5"]
    assert shares.take("b", 2) == ["6", "7", "8", "9", "10"]


def test_few_questions_are_shared_out_equally() -> None:
    shares = Shares("abcde", in_flight=16)
    assert [len(shares.take(worker, 3)) for worker in "123"] == [2, 2, 1]


def test_what_a_lost_worker_had_is_asked_next_and_counted() -> None:
    shares = Shares("abcdef", in_flight=1)
    assert shares.take("1", 2) == ["a", "b"]
    shares.finished("1", "a")
    assert shares.lost("1") == ["b"] and shares.losses == {"b": 1}
    assert shares.take("2", 1) == ["b", "c"]
    assert shares.lost("nobody") == []


def test_a_question_that_a_worker_does_not_have_is_not_finished_by_it() -> None:
    shares = Shares("ab", in_flight=1)
    shares.take("1", 1)
    assert not shares.finished("2", "a") and not shares.finished("1", "c") and not shares.is_done


@given(st.lists(st.tuples(st.sampled_from(["take", "finish", "lose"]), st.integers(0, 3)), max_size=60))
def test_whatever_happens_every_question_is_with_one_worker_waiting_or_finished(moves: list[tuple[str, int]]) -> None:
    everything = [str(number) for number in range(12)]
    shares, finished = Shares(everything, in_flight=2), set[str]()
    for move, place in moves:
        worker = str(place)
        held = shares.of(worker)
        if move == "take":
            assert not set(shares.take(worker, 4)) & finished
        elif move == "finish" and held:
            assert shares.finished(worker, held[0])
            finished.add(held[0])
        elif move == "lose":
            shares.lost(worker)
        in_flight = [question for number in range(4) for question in shares.of(str(number))]
        assert len(in_flight) == len(set(in_flight)) and not set(in_flight) & finished
    while not shares.is_done:
        for number in range(4):
            shares.take(str(number), 4)
            for question in shares.of(str(number)):
                shares.finished(str(number), question)
                finished.add(question)
    assert finished == set(everything)


def test_workers_fit_by_what_is_scarcest_on_each_node() -> None:
    nodes = [NodeRoom("a", 8, 2, 10 * GIB), NodeRoom("b", 2, 8, 100 * GIB)]
    assert most_workers(nodes, Demand(1)) == 10
    assert most_workers(nodes, Demand(1, 1)) == 4
    assert most_workers(nodes, Demand(0.5, 0, 4 * GIB)) == 6
    assert most_workers([NodeRoom("a", 1, 0, GIB)], Demand(1 / 3)) == 3


def test_a_shortage_names_both_sides_and_what_fits() -> None:
    told = shortage(4, Demand(1, 0, 3 * GIB), [NodeRoom("a", 8, 0, 7 * GIB)])
    assert told == (
        "4 workers of 1 core, 3.0 GiB each cannot be placed on 1 node: a (8 cores, 7.0 GiB). Fits: scale.workers=2"
    )
    assert "scale.worker_cpus" in shortage(1, Demand(4), [NodeRoom("a", 2, 0, GIB)])
    assert "no node is alive" in shortage(1, Demand(1), [])


def test_on_this_machine_too_many_workers_are_refused_at_once_and_on_a_cluster_awaited() -> None:
    nodes, demand = [NodeRoom("a", 2, 0, GIB)], Demand(1)
    with pytest.raises(BudgetError, match=r"3 workers of 1 core each cannot .* Fits: scale.workers=2"):
        count_of_workers(load_config(None, {"scale.workers": 3}), demand, nodes)
    cluster = {"scale.address": "10.0.0.1:6379"}
    assert count_of_workers(load_config(None, {"scale.workers": 3, **cluster}), demand, nodes) == 3
    assert count_of_workers(load_config(None, cluster), demand, nodes) == 2
    with pytest.raises(BudgetError, match="no node is alive"):
        count_of_workers(load_config(None, cluster), demand, [])


def test_a_worker_is_given_what_the_plan_counts_unless_told_else() -> None:
    planned = demand_of(load_config(None, {"scale.address": "auto"}))
    assert planned.cpus == 1 and planned.memory_bytes > 100 * 2**20
    told = demand_of(load_config(None, {"scale.workers": 2, "scale.worker_cpus": 3, "scale.worker_memory": "2GiB"}))
    assert told == Demand(3, 0, 2 * GIB)
    served = {"policy.backend": "vllm", "policy.address": "http://127.0.0.1:1", "reward.model": None}
    assert demand_of(load_config(None, {**served, "scale.workers": 2})).memory_bytes == 0


def test_idle_gpus_are_told_of() -> None:
    nodes = [NodeRoom("a", 8, 4, GIB)]
    assert "scale.worker_gpus=1" in gpu_notices(load_config(None, {"scale.address": "auto"}), nodes)[0]
    assert gpu_notices(load_config(None, {"scale.address": "auto", "scale.worker_gpus": 1}), nodes) == []


@pytest.mark.parametrize("address", ["http://x:1", "ray://x", "x", "x:0", "x:70000", "ray://x:1/..", "x y:1", "[x]:1"])
def test_an_address_of_no_cluster_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"scale.address cannot be .* ray://HOST:10001"):
        load_config(None, {"scale.address": address})


def test_settings_of_workers_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"scale.workers cannot be 0"):
        load_config(None, {"scale.workers": 0})
    with pytest.raises(ConfigError, match="a part of one GPU, or whole ones"):
        load_config(None, {"scale.worker_gpus": 1.5})
    with pytest.raises(ConfigError, match="scale.worker_memory cannot be '2 apples'"):
        load_config(None, {"scale.worker_memory": "2 apples"})
    with pytest.raises(ConfigError, match="palmette sweep runs in one process"):
        load_config(None, {"scale.workers": 2}).scale.refuse_for("sweep")


def test_ray_s_words_for_a_lost_actor_become_one_short_line() -> None:
    assert cause_of_death("... The actor is dead because its node has died. Node Id: 24") == "its node is gone"
    assert cause_of_death("Worker unexpectedly exits with a connection error code 2.") == "its process ended"
    assert "palmette[scale]" in cause_of_death("No module named 'palmette'")
    assert cause_of_death("something\nnew") == "something new"
