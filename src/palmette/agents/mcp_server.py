"""The MCP server: registers the tools with their schemas and hints, practices as resources, and one prompt."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

from palmette import __version__, registry
from palmette.agents.formulas.verify import verify
from palmette.agents.tools import hypotheses, knowledge, planning, running
from palmette.errors import PalmetteError
from palmette.practices.find import page, practices
from palmette.units import one_line

Result = TypeVar("Result")
Text = Annotated[str, Field(min_length=1, max_length=20_000)]
Long = Annotated[str, Field(max_length=400_000)]
Name = Annotated[str, Field(min_length=1, max_length=300)]
Width = Annotated[int, Field(ge=1, le=65_536)]
Strategy = Literal["best_of_n", "beam", "dvts", "rebase", "ets", "espalier", "fixed_tree", "shepherd"]

_READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_STARTS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
_INSTRUCTIONS = (
    "Plans, checks and explains tree search and reinforcement learning of language models, offline. Ask build_plan for "
    "a config that fits the memory, review_plan before anything is started, diagnose_failure with the log of what "
    "failed, and verify_code_math for a formula. Numbers in answers were measured by the commands beside them."
)
_SET_UP = (
    "1. Call build_plan with the goal. 2. Call review_plan with the config that it returns and mend every risk. "
    "3. Show the memory plan and the commands, and wait for a yes. 4. After the first run call explain_run, then "
    "propose_hypothesis. If anything fails, call diagnose_failure with its log."
)


class Verified(BaseModel):
    """Whether code computes what a formula means, with the first difference; null where it could not be run."""

    concept: str
    formula: str
    passes: bool | None
    first_difference: str
    theirs: str
    ours: str


def _told(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return the function with errors that a caller can mend raised as the client sees them, in one line."""

    @wraps(function)
    def call(*values: Any, **named: Any) -> Result:
        try:
            return function(*values, **named)
        except PalmetteError as error:
            raise ToolError(one_line(str(error), 1000)) from error

    return call


