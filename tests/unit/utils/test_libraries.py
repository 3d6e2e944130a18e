"""Settings of other libraries: what clozify needs holds while it works, and not a moment longer."""

import gc
import subprocess
import sys
import urllib.error

import pytest

from clozify.utils import libraries

WORK = """
import datasets, huggingface_hub, pyarrow.csv, torch, transformers
from huggingface_hub.utils import are_progress_bars_disabled

def settings():
    return {
        "threads": torch.get_num_threads(),
        "verbosity": transformers.logging.get_verbosity(),
        "bars": transformers.logging.is_progress_bar_enabled(),
        "hub bars": are_progress_bars_disabled(),
        "datasets verbosity": datasets.logging.get_verbosity(),
        "datasets bars": datasets.are_progress_bars_disabled(),
        "offline": (datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE),
        "cudnn attention": torch.backends.cuda.cudnn_sdp_enabled(),
    }

before = settings()
import clozify

rows = clozify.read_rows("builtin:test", clozify.load_task("debian")).select(range(8))
pyarrow.csv.write_csv(rows.table(), "rows.csv")
clozify.zero_shot("debian", "rows.csv", "builtin:mini")
assert settings() == before, (before, settings())
"""


@pytest.mark.slow
def test_a_program_keeps_its_settings_after_rows_were_read_and_scored(tmp_path):
    """A notebook that was offline once, or that wants warnings, must not find that clozify decided otherwise."""
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Loading" not in done.stderr


def test_datasets_reads_its_cache_alone_only_within_the_block(monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    with libraries.quiet_datasets(offline=True):
        assert datasets.config.HF_HUB_OFFLINE
    assert not datasets.config.HF_HUB_OFFLINE


@pytest.mark.parametrize(
    ("error", "reachable"),
    [(None, True), (urllib.error.HTTPError("", 403, "", None, None), True), (OSError("no network"), False)],
)
def test_the_hub_is_probed_again_after_a_minute_and_not_before(error, reachable, monkeypatch):
    """Cached for the life of a process, one failed probe would keep a notebook offline until it is restarted."""
    from huggingface_hub import constants

    now, probes = [1000.0], []

    def urlopen(request, timeout):
        probes.append(request)
        if error is not None:
            raise error

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(libraries, "_last_probe", None)
    monkeypatch.setattr(libraries.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(libraries.urllib.request, "urlopen", urlopen)
    assert [libraries.hub_reachable(), libraries.hub_reachable()] == [reachable, reachable]
    assert len(probes) == 1
    now[0] += libraries.HUB_RECHECK + 1
    assert libraries.hub_reachable() is reachable
    assert len(probes) == 2


def test_garbage_is_collected_again_after_a_pause():
    with libraries.gc_paused(), libraries.gc_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with libraries.gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_predictions_load_neither_scikit_learn_nor_scipy_s_statistics():
    """They took a sixth of the time that `clozify predict` takes on a few rows."""
    code = "import sys, clozify; clozify.predict; print([n for n in ('sklearn', 'scipy.stats') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
