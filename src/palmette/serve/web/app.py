"""The addresses of the gateway: OpenAI's interface, health and metrics, the page and the trees."""

import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from palmette.serve.asking.ask import ask_of
from palmette.serve.asking.fields import ChatFields, TextFields, read_fields
from palmette.serve.gateway import Gateway
from palmette.serve.refusals import ApiError
from palmette.serve.web.answers import StreamedAnswer, send_whole, unless_gone
from palmette.serve.web.pages import asset, page
from palmette.serve.web.requests import HEADERS, Handler, Key, json_response, no_such_page, read_json, told


def make_app(gateway: Gateway, key: str | None, hosts: Collection[str]) -> Starlette:
    """Return the application. `hosts` are the names it may be called by, none for any.

    A page elsewhere whose own name was made to point here is refused so.
    """
    checked = Key(key)
    count = gateway.metrics.requests

    def complete(shape: type[ChatFields] | type[TextFields]) -> Handler:
        async def answer(request: Request) -> Response:
            checked.check(request)
            fields = read_fields(shape, await read_json(request, gateway.bounds.body_bytes))
            strategy = gateway.names.strategy_of(fields.model)
            own = gateway.config.search.strategy
            ask = ask_of(fields, strategy, gateway.form, gateway.bounds, own_strategy=own)
            running = await unless_gone(request, gateway.begin(ask))
            return StreamedAnswer(gateway, running) if ask.stream else await send_whole(gateway, running, request)

        return answer

    async def models(request: Request) -> Response:
        checked.check(request)
        return json_response({"object": "list", "data": [_card(name) for name in gateway.names.all()]})

    async def model(request: Request) -> Response:
        checked.check(request)
        gateway.names.strategy_of(request.path_params["name"])
        return json_response(_card(request.path_params["name"]))

    async def health(request: Request) -> Response:
        return json_response({"status": "ok", "searches": gateway.admission.searches})

    async def metrics(request: Request) -> Response:
        checked.check(request)
        return Response(gateway.metrics.page(), headers=HEADERS, media_type="text/plain; version=0.0.4")

    async def home(request: Request) -> Response:
        return page()

    async def tree_data(request: Request) -> Response:
        tree = gateway.trees.find(request.path_params["tree"])
        if tree is None:
            raise ApiError(404, "this tree is not kept any more", None, "not_found")
        return json_response(tree.data())

    routes = {
        "/": (home, "GET"),
        "/assets/{name}": (asset, "GET"),
        "/trees/{tree}": (home, "GET"),
        "/trees/{tree}/data": (tree_data, "GET"),
        "/health": (health, "GET"),
        "/metrics": (metrics, "GET"),
        "/v1/models": (models, "GET"),
        "/v1/models/{name:path}": (model, "GET"),
        "/v1/chat/completions": (complete(ChatFields), "POST"),
        "/v1/completions": (complete(TextFields), "POST"),
    }

    def counted(path: str, status: int) -> None:
        count.labels(path, str(status)).inc()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await gateway.drain()

    return Starlette(
        routes=[
            Route(path, told(path, handler, counted, hosts), methods=[method])
            for path, (handler, method) in routes.items()
        ],
        exception_handlers={HTTPException: no_such_page},
        lifespan=lifespan,
    )


def _card(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": "palmette"}


_STARTED = int(time.time())
