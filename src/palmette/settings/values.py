"""Values of settings: types with their checks, for all tables."""

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from palmette.errors import ConfigError
from palmette.units import parse_bytes

Device = str
Dtype = Literal["float32", "bfloat16", "float16"]
Quantize = Literal["none", "bfloat16", "int8"]
DEVICE = r"^(auto|cpu|cuda(:\d+)?)$"
LARGEST_SEED = 2**63 - 1
LARGEST_COUNT = 10**7


class Settings(BaseModel):
    """A table of settings: unknown keys, numbers as texts, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def off_in_yaml(value: Any) -> Any:
    """Return "off" for false, which is how YAML reads an unquoted `off`."""
    return "off" if value is False else value


def _with_line_breaks(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")  # A shell hands on the two characters.


def _amount_of_memory(text: Any) -> str | int:
    if not isinstance(text, str | int) or isinstance(text, bool):
        raise ValueError("write an amount of memory like '2GiB', or a whole number of bytes")
    try:
        if parse_bytes(text) > 0:
            return text
    except ConfigError as error:
        raise ValueError(str(error)) from None
    raise ValueError("a budget of no bytes holds nothing")


def _addresses(value: Any) -> Any:
    """Return addresses without the slash or the /v1 that they may end in; several in one text have commas between."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(address, str) for address in listed):
        raise ValueError("write an address like http://127.0.0.1:8000, or several with commas between")
    return tuple(_address(address.strip()) for address in listed)


def _address(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_right = False
    if not is_right or parts.query or parts.fragment or not text.isprintable() or " " in text:
        raise ValueError("write an address like http://127.0.0.1:8000, or several with commas between")
    if "@" in parts.netloc:
        raise ValueError("an address is recorded with the run and must not hold a password: use PALMETTE_API_KEY")
    return text.rstrip("/").removesuffix("/v1")


Amount = Annotated[Any, AfterValidator(_amount_of_memory)]
"""An amount of memory."""

Budget = Annotated[Any, AfterValidator(lambda text: None if text is None else _amount_of_memory(text))]
"""An amount of memory, or null."""

Addresses = Annotated[tuple[str, ...], BeforeValidator(_addresses)]
"""Addresses of servers."""

Characters = Annotated[str, AfterValidator(_with_line_breaks)]
"""A text in which a backslash with n or t is a line break or a tab."""