def make_server(root: Path, *, allow_runs: bool = False) -> MCPServer[Any]:
    """Return the server. No tool reads outside of `root`; searches are started and watched with `allow_runs` alone."""
    server: MCPServer[Any] = MCPServer("palmette", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    assert set(registry.built_ins("strategy")) == set(Strategy.__args__)  # type: ignore[attr-defined]
    _knowledge(server)
    _planning(server, root)
    _failures(server, root)
    if allow_runs:
        _runs(server, root)
    _practices(server)
    return server


def _knowledge(server: MCPServer[Any]) -> None:
    @server.tool(annotations=_READS, title="Search what is known")
    @_told
    def search_knowledge(query: Text, context: Long = "") -> knowledge.Answer:
        """Search practices, documentation, config keys and known failures; cites each with how it was measured."""
        return knowledge.search_knowledge(query, context)

    @server.tool(annotations=_READS, title="A practice as a page")
    @_told
    def get_page(page_id: Name) -> knowledge.Page:
        """Return a practice by its id (or practice://ID) as a page in Markdown."""
        return knowledge.get_page(page_id)

    @server.tool(annotations=_READS, title="List the practices")
    @_told
    def list_practices(topic: Annotated[str, Field(max_length=300)] = "") -> knowledge.Practices:
        """List the practices, or those that have all words of a topic."""
        return knowledge.list_practices(topic)

    @server.tool(annotations=_READS, title="Published defaults of hyperparameters")
    @_told
    def query_hyperparameter_priors(query: Text) -> knowledge.Priors:
        """Return published defaults of algorithms with their sources, beside what is measured or set here."""
        return knowledge.query_hyperparameter_priors(query)

    @server.tool(annotations=_READS, title="Check a formula in code")
    @_told
    def verify_code_math(
        code_snippet: Annotated[str, Field(min_length=1, max_length=20_000)], concept_name: Name
    ) -> Verified:
        """Run a function or fragment on random numbers behind walls, compare it with the formula; no network, no files.

        Concepts: advantage, dr-grpo-advantage, rloo-advantage, loss, kl-k1, kl-k2, kl-k3, log-probability, gae,
        allocation, decode.
        """
        found = verify(code_snippet, concept_name)
        return Verified(
            concept=found.concept,
            formula=found.formula,
            passes=found.agrees,
            first_difference="" if found.agrees else found.said,
            theirs=found.theirs,
            ours=found.ours,
        )


def _planning(server: MCPServer[Any], root: Path) -> None:
    @server.tool(annotations=_READS, title="Plan a run for a goal")
    @_told
    def build_plan(goal: Text, constraints: Long = "") -> planning.BuiltPlan:
        """Make a config for a goal in words, plan its memory, change it until it fits; commands and what to check."""
        return planning.build_plan(root, goal, constraints[:20_000])

    @server.tool(annotations=_READS, title="Review a plan")
    @_told
    def review_plan(proposal: Long, goal: Text) -> planning.Review:
        """Read a proposal as config, commands, requests and code; say what does not fit or breaks a practice."""
        return planning.review_plan(root, proposal[:100_000], goal)

    @server.tool(annotations=_READS, title="Estimate memory")
    @_told
    def estimate_memory(
        policy: Name,
        reward: Annotated[str | None, Field(max_length=300)] = None,
        strategy: Strategy = "best_of_n",
        width: Width = 16,
        devices: Annotated[str | None, Field(max_length=200, description="2x24GiB, 1x80GiB,cpu:256GiB")] = None,
        train: bool = False,
        settings: Annotated[dict[str, Any] | None, Field(description="other settings by dotted key")] = None,
    ) -> planning.Estimate:
        """Plan what a search, or training, holds on which device, before anything is loaded."""
        return planning.estimate_memory(root, policy, reward, strategy, width, devices, train, settings or {})


def _failures(server: MCPServer[Any], root: Path) -> None:
    @server.tool(annotations=_READS, title="Diagnose a failure")
    @_told
    def diagnose_failure(symptoms: Long, logs: Long) -> running.DiagnosisResult:
        """Match a log with known failures of palmette, torch, vLLM, SGLang, TRL and verl; plan a setting that fits."""
        return running.diagnose_failure(symptoms, logs)

    @server.tool(annotations=_READS, title="Explain a run")
    @_told
    def explain_run(run: Name) -> running.Explanation:
        """Explain a run of palmette by its folder below the root: its numbers, and what is wrong with it."""
        return running.explain_run(root, run)

    @server.tool(annotations=_READS, title="Propose what to try next")
    @_told
    def propose_hypothesis(current_status: Text, recent_experiments: Long = "") -> hypotheses.Hypotheses:
        """Rank what to try next from a run's folder or lines of results (lr=1e-6 reward=0.2), with the evidence."""
        return hypotheses.propose_hypothesis(root, current_status, recent_experiments)


def _runs(server: MCPServer[Any], root: Path) -> None:
    @server.tool(annotations=_STARTS, title="Start a search")
    @_told
    def start_search(
        out: Name,
        policy: Name = "seedling",
        strategy: Strategy = "best_of_n",
        width: Annotated[int, Field(ge=1, le=256)] = 16,
        task: Name = "ladder",
        questions: Annotated[int, Field(ge=1, le=10_000)] = 10,
    ) -> running.Started:
        """Start a search in a new folder below the root; run_status and explain_run tell how it goes."""
        return running.start_search(root, out, policy, strategy, width, task, questions)

    @server.tool(annotations=_READS, title="How far a run is")
    @_told
    def run_status(run: Name) -> running.Status:
        """Tell how far a run below the root is."""
        return running.run_status(root, run)


def _practices(server: MCPServer[Any]) -> None:
    for one in practices().values():

        def read(text: str = page(one)) -> str:
            return text

        server.resource(
            f"practice://{one.id}", name=one.id, title=one.rule, description=one.why[:300], mime_type="text/markdown"
        )(_without_arguments(read))

    @server.prompt(title="Set a run up so that it fits and learns")
    def set_up_run(goal: str) -> str:
        """Plan, review and start a run for a goal, in this order."""
        return f"Goal: {one_line(goal, 2000)}\n\n{_SET_UP}"


def _without_arguments(read: Callable[[], str]) -> Callable[[], str]:
    def resource() -> str:
        return read()

    return resource
