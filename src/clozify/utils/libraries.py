"""How the libraries below behave: whether the hub can be reached, how much they say, which kernels they take.

The hub is asked once and briefly: its client tries again and again for most of a minute before it says that there is no
network.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from functools import cache

PATIENCE = 5.0  # seconds


def quiet_transformers() -> None:
    """No chatter and no bars while a model is loaded: what goes wrong is told in our own words."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@cache
def reachable() -> bool:
    """Whether the hub answers at all; False where HF_HUB_OFFLINE says not to ask."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=PATIENCE)
    except urllib.error.HTTPError:
        return True  # it answered, if with a complaint
    except OSError:
        return False
    return True


def choose_kernels() -> None:
    """Kernels that suit clozify, on a GPU and on a CPU.

    cuDNN's attention plans anew for every width of a batch, and ours are all widths. On a CPU, naming the number of
    threads keeps MKL from choosing another by itself, which would change the last bits of a result. So would two
    threads that are the first to call one of its vector functions, now and then: MKL then chooses the code for this
    processor, and one of them may run other code meanwhile. A call with a single number is one thread's.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.set_num_threads(torch.get_num_threads())
    for function in (torch.sqrt, torch.exp, torch.log, torch.tanh, torch.erf):
        function(torch.ones(1))
