"""Adapter folders from strangers, or damaged ones."""

import json
import sys

import pytest

from clozify.config.sections import Adapter
from clozify.errors import ModelError, RunError
from clozify.models.cloze import load_model
from clozify.models.lora import Base, base_of, save_adapter

pytest.importorskip("peft")


@pytest.fixture
def adapter(tiny_folder, tmp_path):
    model = load_model(tiny_folder("bert"), "cpu", adapter=Adapter(method="lora", r=2))
    (tmp_path / "adapter").mkdir()
    save_adapter(model.model, tmp_path / "adapter", Base("builtin", "key"))
    return tmp_path / "adapter"


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:20])])
def test_a_damaged_adapter_is_one_sentence_that_names_the_file(name, damage, adapter, tiny_folder):
    damage(adapter / name)
    with pytest.raises(ModelError, match=f"cannot be loaded.*{name}|{name}.*cannot be loaded"):
        load_model(tiny_folder("bert"), "cpu").use_adapter(adapter, "one")


@pytest.mark.parametrize("content", ["{", "[]", '{"model": "builtin"}'])
def test_a_damaged_reference_to_the_base_model_is_one_sentence(content, adapter):
    assert base_of(adapter) == Base("builtin", "key")
    (adapter / "base.json").write_text(content)
    with pytest.raises(RunError, match=r"base\.json' is damaged"):
        base_of(adapter)


def test_no_module_that_an_adapter_names_is_imported(adapter, tiny_folder, tmp_path, monkeypatch):
    """peft imports the module that `megatron_core` names."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hostile_module.py").write_text("")
    settings = json.loads((adapter / "adapter_config.json").read_text())
    settings |= {"megatron_config": {"a": 1}, "megatron_core": "hostile_module"}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    load_model(tiny_folder("bert"), "cpu").use_adapter(adapter, "one")
    assert "hostile_module" not in sys.modules
