"""What all requests go through: the key, the host, the size and the form of a body, errors in one shape."""

import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from palmette.serve.refusals import ApiError, refusal_of, wrong
from palmette.serve.wire import json_bytes

log = logging.getLogger("palmette.serve")
Handler = Callable[[Request], Awaitable[Response]]

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class Key:
    """The key that requests have to bring, None where the gateway asks for none."""

    def __init__(self, key: str | None) -> None:
        self._digest = None if key is None else _digest(key)

    def check(self, request: Request) -> None:
        """Raise ApiError 401 unless the request has the key. Takes the same time whatever it brings."""
        if self._digest is None:
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if not hmac.compare_digest(_digest(given.strip()), self._digest) or kind.lower() != "bearer":
            told = "the key is wrong" if given else "this gateway needs a key: Authorization: Bearer KEY"
            raise ApiError(401, told, None, "invalid_api_key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


async def read_json(request: Request, most_bytes: int) -> Any:
    """Return the JSON of a body. Raises ApiError for one that is too large, is none, or is sent as something else.

    The content type matters: a page elsewhere can have a browser send text here without asking, but not JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "the body has to be sent with Content-Type: application/json", None, "invalid_content_type")
    too_large = ApiError(413, f"the body is over the limit of this gateway, {most_bytes} bytes", None, "body_too_large")
    length = request.headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or int(length[:20]) > most_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most_bytes:
            raise too_large
    try:
        return json.loads(bytes(body), parse_constant=_no_constant)
    except RecursionError:
        raise wrong("the JSON is nested too deeply", None, "invalid_json") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise wrong(f"the body is no JSON: {error}", None, "invalid_json") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def json_response(values: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return values as a response."""
    return Response(json_bytes(values), status, {**HEADERS, **(headers or {})}, "application/json")


def error_response(error: BaseException) -> Response:
    """Return an error as clients expect it."""
    refusal = refusal_of(error)
    if refusal.status >= 500:
        log.error("%s", error, exc_info=error)
    return json_response(refusal.body(), refusal.status, refusal.headers())


def told(path: str, handler: Handler, count: Callable[[str, int], None], hosts: Collection[str]) -> Handler:
    """Return a handler whose errors are responses, and whose responses are counted by status."""

    async def handle(request: Request) -> Response:
        try:
            check_host(request, hosts)
            response = await handler(request)
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception as error:  # noqa: BLE001  # Whatever it is, a client gets an error in OpenAI's shape.
            response = error_response(error)
        count(path, response.status_code)
        return response

    return handle


def check_host(request: Request, hosts: Collection[str]) -> None:
    """Raise ApiError for a request that calls the gateway by a name it does not have, or that a page elsewhere sends.

    A browser tells in `Origin` which page a request comes from. Other clients send none.
    """
    if hosts and _name_of(request.headers.get("host", "")) not in hosts:
        raise ApiError(421, "the gateway is not called by this name", None, "wrong_host")
    origin = request.headers.get("origin")
    if hosts and origin is not None and _name_of(origin.partition("://")[2]) not in hosts:
        raise ApiError(403, "pages of other sites may not use this gateway", None, "wrong_origin")


def _name_of(host: str) -> str:
    """Return a host without its port."""
    return (host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]).lower()


async def no_such_page(request: Request, error: Exception) -> Response:
    """Answer what no route fits, by path or by method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = "no such method here" if status == 405 else "no such address"
    return error_response(ApiError(status, what, None, "not_found" if status == 404 else "method_not_allowed"))
