"""Keys of jobs: what makes another job of it."""

import shutil

import pytest

from clozify.runs import keys
from clozify.runs.keys import hash_model_folder, job_key


@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "merges.txt", "spm.model", "pytorch_model.bin"])
def test_a_model_that_changed_in_any_file_is_another(name, tiny_folder, tmp_path):
    """Members of a model that was trained further, or has another vocabulary, are not those of the first."""
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "model")
    hashes = [hash_model_folder(folder)]
    assert hash_model_folder(folder) == hashes[0]
    for content in ("first", "other"):  # of the same size
        (folder / name).write_text(content)
        hashes.append(hash_model_folder(folder))
    assert len(set(hashes)) == 3


def test_one_flipped_bit_of_the_weights_makes_another_model(tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "model")
    before, weights = hash_model_folder(folder), folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert hash_model_folder(folder) != before


def test_other_numerics_make_another_job(monkeypatch):
    """Members that another version trained differently must not join the ensemble of this one."""
    key = job_key("finetune", seed=1)
    assert key == job_key("finetune", seed=1) != job_key("distill", seed=1)
    monkeypatch.setattr(keys, "NUMERICS", keys.NUMERICS + 1)
    assert job_key("finetune", seed=1) != key
