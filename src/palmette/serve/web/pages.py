"""The pages of the gateway: one to ask and watch, the same for a single tree, from the report's own scripts."""

from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from palmette.report.page import EXPLORER, read_sources, with_explorer
from palmette.serve.refusals import ApiError
from palmette.serve.web.requests import HEADERS

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""Nothing but the gateway's own files is loaded or asked, and no text in the page can run."""


def page() -> Response:
    """Return the page, which shows the tree that its address names or the form to ask."""
    return Response(_page(), headers={**HEADERS, "Content-Security-Policy": _POLICY}, media_type="text/html")


async def asset(request: Request) -> Response:
    """Return a script or style of the page."""
    found = _assets().get(request.path_params["name"])
    if found is None:
        raise ApiError(404, "no such file", None, "not_found")
    text, media_type = found
    return Response(text, headers=HEADERS, media_type=media_type)


@cache
def _page() -> str:
    return with_explorer(_own("page.html"))


@cache
def _assets() -> dict[str, tuple[str, str]]:
    script = "\n".join((read_sources(EXPLORER), _own("page.js")))
    style = "\n".join((read_sources(("page.css",)), _own("page.css")))
    return {"page.js": (script, "text/javascript"), "page.css": (style, "text/css")}


def _own(name: str) -> str:
    return files("palmette.serve.web").joinpath("page").joinpath(name).read_text(encoding="utf-8")
