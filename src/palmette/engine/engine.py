"""Continuous decoding of many steps at once: one tick forwards, samples and appends for every row in its place.

Shapes: R rows, P pieces, V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from palmette.engine.sampler import Sampling, draw, noise
from palmette.engine.tree_cache import CacheNode
from palmette.engine.tree_model import TreeModel
from palmette.errors import BackendError

_DRAWN_TOGETHER = 2**22
"""Logits in one draw: what drawing needs beside them stays under 100 MiB whatever the vocabulary."""

Ending = TypeVar("Ending")


@dataclass
class Row(Generic[Ending]):
    """One step while it is written into `node`, a child of what it continues. `ending` is set when it is done."""

    node: CacheNode
    seed: int
    logprobs: list[float] = field(default_factory=list)
    ending: Ending | None = None

    def tip(self) -> CacheNode:
        """Return the node whose last token the next one follows."""
        if self.node.tokens:
            return self.node
        assert self.node.parent is not None
        return self.node.parent


class Engine:
    """Writes rows in `places` places; a row that ends leaves its place to the next one in the same tick.

    The same row gets the same tokens whatever runs beside it (CPU, float32), evicted or not.
    """

    def __init__(self, model: TreeModel, sampling: Sampling, *, places: int) -> None:
        self._model = model
        self._sampling = sampling
        self._places = places

    @torch.inference_mode()
    def write(self, rows: Sequence[Row[Ending]], ended: Callable[[Row[Ending]], Ending | None]) -> None:
        """Write every row until `ended` names its ending; it is asked after each token."""
        waiting = deque(rows)
        running: list[Row[Ending]] = []
        crowded = False  # There is no room for one more row before another has ended.
        while waiting or running:
            while waiting and len(running) < self._places and not crowded:
                running.append(waiting.popleft())
            pieces, count = self._model.fit([row.tip() for row in running], [row.node for row in running])
            crowded = crowded or count < len(running)
            waiting.extendleft(reversed(running[count:]))
            running = running[:count]
            logits_PV = self._model.run(list(pieces.values()))
            if not bool(torch.isfinite(logits_PV).all()):
                raise BackendError(
                    "the policy's logits are not finite: its weights are damaged or its dtype is too small"
                )
            place = {node: index for index, node in enumerate(pieces) if pieces[node].last == len(node.tokens)}
            ready = [row for row in running if row.tip() in place]
            index_R = torch.tensor([place[row.tip()] for row in ready], device=logits_PV.device)
            share = max(1, _DRAWN_TOGETHER // logits_PV.shape[1])
            for start in range(0, len(ready), share):
                self._append(ready[start : start + share], logits_PV[index_R[start : start + share]])
            for row in ready:
                row.ending = ended(row)
            left = [row for row in running if row.ending is None]
            crowded = crowded and len(left) == len(running)
            running = left

    def _append(self, rows: Sequence[Row[Ending]], logits_RV: torch.Tensor) -> None:
        """Draw the next token of every row and record its log-probability."""
        noise_RV = self._noise(rows, logits_RV.shape[1])
        drawn = draw(logits_RV, noise_RV, self._sampling)
        for index in torch.nonzero(drawn.narrow_R)[:, 0].tolist():
            # Too close to call: rounding differs with the batch, so ask again in a batch that is always the same.
            row = rows[index]
            logits_RV[index] = self._model.run_alone(row.node.path_tokens())
            own = draw(logits_RV[index : index + 1], self._noise([row], logits_RV.shape[1]), self._sampling)
            drawn.tokens_R[index] = own.tokens_R[0]
        logprobs_R = logits_RV.gather(1, drawn.tokens_R[:, None])[:, 0] - logits_RV.logsumexp(-1)
        for row, token, logprob in zip(rows, drawn.tokens_R.tolist(), logprobs_R.tolist(), strict=True):
            row.node.tokens.append(token)
            row.logprobs.append(logprob)

    def _noise(self, rows: Sequence[Row[Ending]], vocabulary: int) -> torch.Tensor | None:
        if self._sampling.temperature == 0:
            return None
        return noise([row.seed for row in rows], [len(row.node.tokens) for row in rows], vocabulary)
