"""Numbers of events, with the limits beyond which a file is damaged."""

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=0, lt=2**63)]
Signed = Annotated[int, Field(gt=-(2**63), lt=2**63)]
Amount = Annotated[float, Field(ge=0, le=1e18)]
"""Seconds and means. Larger ones, like larger counts, are damage: sums of them overflow."""
