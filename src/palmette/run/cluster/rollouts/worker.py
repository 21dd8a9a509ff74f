"""One rollout worker: holds the policy, takes its new weights, searches questions with them. Tested without Ray."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from palmette.errors import BackendError, RunError
from palmette.event_log import encode_event
from palmette.events import Event, OomRetry, Reclaimed
from palmette.memory.device import held_bytes
from palmette.memory.meter import Meter
from palmette.planner.run_plan import refuse_what_cannot_fit
from palmette.run.cluster.rollouts.wire import Phase, phase_of, result_values
from palmette.run.cluster.wire import config_of, questions_of, task_of
from palmette.run.cluster.worker import Arriving, Worker, prepare_process, telling
from palmette.run.parts import Parts, load_embedder, load_scorer
from palmette.run.rollout import Rollouts, evaluation_config
from palmette.run.search import make_meter
from palmette.search.result import SearchResult
from palmette.settings import Config
from palmette.units import parse_bytes

ANSWER_SECONDS = 1.0
"""How long `exchange` waits for a question to finish: its answer is also the sign that the worker lives."""


class RolloutWorker(Worker):
    """Searches in a thread of its own, while its methods are called by the driver, one at a time.

    Order of calls: `hello`, `load`, `take_weights`, then `exchange` over and over; `take_weights` again when there are
    new ones and nothing is in flight.
    """

    def __init__(self, config: str, folder: str, threads: str) -> None:
        super().__init__(config, folder, threads)
        self._version: int | None = None
        """Of the weights that it has; None before any came, and while they are written."""
        self._phase: Phase | None = None
        self._questions = Arriving()
        self._results: list[dict[str, Any]] = []
        self._lines: list[str] = []
        self._tokens = 0
        self._failed: Exception | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._searches: dict[str, Rollouts] = {}
        self._life = ExitStack()
        self._config: Config
        self._parts: Parts
        self._meter: Meter

    @telling
    def load(self) -> dict[str, Any]:
        """Load the models, unless they do not fit this machine. The policy is made trainable as the driver's is."""
        prepare_process(self._folder, self._threads)
        self._config = config = config_of(self._config_text)
        refuse_what_cannot_fit(config)
        from palmette.backends.local import make_backend
        from palmette.run.trained_model import TrainedModel

        self._meter = self._life.enter_context(make_meter(config))
        self._life.enter_context(self._meter.recording(self._note))
        with self._meter.phase("load"):
            model = TrainedModel(config, None)
            kv_budget = config.search.kv_budget
            kv_bytes = None if kv_budget is None else parse_bytes(kv_budget)
            backend = make_backend(model.model, model.tokenizer, config.policy, kv_bytes)
            clusters = any(
                "clusters" in each.search.build_strategy().uses for each in (config, evaluation_config(config))
            )
            embedder = load_embedder(config.embedder, config.reward.device) if clusters else None
            self._parts = Parts(backend, load_scorer(config.reward), embedder)
        backend.on_tokens = self._count
        self._backend, self._weights = backend, model.trained_weights()
        self._meter.reclaim("load", parse_bytes(config.memory.reclaim_least))
        return {"held_bytes": held_bytes("cpu")}

    @telling
    def take_weights(self, label: str, ticket: Any) -> dict[str, Any]:
        """Have the weights of this label; return their version, or what is `missing` if they did not come whole."""
        from palmette.scale.learning.weight_parcel import unpack
        from palmette.scale.transport.broadcast import receive
        from palmette.scale.transport.sender import labeled, size_of

        self._end_search()
        self._version = None
        try:
            content = receive(ticket, size_of(label), self._backend.device) if isinstance(ticket, str) else ticket
            parcel = labeled(label, content)
            unpack(parcel, self._weights, parcel.version)
        except (BackendError, RunError) as error:
            return {"missing": str(error)}
        self._version = parcel.version
        return {"version": parcel.version, "checksum": parcel.checksum, "held_bytes": held_bytes("cpu")}

    @telling
    def exchange(self, phase: str, questions: str) -> dict[str, Any]:
        """Take questions of a phase; return what is finished since the last call, at once where something is.

        A worker that does not have the weights of the phase takes nothing, and says which it has: `refused`.
        """
        asked = phase_of(phase)
        if asked.version != self._version:
            return {"refused": True, "version": self._version}
        if self._phase is None or asked.number != self._phase.number:
            self._end_search()
            self._begin(asked)
        self._questions.add(questions_of(questions))
        with self._changed:
            self._changed.wait_for(lambda: bool(self._results) or self._failed is not None, ANSWER_SECONDS)
            if self._failed is not None:
                raise self._failed
            results, self._results = self._results, []
            events, self._lines = self._lines, []
        told = {"version": self._version, "phase": asked.number, "tokens": self._tokens}
        return {**told, "held_bytes": held_bytes("cpu"), "results": results, "events": events}

    def _begin(self, phase: Phase) -> None:
        search = self._searches.get(phase.kind)
        if search is None:
            config = self._config if phase.kind == "rollout" else evaluation_config(self._config)
            search = Rollouts(config, self._parts, task_of(phase.task), self._meter, phase.room)
            self._searches[phase.kind] = search
        self._phase = phase
        self._questions = Arriving()
        found = search.found(self._questions, phase.seed)
        self._thread = threading.Thread(target=self._search, args=(found,), name="palmette-rollout", daemon=True)
        self._thread.start()

    def _end_search(self) -> None:
        """Wait for what is in flight, drop what nobody asked for, and free the KV cache."""
        if self._thread is None:
            return
        self._questions.close()
        self._thread.join()
        self._thread = self._phase = None
        self._results = []
        self._backend.free_cache()

    def _search(self, found: Iterator[SearchResult]) -> None:
        questions = self._questions
        try:
            with self._meter.phase("search"):
                for result in found:
                    values = result_values(result)
                    with self._changed:
                        self._results.append(values)
                        self._changed.notify_all()
                    questions.finished()
        except Exception as error:  # noqa: BLE001  # Told by the next answer.
            with self._changed:
                self._failed = error
                self._changed.notify_all()

    def _note(self, event: Event) -> None:
        if isinstance(event, OomRetry | Reclaimed):
            with self._changed:
                self._lines.append(encode_event(event))

    def _count(self, tokens: int) -> None:
        self._tokens += tokens
