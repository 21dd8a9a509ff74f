"""Plans for clusters: numbers worked out by hand, placements tried one by one, refusals whose advice fits."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from palmette.commands.app import app
from palmette.config import load_config
from palmette.errors import BudgetError, ConfigError, PalmetteError
from palmette.planner.cluster.nodes import Cluster, is_cluster, parse_cluster
from palmette.planner.cluster.plan_cluster import plan_cluster
from palmette.planner.cluster.rank_sizes import passes, rank_update_lines, sharded_parameters, state_lines
from palmette.planner.cluster.transfers import Bandwidths, transfers
from palmette.planner.devices import parse_devices
from palmette.planner.job import Job, Model, UpdateNeeds
from palmette.planner.models.find_shape import find_shape
from palmette.planner.run_plan import job_of

GIB = 2**30
BANDWIDTHS = Bandwidths(link=100e9, network=10e9)
SHAPE = find_shape("Qwen/Qwen2.5-7B")
MODEL = Model("Qwen/Qwen2.5-7B", SHAPE, "bfloat16")
UPDATE = UpdateNeeds(
    method="full", lora_rank=16, lora_targets=(), optimizer_dtype="float32", questions=32, group_size=8,
    prompt_tokens=256, response_tokens=768, micro_batch_tokens=4096, checkpointing=True, reference="none",
)  # fmt: skip


@pytest.mark.parametrize("text", ["16 nodes x 8x80GiB", "16 Nodes X 8x80GiB", "16 nodes of 8x80GiB"])
def test_a_cluster_is_read_as_people_write_it(text: str) -> None:
    cluster = parse_cluster(text)
    assert is_cluster(text)
    assert (cluster.nodes, len(cluster.gpus), cluster.devices) == (16, 8, 128)
    assert str(cluster) == "16 nodes x 8x80GiB"
    assert parse_cluster(str(cluster)) == cluster


def test_a_run_refuses_nodes_in_one_line() -> None:
    assert not is_cluster("2x24GiB")
    with pytest.raises(ConfigError, match="are a cluster, which palmette plan can plan"):
        parse_devices("2 nodes x 1x24GiB")


def test_a_rank_keeps_sixteen_bytes_a_parameter_divided() -> None:
    """2 of weights, 2 of gradients, 4 of masters, 8 of moments: the same as in float32 without masters."""
    for ranks in (1, 2, 8, 64):
        state = {line.kind: line.bytes for line in state_lines(MODEL, UPDATE, ranks)}
        gradients = rank_update_lines(MODEL, UPDATE, ranks)[0].bytes
        whole = state["weights"] + state["optimizer"] + gradients
        # The optimizer has one float32 buffer for the gradient of the largest weight, sharded like it.
        buffer = 4 * SHAPE.largest_weight / ranks
        assert whole == pytest.approx(16 * SHAPE.parameters / ranks + buffer, rel=1e-3)


def test_shards_are_rounded_up_row_by_row() -> None:
    """With 7 ranks none of the 3,584 rows of a matrix is shared out evenly."""
    assert sharded_parameters(SHAPE, 1) == SHAPE.parameters
    layer = sum(-(-own.outputs // 7) * own.inputs * own.count for own in SHAPE.linear)
    outside = 2 * -(-SHAPE.vocabulary // 7) * SHAPE.hidden
    assert 0 < sharded_parameters(SHAPE, 7) - layer - outside < SHAPE.parameters / 1e4, "norms and biases"
    assert sharded_parameters(SHAPE, 7) * 7 > SHAPE.parameters


def test_what_moves_in_an_update() -> None:
    assert passes(UPDATE, 8) == 8, "32 sequences of 1,024 tokens a rank, 4 in a pass"
    moved = {each.what: each for each in transfers(
        MODEL, UPDATE, ranks=8, learner_nodes=1, all_nodes=4, bandwidths=BANDWIDTHS
    )}  # fmt: skip
    weights = 2 * SHAPE.parameters
    assert moved["weights gathered"].bytes == 2 * 8 * weights * 7 // 8
    assert moved["gradients reduced"].bytes == 8 * weights * 7 // 8
    assert moved["gradients reduced"].seconds == pytest.approx(7 * weights / 100e9), "inside a node by its links"
    assert moved["new weights"].bytes == weights
    assert moved["new weights"].seconds == pytest.approx(weights / 10e9)
    assert moved["samples"].bytes == 32 * 8 * 1024 * 16
    alone = transfers(MODEL, UPDATE, ranks=1, learner_nodes=1, all_nodes=1, bandwidths=BANDWIDTHS)
    assert [each.what for each in alone] == ["new weights", "samples"]
    lora = transfers(
        MODEL, replace(UPDATE, method="lora", lora_targets=("q_proj",)), ranks=8, learner_nodes=2, all_nodes=4,
        bandwidths=BANDWIDTHS,
    )  # fmt: skip
    assert lora[2].bytes == 28 * 16 * (3584 + 3584) * 4
    assert lora[0].by == "network"


def jobs(policy: str) -> tuple[Job, Job]:
    config = load_config(
        None, {"policy.model": policy, "reward.model": None, "reward.score": "none", "search.strategy": "best_of_n"}
    )
    return job_of(config), job_of(config, train=True)


@pytest.mark.parametrize("policy", ["Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-32B", "meta-llama/Llama-3.1-70B"])
@pytest.mark.parametrize("nodes", ["1 node x 2x80GiB", "1 node x 8x80GiB", "2 nodes x 8x80GiB", "16 nodes x 8x80GiB"])
def test_devices_are_given_out_once_and_whole(policy: str, nodes: str) -> None:
    search, train = jobs(policy)
    cluster = parse_cluster(nodes)
    planned = plan_cluster(search, train, cluster, BANDWIDTHS)
    if not planned.plan.fits:
        return
    assert planned.workers > 0 < planned.ranks
    assert 0 <= planned.unused < cluster.devices - planned.ranks
    assert planned.ranks < 8 or planned.ranks % 4 == 0, "a learner of more than one node takes whole or half nodes"
    used = planned.workers * planned.worker_devices + planned.ranks
    assert used + planned.unused == cluster.devices
    for device in planned.plan.devices:
        assert all(phase.fits for phase in device.phases)


def test_workers_beside_ranks_are_those_that_fit_one_by_one() -> None:
    search, train = jobs("Qwen/Qwen2.5-7B")
    for nodes in range(1, 5):
        cluster = Cluster(nodes, parse_devices("8x80GiB"))
        planned = plan_cluster(search, train, cluster, BANDWIDTHS)
        free = [8] * nodes
        for rank in range(planned.ranks):
            free[rank // 8] -= 1
        assert planned.workers == sum(each // planned.worker_devices for each in free)


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", "--reward", "none", "--strategy", "best_of_n", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_the_command_tells_ranks_workers_and_seconds() -> None:
    values = json.loads(
        command("--policy", "Qwen/Qwen2.5-7B", "--devices", "2 nodes x 8x80GiB", "--train", "--json", "--set",
                "memory.network_bandwidth=50GB")
    )  # fmt: skip
    assert (values["ranks"], values["workers"], values["worker_devices"], values["fits"]) == (4, 12, 1, True)
    sent = next(each for each in values["moved"] if each["what"] == "new weights")
    assert sent["seconds"] == pytest.approx(2 * SHAPE.parameters / 50e9)
    phases = {phase["phase"]: phase for phase in values["devices"][0]["phases"]}
    assert phases["update"]["bytes"] > phases["wait"]["bytes"]
    assert {"gathered layers", "gathered root", "gradient shard"} <= {
        line["holder"] for line in phases["update"]["lines"]
    }


def test_what_does_not_fit_is_refused_with_what_does() -> None:
    arguments = ["--policy", "Qwen/Qwen2.5-7B", "--devices", "1 node x 2x80GiB", "--train"]
    with pytest.raises(BudgetError) as error:
        command(*arguments)
    message = str(error.value)
    assert "an update needs" in message
    assert 'devices "2 nodes x 2x80GiB"' in message
    for setting in ("train.method=lora", "train.optimizer_dtype=bfloat16"):
        assert setting.replace("=", " ") in message
        command(*arguments, "--set", setting)
    command("--policy", "Qwen/Qwen2.5-7B", "--devices", "2 nodes x 2x80GiB", "--train")


def test_a_search_on_nodes_has_a_worker_for_as_many_gpus_as_it_needs() -> None:
    both = ["--reward", "Qwen/Qwen2.5-Math-PRM-7B", "--policy", "Qwen/Qwen2.5-7B", "--json", "--devices"]
    small = json.loads(command(*both, "4 nodes x 2x24GiB"))
    large = json.loads(command(*both, "4 nodes x 2x80GiB"))
    assert (small["workers"], small["worker_devices"]) == (4, 2)
    assert (large["workers"], large["worker_devices"]) == (8, 1)
    hosts = json.loads(command("--policy", "seedling", "--json", "--devices", "3 nodes x cpu:8GiB"))
    assert (hosts["workers"], hosts["worker_devices"]) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--devices", "3 nodes"], "write a cluster like '16 nodes x 8x80GiB'"),
        (["--devices", "3 nodes x 8x80"], "80 of what?"),
        (["--devices", "3 nodes x cpu:8GiB", "--train"], "nodes with GPUs"),
        (["--devices", "1 node x 2x80GiB", "--train", "--predict"], "leave it out for a cluster"),
        (["--devices", "1 node x 2x80GiB", "--set", "memory.link_bandwidth=0"], "link_bandwidth"),
    ],
)
def test_bad_input_is_told_in_one_line(arguments: list[str], told: str) -> None:
    with pytest.raises(PalmetteError) as error:
        command(*arguments)
    assert told in str(error.value)
