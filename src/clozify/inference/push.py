"""Sharing a classifier: its folder, with the model card, goes to the Hugging Face hub.

In: a run's folder, or a classifier's, and a name. Out: the model's name on the hub. Who you are, the hub's own login
knows.
"""

from __future__ import annotations

from pathlib import Path

from clozify.errors import RunError
from clozify.inference.finished_run import FinishedRun
from clozify.report.card import CARD
from clozify.utils import libraries

NAME_TO_COME = "PATH_OR_NAME"  # in the card


def push(folder: str | Path, name: str, private: bool = False) -> str:
    """Upload the classifier of a finished run; returns its full name."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    classifier = FinishedRun(folder).classifier
    if classifier is None:
        raise RunError(
            f"The result of the run '{folder}' is an ensemble, not one classifier, which alone can be pushed."
        )
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise RunError(f"'{name}' cannot be a model's name on the hub: {error}") from None
    if not libraries.hub_reachable():
        raise RunError(f"The hub cannot be reached, so '{name}' was not pushed; the classifier is in '{classifier}'.")
    api = HfApi()
    try:
        full = str(api.create_repo(name, private=private, exist_ok=True).repo_id)
        api.upload_folder(repo_id=full, folder_path=classifier, ignore_patterns=[CARD, ".*"])
        if (classifier / CARD).is_file():
            card = (classifier / CARD).read_text(encoding="utf-8").replace(NAME_TO_COME, full)
            api.upload_file(path_or_fileobj=card.encode(), path_in_repo=CARD, repo_id=full)
    except (HfHubHTTPError, LocalTokenNotFoundError) as error:
        said = " ".join(str(error).split())
        raise RunError(f"The hub refused '{name}': {said} If you are not logged in, run 'hf auth login'.") from None
    return full
