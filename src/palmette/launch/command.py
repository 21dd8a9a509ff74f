"""From a planned server to the command that starts it: program, folder of the model, address, environment."""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from palmette.errors import ConfigError
from palmette.planner.lines import Plan, Server
from palmette.planner.run_plan import engine_of, served_roles
from palmette.planner.servers import PORTS
from palmette.settings import Config
from palmette.zoo.resolve import resolve

LOOPBACK = ("127.0.0.1", "localhost")
_ASSIGNMENT = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)
_MODULES = {"vllm": "vllm.entrypoints.cli.main", "sglang": "sglang.launch_server"}


@dataclass(frozen=True)
class ServerCommand:
    """How one server is started, and what the plan says of it."""

    role: str
    engine: str
    model: str
    """The folder or hub id that it is told to serve."""
    address: str
    environment: Mapping[str, str]
    words: tuple[str, ...]
    device: str
    planned_kv_tokens: int
    needed_kv_tokens: int
    planned_bytes: int
    """What it is planned to hold of its device."""

    def __str__(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.environment.items()), shlex.join(self.words)])

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return urlsplit(self.address).port or 80


def server_commands(config: Config, plan: Plan) -> list[ServerCommand]:
    """Return how to start the servers of a plan, in their order.

    On GPUs the reward model's server is one of them unless `reward.backend` is set to another one. Raises ConfigError
    where no backend is a server that can be started, and for an address on another machine.
    """
    engine, roles = engine_of(config), served_roles(config)
    if not roles:
        raise ConfigError(
            f"policy.backend is {config.policy.backend}: palmette up starts servers of vllm and sglang, give --backend"
        )
    others = {config.policy.backend, config.reward.backend} - {engine, "local"}
    if len(roles) > 1 and others:
        raise ConfigError(
            f"policy.backend and reward.backend are {engine} and {others.pop()}: start one kind of server"
        )
    if "backend" not in config.reward.model_fields_set:
        roles = (*roles, "reward")
    return [_command(config, plan, server, engine) for server in plan.servers if server.role in roles]


def _command(config: Config, plan: Plan, server: Server, engine: str) -> ServerCommand:
    settings = config.policy if server.role == "policy" else config.reward
    assert settings.model is not None
    address = _address(server.role, settings.address)
    environment, flags = _planned(server.commands[engine], engine)
    model = resolve(settings.model)
    python = config.servers.vllm_python if engine == "vllm" else config.servers.sglang_python
    words = _program(engine, python) + ([model] if engine == "vllm" else ["--model-path", model])
    added = config.servers.policy_flags if server.role == "policy" else config.servers.reward_flags
    host = urlsplit(address).hostname or LOOPBACK[0]
    words += [*flags, "--host", host, "--port", str(urlsplit(address).port), *shlex.split(added)]
    if os.path.isdir(model):
        environment["HF_HUB_OFFLINE"] = "1"  # Engines ask the hub about files that a folder lacks.
    return ServerCommand(
        role=server.role,
        engine=engine,
        model=model,
        address=address,
        environment=environment,
        words=tuple(words),
        device=server.device,
        planned_kv_tokens=server.kv_tokens[engine],
        needed_kv_tokens=server.needed_tokens,
        planned_bytes=_planned_bytes(plan, server),
    )


def _address(role: str, addresses: tuple[str, ...]) -> str:
    if not addresses:
        return f"http://{LOOPBACK[0]}:{PORTS[role]}"
    if len(addresses) > 1:
        raise ConfigError(f"{role}.address names {len(addresses)} servers: palmette up starts one, give one address")
    parts = urlsplit(addresses[0])
    if parts.scheme != "http" or parts.hostname not in LOOPBACK or parts.port is None:
        raise ConfigError(
            f"{role}.address is {addresses[0]}: palmette up starts servers on this machine, give an address like "
            f"http://{LOOPBACK[0]}:{PORTS[role]}"
        )
    return addresses[0]


def _planned(command: str, engine: str) -> tuple[dict[str, str], list[str]]:
    """Return the environment and the flags of a planned command, without those that say what is served where."""
    words = shlex.split(command)
    environment: dict[str, str] = {}
    while match := _ASSIGNMENT.fullmatch(words[0]):
        environment[match[1]] = match[2]
        del words[0]
    flags = words[3:]  # After `vllm serve MODEL`, and after `python -m sglang.launch_server`.
    for name in ("--model-path", "--port"):
        if name in flags:
            place = flags.index(name)
            del flags[place : place + 2]
    return environment, flags


def _program(engine: str, python: str | None) -> list[str]:
    if python is not None:
        words = [os.path.expanduser(python), "-m", _MODULES[engine]]
    else:
        words = ["vllm"] if engine == "vllm" else ["python", "-m", _MODULES[engine]]
    return [*words, "serve"] if engine == "vllm" else words


def _planned_bytes(plan: Plan, server: Server) -> int:
    """Return what a server is planned to hold of its device, or of each of its devices."""
    first = server.device.split(", ")[0]
    device = next(device for device in plan.devices if device.device.name == first)
    return sum(line.bytes for line in device.phases[0].lines if line.holder.startswith(f"{server.role} "))
