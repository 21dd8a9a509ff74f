"""Everything that a run is told, in one table of tables."""

from pydantic import Field, PrivateAttr

from palmette.scale_settings import ScaleSettings
from palmette.server_settings import ServerSettings
from palmette.settings.models import PARTNERS, EmbedderSettings, PolicySettings, RewardSettings, reads_model
from palmette.settings.search import MemorySettings, SearchSettings, TaskSettings
from palmette.settings.training import PrmSettings, SftSettings, TrainSettings
from palmette.settings.values import LARGEST_SEED, Settings


class Config(Settings):
    """Everything a run is told. `out` null means a new folder below `runs`."""

    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    out: str | None = Field(None, min_length=1)
    policy: PolicySettings = PolicySettings()
    reward: RewardSettings = RewardSettings()
    task: TaskSettings = TaskSettings()
    embedder: EmbedderSettings = EmbedderSettings()
    search: SearchSettings = SearchSettings()
    memory: MemorySettings = MemorySettings()
    train: TrainSettings = TrainSettings()
    sft: SftSettings = SftSettings()
    prm: PrmSettings = PrmSettings()
    servers: ServerSettings = ServerSettings()
    scale: ScaleSettings = ScaleSettings()
    _given: tuple[object, ...] = PrivateAttr(())

    @property
    def given(self) -> tuple[object, ...]:
        """The objects that this config names, which can be found for as long as it lives."""
        return self._given

    def hold(self, *given: object) -> None:
        """Keep objects that this config names."""
        self._given = (*self._given, *given)

    def has_scores(self) -> bool:
        """Tell whether steps are scored: by a reward model, or by a scorer of the user's own."""
        return self.partner() is not None or not reads_model(self.reward.score)

    def partner(self) -> str | None:
        """Return the reward model: the one named, or for `auto` the one that was trained for the policy, if any."""
        return PARTNERS.get(self.policy.model) if self.reward.model == "auto" else self.reward.model
