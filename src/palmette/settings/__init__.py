"""What a run can be told: one table of settings for each part, as pydantic models with their defaults."""

from palmette.settings.config import Config
from palmette.settings.models import (
    FORMATS,
    LIKELIHOODS,
    PARTNERS,
    READ_BY_LIKELIHOOD,
    REWARD_SERVERS,
    SERVERS,
    EmbedderSettings,
    PolicySettings,
    RewardSettings,
    reads_model,
)
from palmette.settings.options import split_options
from palmette.settings.search import Aggregate, MemorySettings, SearchSettings, TaskSettings, Vote
from palmette.settings.training import LORA_TARGETS, Board, DataSettings, PrmSettings, SftSettings, TrainSettings
from palmette.settings.values import Device, Dtype, Quantize, Settings

__all__ = [
    "FORMATS",
    "LIKELIHOODS",
    "LORA_TARGETS",
    "PARTNERS",
    "READ_BY_LIKELIHOOD",
    "REWARD_SERVERS",
    "SERVERS",
    "Aggregate",
    "Board",
    "Config",
    "DataSettings",
    "Device",
    "Dtype",
    "EmbedderSettings",
    "MemorySettings",
    "PolicySettings",
    "PrmSettings",
    "Quantize",
    "RewardSettings",
    "SearchSettings",
    "Settings",
    "SftSettings",
    "TaskSettings",
    "TrainSettings",
    "Vote",
    "reads_model",
    "split_options",
]
