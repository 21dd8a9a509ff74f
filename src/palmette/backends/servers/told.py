"""What a server or the connection to it says of an error, as one short line."""

import json
from typing import TYPE_CHECKING, Any

from palmette.units import one_line

if TYPE_CHECKING:
    import httpx2

SHOWN_CHARACTERS = 200


def message_of(data: bytes) -> str:
    """Return what a server says of an error as one short line: the message of its JSON, or the text itself."""
    text = data.decode(errors="replace")
    try:
        told: Any = json.loads(text)
        told = told.get("error", told) if isinstance(told, dict) else told
        told = told.get("message", told.get("detail", told)) if isinstance(told, dict) else told
    except (ValueError, RecursionError):
        told = text
    return one_line(" ".join(str(told).split()), SHOWN_CHARACTERS) or "no message"


def redirect_of(response: "httpx2.Response") -> str | None:
    """Return where an answer sends its reader, None for any other answer. Nobody follows: it may be anywhere."""
    if not 300 <= response.status_code < 400 or "location" not in response.headers:
        return None
    place = one_line(response.headers["location"], SHOWN_CHARACTERS)
    return f"it redirects to {place!r}, which is not followed: give the address of the server itself"


def cause_of(error: BaseException) -> str:
    """Return the message of an error of the HTTP library, or its kind where it has none."""
    return one_line(" ".join(str(error).split()), SHOWN_CHARACTERS) or type(error).__name__
