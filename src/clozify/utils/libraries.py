"""Settings of PyTorch, Transformers and Datasets that clozify needs, and whether the Hugging Face Hub answers.

Nothing here outlives its block: a notebook that imports clozify keeps its verbosity, progress bars and offline flags.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

HUB_TIMEOUT = 5.0  # seconds; the hub's own client retries for most of a minute
HUB_RECHECK = 60.0  # seconds for which the last answer holds
_last_probe: tuple[float, bool] | None = None  # when the hub was last probed, and whether it answered


def hub_reachable() -> bool:
    """Whether the Hugging Face Hub answers, probed at most once a minute; False where HF_HUB_OFFLINE is set."""
    global _last_probe
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if _last_probe is None or time.monotonic() - _last_probe[0] > HUB_RECHECK:
        answers = _answers(constants.ENDPOINT)
        _last_probe = time.monotonic(), answers
    return _last_probe[1]


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=HUB_TIMEOUT)
    except urllib.error.HTTPError:
        return True  # an error status is an answer
    except OSError:
        return False
    return True


def hub_refusal(error: BaseException) -> Literal["no access", "not found"] | None:
    """Why the hub refused a repository, by the errors that led to `error`; None where something else is wrong."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, GatedRepoError):  # a kind of RepositoryNotFoundError
            return "no access"
        if isinstance(cause, RepositoryNotFoundError):
            return "not found"
        cause = cause.__cause__ or cause.__context__
    return None


@contextmanager
def gc_paused() -> Iterator[None]:
    """No garbage is collected within the block, for imports: it takes a fifth of their time and finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Transformers logs errors only and shows no progress bars within the block; clozify words the messages itself."""
    with gc_paused():
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
        from transformers.utils import logging

    verbosity, bars, hub_bars = logging.get_verbosity(), logging.is_progress_bar_enabled(), are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()  # the hub client's too
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
        if hub_bars:
            disable_progress_bars()


@contextmanager
def quiet_datasets(offline: bool = False) -> Iterator[None]:
    """Datasets logs nothing and shows progress bars on terminals only; `offline`, it reads its cache alone."""
    with gc_paused():
        import datasets

    verbosity, bars_disabled = datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled()
    was_offline = datasets.config.HF_HUB_OFFLINE
    datasets.logging.set_verbosity(logging.CRITICAL)  # readers log an error that they raise, too
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    datasets.config.HF_HUB_OFFLINE = was_offline or offline
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if not bars_disabled:
            datasets.enable_progress_bars()
        datasets.config.HF_HUB_OFFLINE = was_offline


def stable_kernels() -> None:
    """Fix what would change the last bits of a result on a CPU from one run to the next; the thread count stays.

    - Setting the number of threads, even to its present value, stops MKL from choosing another for small inputs.
    - MKL detects the processor when one of its vector functions is first called. If two threads make that first call
      together, one of them may run another code path; so each function is called once here, by one thread.

    PyTorch keeps the setting per thread: call this in every thread that computes.
    """
    import torch

    torch.set_num_threads(torch.get_num_threads())
    for function in (torch.sqrt, torch.exp, torch.log, torch.tanh, torch.erf):
        function(torch.ones(1))


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """PyTorch's attention does not use cuDNN within the block: cuDNN plans anew for every shape, and shapes vary."""
    import torch

    enabled = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)
