"""A model fetched from a hub into the hub's own cache, without pickles or code."""

from palmette.errors import BackendError
from palmette.zoo.foreign import one_line

# What a transformers folder needs. Weights saved as pickles and modeling code are not even downloaded.
_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def fetch(hub_id: str) -> str:
    """Return a local folder holding the model; raise BackendError when the hub has it not or cannot be reached."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return str(snapshot_download(hub_id, allow_patterns=_WANTED))
    except GatedRepoError as error:
        raise BackendError(f"the hub wants you to accept a form for {hub_id}; do, or give a local folder") from error
    except RepositoryNotFoundError as error:
        raise BackendError(f"the hub has no model {hub_id}: check the name, or give a local folder") from error
    except LocalEntryNotFoundError as error:
        raise BackendError(f"cannot reach hub for {hub_id}; give a local folder") from error
    except Exception as error:
        raise BackendError(f"cannot fetch {hub_id} from the hub: {one_line(error)}") from error
