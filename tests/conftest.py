"""Marks every test with the tier its folder stands for."""

from pathlib import Path

import pytest

TIERS = ("unit", "torch", "real", "server")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = Path(item.path).parent.name
        assert tier in TIERS, f"{item.path} lies in no tier"
        item.add_marker(tier)
