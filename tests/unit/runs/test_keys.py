"""Keys of jobs: what makes another job of it."""

import shutil

from clozify.runs import keys
from clozify.runs.keys import hash_model_folder, job_key


def test_a_model_that_changed_anywhere_is_another(tiny_folder, tmp_path):
    """Members of a model that was trained further, or has another vocabulary, are not those of the first."""
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "model")
    weights = folder / "model.safetensors"
    hashes, content = [hash_model_folder(folder)], bytearray(weights.read_bytes())
    assert hash_model_folder(folder) == hashes[0]
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    hashes.append(hash_model_folder(folder))
    (folder / "vocab.txt").write_text("other words")
    hashes.append(hash_model_folder(folder))
    assert len(set(hashes)) == 3


def test_other_numerics_make_another_job(monkeypatch):
    """Members that another version trained differently must not join the ensemble of this one."""
    key = job_key("finetune", seed=1)
    assert key == job_key("finetune", seed=1) != job_key("distill", seed=1)
    monkeypatch.setattr(keys, "NUMERICS", keys.NUMERICS + 1)
    assert job_key("finetune", seed=1) != key
