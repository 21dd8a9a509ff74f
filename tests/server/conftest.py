"""What the tests on real servers share: the run they are compared with, and one vLLM for all that ask a policy."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.started import SEARCH, Up, engine_flags, searched


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The search of these tests in one process."""
    return searched(tmp_path_factory.mktemp("local") / "run")


@pytest.fixture(scope="session")
def vllm_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared vLLM writes."""
    return tmp_path_factory.mktemp("vllm") / "up" / "servers" / "policy.log"


@pytest.fixture(scope="session")
def vllm(vllm_log: Path) -> Iterator[Up]:
    """A vLLM of the policy that `palmette up` has started; at the end nothing of it is left running."""
    told = "--block-size 32 --enable-prompt-tokens-details --enable-lora --max-lora-rank 16 --max-loras 2"
    flags = [*engine_flags("vllm", "policy"), "--set", f"servers.policy_flags={told}"]
    with Up(*SEARCH, *flags, "--out", str(vllm_log.parents[1])) as up:
        yield up
