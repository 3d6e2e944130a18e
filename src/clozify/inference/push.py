"""Implements `clozify push`: uploads a classifier and its model card to the Hugging Face hub, with the hub's login."""

from __future__ import annotations

from pathlib import Path

from clozify.errors import RunError
from clozify.inference.finished_run import FinishedRun
from clozify.report.card import CARD
from clozify.utils import libraries

NAME_PLACEHOLDER = "PATH_OR_NAME"  # in the card


def push(run: str | Path, name: str, private: bool = False, method: str | None = None) -> str:
    """Upload the classifier of a run's or a classifier's folder; returns its full name on the hub, OWNER/NAME."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    classifier = FinishedRun(run, method).classifier
    if classifier is None:
        raise RunError(
            f"The run '{run}' is an ensemble without a classifier, and only a classifier can be pushed; train with "
            "unlabelled rows (--unlabeled)."
        )
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise RunError(f"'{name}' cannot be a model's name on the hub: {error}") from None
    if not libraries.hub_reachable():
        raise RunError(f"The hub cannot be reached, so '{name}' was not pushed; the classifier is in '{classifier}'.")
    api = HfApi()
    try:
        full_name = str(api.create_repo(name, private=private, exist_ok=True).repo_id)
        api.upload_folder(repo_id=full_name, folder_path=classifier, ignore_patterns=[CARD, ".*"])
        if (classifier / CARD).is_file():
            card = (classifier / CARD).read_text(encoding="utf-8").replace(NAME_PLACEHOLDER, full_name)
            api.upload_file(path_or_fileobj=card.encode(), path_in_repo=CARD, repo_id=full_name)
    except (HfHubHTTPError, LocalTokenNotFoundError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"The hub refused '{name}': {reason} If you are not logged in, run 'hf auth login'.") from None
    return full_name
