"""Formulas in code: right ones pass, wrong ones are told with the first difference, and code cannot get out."""

from pathlib import Path

import pytest

from palmette.agents.formulas import sandbox
from palmette.agents.formulas.concepts import CONCEPTS, find_concept
from palmette.agents.formulas.verify import verify
from palmette.errors import ConfigError

pytestmark = pytest.mark.torch

_RIGHT = {
    "log-probability": """
def selective_log_softmax(logits, index):
    return logits.log_softmax(-1).gather(-1, index.unsqueeze(-1)).squeeze(-1)
""",
    "advantage": """
def advantages(rewards, num_generations):
    grouped = rewards.view(-1, num_generations)
    return ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-6)).flatten()
""",
    "dr-grpo-advantage": "advantages = rewards - rewards.mean()",
    "rloo-advantage": """
def rloo(rewards):
    n = len(rewards)
    return [reward - (sum(rewards) - reward) / (n - 1) for reward in rewards]
""",
    "loss": """
def loss(logps, old_logps, advantages, epsilon):
    ratio = torch.exp(logps - old_logps)
    return -torch.min(ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon) * advantages)
""",
    "kl-k1": "kl = per_token_logps - ref_per_token_logps",
    "kl-k2": "kl = 0.5 * (per_token_logps - ref_per_token_logps) ** 2",
    "kl-k3": "np.exp(ref_logps - logps) - (ref_logps - logps) - 1",
    "allocation": """
import math
def rebase(scores, width, temperature):
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    weights = [math.exp((scores[i] - scores[order[0]]) / temperature) for i in order]
    left, rest, found = width, sum(weights), {}
    for i, weight in zip(order, weights):
        found[i] = math.ceil(left * weight / rest - 1e-9) if left else 0
        left, rest = left - found[i], rest - weight
    return [found[i] for i in range(len(scores))]
""",
    "gae": """
def gae(rewards, values, gamma, lam):
    found, last, after = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values)):
        last = reward + gamma * after - value + gamma * lam * last
        after = value
        found.append(last)
    return found[::-1]
""",
    "decode": """
def decode_and_strip_padding(inputs, tokenizer):
    decoded = tokenizer.batch_decode(inputs, skip_special_tokens=False)
    return [text.replace(tokenizer.pad_token, "") for text in decoded]
""",
}


@pytest.mark.parametrize("concept", _RIGHT)
def test_a_right_formula_passes(concept: str) -> None:
    found = verify(_RIGHT[concept], concept)
    assert (found.concept, found.agrees) == (concept, True), found.said


def test_every_formula_is_tried() -> None:
    assert set(_RIGHT) == set(CONCEPTS)


# The three faults that mask each other in skillsbench's debug-trl-grpo, written here after its description (its pull
# request 775): answers without </think> decode to nothing, an epsilon of 1e4, and a subtraction the wrong way round.
def test_the_first_masked_fault_of_debug_trl_grpo_is_found() -> None:
    code = '''
def decode_and_strip_padding(inputs: torch.Tensor, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Decode completions of a reasoning model."""
    texts = []
    for text in tokenizer.batch_decode(inputs, skip_special_tokens=True):
        text = text.replace(tokenizer.pad_token, "")
        if "</think>" in text:
            text = text.split("</think>", 1)[-1].strip()
        else:
            text = ""
        texts.append(text)
    return texts
'''
    found = verify(code, "decode and strip padding")
    assert found.agrees is False and "the text is empty, and a reward of it is 0 for all" in found.said
    assert verify(code.replace('text = ""', "pass"), "decode").agrees is True, "reasoning may be taken away"
    assert verify(code.replace("[-1].strip()", "[0].strip()").replace('text = ""', "pass"), "decode").agrees is False


def test_the_second_masked_fault_of_debug_trl_grpo_is_found() -> None:
    code = """
mean_grouped_rewards = rewards.view(-1, self.num_generations).mean(dim=1)
std_grouped_rewards = rewards.view(-1, self.num_generations).std(dim=1)
mean_grouped_rewards = mean_grouped_rewards.repeat_interleave(self.num_generations, dim=0)
std_grouped_rewards = std_grouped_rewards.repeat_interleave(self.num_generations, dim=0)
advantages = rewards - mean_grouped_rewards
if self.scale_rewards:
    advantages = advantages / (std_grouped_rewards + 1e4)
"""
    found = verify(code, "advantages")
    assert found.agrees is False and "near 0, so something divides by far too much, such as an epsilon" in found.said
    assert verify(code.replace("1e4", "1e-4"), "advantage normalization").agrees is True


def test_the_third_masked_fault_of_debug_trl_grpo_is_found() -> None:
    code = """
def selective_log_softmax(logits, index, row_mask: SomeMask | None = None):
    if is_triton_available() and row_mask is not None:
        return fused(logits, index)
    selected_logits = torch.gather(logits, dim=-1, index=index.unsqueeze(-1)).squeeze(-1)
    logsumexp_values = torch.stack([torch.logsumexp(lg, dim=-1) for lg in logits])
    return logsumexp_values - selected_logits
"""
    found = verify(code, "selective log softmax")
    assert found.agrees is False and "the sign is reversed" in found.said
    right = code.replace("logsumexp_values - selected_logits", "selected_logits - logsumexp_values")
    assert verify(right, "selective log softmax").agrees is True


def test_a_mean_is_compared_with_the_mean() -> None:
    assert verify(_RIGHT["loss"].replace("* advantages)\n", "* advantages).mean()\n"), "ppo loss").agrees is True


def test_a_name_that_is_no_formula_is_refused() -> None:
    assert find_concept("GRPO advantage") == "advantage" and find_concept("k3 divergence") == "kl-k3"
    with pytest.raises(ConfigError, match="no formula is known as 'tea'"):
        verify("x = 1", "tea")


def test_an_unknown_parameter_is_told_with_the_names_that_are_known() -> None:
    found = verify("def f(frobs):\n    return frobs", "advantage")
    assert found.agrees is None and "parameter 'frobs'" in found.said and "rewards (rewards, r," in found.said


@pytest.mark.parametrize(
    "hostile",
    [
        "open('{path}', 'w').write('x')\nadvantages = rewards",
        "import os\nos.system('touch {path}')\nadvantages = rewards",
        "import subprocess\nsubprocess.run(['touch', '{path}'])\nadvantages = rewards",
        "import socket\nsocket.create_connection(('127.0.0.1', 9))\nadvantages = rewards",
        "import os\nos.kill(os.getppid(), 9)\nadvantages = rewards",
        "import os\nos._exit(0)",
        "advantages = open('/etc/shadow').read()",
        "def (",
        "x" * 19_000,
    ],
)
def test_code_cannot_get_out(hostile: str, tmp_path: Path) -> None:
    if not {"seccomp", "landlock"} <= set(_walls()):
        pytest.skip("this kernel has no walls")
    target = tmp_path / "owned"
    found = verify(hostile.replace("{path}", str(target)), "advantage")
    assert found.agrees is not True and not target.exists() and found.said.isprintable()
    assert verify(_RIGHT["kl-k1"], "kl-k1").agrees is True  # The worker lives.


def test_code_without_an_end_is_ended() -> None:
    request = {"code": "while True: pass", "trials": [{"rewards": [1.0]}], "aliases": {"rewards": []}}
    assert sandbox.plain.run(request, 0.2) == {"error": "it did not end within 0.2 s"}


def _walls() -> tuple[str, ...]:
    sandbox.plain.warm()
    return sandbox.plain.walls
