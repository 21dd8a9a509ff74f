"""Errors as clients of an OpenAI-compatible server expect them: one shape, a status, never a traceback."""

from dataclasses import dataclass
from typing import Any

from palmette.errors import BackendError, BudgetError, ConfigError, PalmetteError
from palmette.units import one_line

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass
class ApiError(Exception):
    """A request that is refused. `param` is the field at fault; `retry_after` says when to try again, in seconds."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None

    def body(self) -> dict[str, Any]:
        """Return the error as JSON values."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        message = one_line(self.message, 1000)
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Return the headers that belong to the error."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def wrong(message: str, param: str | None, code: str | None = None) -> ApiError:
    """Return the refusal of a wrong value."""
    return ApiError(400, message, param, code)


def unsupported(param: str, message: str) -> ApiError:
    """Return the refusal of something that the gateway does not do: it is named, not left out."""
    return ApiError(400, message, param, "unsupported_parameter")


def refusal_of(error: BaseException) -> ApiError:
    """Return what a client is told of an error. What is not the client's fault is told without its details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ConfigError | BudgetError):
        return ApiError(400, str(error), None, "invalid_value")
    if isinstance(error, BackendError):
        return ApiError(503, "the model cannot be asked at the moment; the gateway's log says why", None, "unavailable")
    if isinstance(error, PalmetteError):
        return ApiError(503, str(error), None, "unavailable")
    return ApiError(500, "the gateway has failed; its log says where", None, "internal_error")
