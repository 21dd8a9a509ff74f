"""Workers that differ from the driver: an older palmette, a clock that is wrong."""

import json

from palmette.run.cluster.worker import SearchWorker

HOURS = 3.0


class OlderWorker(SearchWorker):
    """Has another version of palmette."""

    def hello(self) -> str:
        return json.dumps({**json.loads(super().hello()), "version": "0.0.1"})


class EarlyWorker(SearchWorker):
    """Has a clock that is hours ahead."""

    def hello(self) -> str:
        values = json.loads(super().hello())
        return json.dumps({**values, "clock": values["clock"] + 3600 * HOURS})
