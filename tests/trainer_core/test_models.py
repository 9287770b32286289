"""Models that cannot be used: an error that names them and the way out, exit code 64."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, World, Zygote
from trainer_core.errors import InvalidSpec, ModelUnavailable
from trainer_core.loading import LoadingWish, skeleton
from trainer_core.model_source import ModelSource, adapter_base, local_parameters, locate
from trainer_core.spec import Launch, ModelRef, Paths
from trainer_core.task_facts import ModelKind

pytestmark = pytest.mark.train


def _refused(world: World, zygote: Zygote, name: str, **model: Any) -> Outcome:
    launch = world.launch(name, model=model)
    launch["paths"]["model_folders"] = [str(world.folder)]
    run = zygote.run(launch)
    assert run.code == 64, run.log
    assert run.exit["message"] == run.result["message"]
    assert "Traceback" not in run.log
    return run


def _folder(world: World, name: str) -> Path:
    folder = world.folder / name
    shutil.copytree(world.model, folder)
    return folder


def test_a_folder_that_is_not_there(world: World, zygote: Zygote) -> None:
    path = world.folder / "nowhere"
    run = _refused(world, zygote, "no-folder", source="folder", name_or_path=str(path))
    assert run.exit["reason"] == "model_unavailable"
    assert f"there is no folder {path}" in run.exit["message"]


def test_a_path_that_climbs_out(world: World, zygote: Zygote) -> None:
    path = f"{world.folder}/../elsewhere"
    run = _refused(world, zygote, "climbs", source="folder", name_or_path=path)
    assert run.exit["reason"] == "invalid_spec"
    assert "not below an allowed model folder" in run.exit["message"]


def test_a_folder_that_was_moved_is_found_where_it_lies_now(tmp_path: Path) -> None:
    """As after a restore into another data folder; the model keeps the name that the spec has."""
    now = tmp_path / "restored" / "models"
    (now / "tiny").mkdir(parents=True)
    moved = {"/before/models": str(now), "/long/ago": str(now)}
    paths = Paths(work="w", model_folders=[str(now)], moved=moved)
    for name in ("/before/models/tiny", "/long/ago/tiny", str(now / "tiny")):
        ref = ModelRef(source="folder", name_or_path=name)
        found = locate(ref, paths, {})
        assert (found.path, found.reference) == (str(now / "tiny"), name)
    for name in ("/before/models/../tiny", "/before/modelsx/tiny"):
        with pytest.raises(InvalidSpec, match="not below an allowed model folder"):
            locate(ModelRef(source="folder", name_or_path=name), paths, {})


def test_a_link_that_leads_out(world: World, zygote: Zygote, tmp_path: Path) -> None:
    shutil.copytree(world.model, tmp_path / "secret")
    (world.folder / "link").symlink_to(tmp_path / "secret")
    path = str(world.folder / "link")
    run = _refused(world, zygote, "leads-out", source="folder", name_or_path=path)
    assert "not below an allowed model folder" in run.exit["message"]


def test_a_hub_that_cannot_be_reached(world: World, zygote: Zygote) -> None:
    """The tests' processes are offline: HF_HUB_OFFLINE=1."""
    run = _refused(world, zygote, "offline", source="hub", name_or_path="org/none")
    assert run.exit["reason"] == "model_unavailable"
    assert "'org/none'" in run.exit["message"]
    assert "HF_HOME" in run.exit["message"]


def test_pickled_weights_are_not_read(world: World, zygote: Zygote) -> None:
    import torch
    from safetensors.torch import load_file

    folder = _folder(world, "pickled")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    run = _refused(world, zygote, "pickle", source="folder", name_or_path=str(folder))
    assert run.exit["reason"] == "model_unavailable"
    assert "safetensors" in run.exit["message"]


def test_code_of_a_model_is_not_run(world: World, zygote: Zygote) -> None:
    folder = _folder(world, "coded")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "homemade",
        "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    proof = world.folder / "code-was-run"
    (folder / "code.py").write_text(f"open({str(proof)!r}, 'w')")
    _refused(world, zygote, "code", source="folder", name_or_path=str(folder))
    assert not proof.exists()


def test_damaged_weights(world: World, zygote: Zygote) -> None:
    folder = _folder(world, "torn")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    run = _refused(world, zygote, "torn-run", source="folder", name_or_path=str(folder))
    assert run.exit["reason"] == "model_unavailable"
    assert str(folder) in run.exit["message"] or "damaged" in run.exit["message"]


def test_weights_that_lack_layers(world: World, zygote: Zygote) -> None:
    from safetensors.torch import load_file, save_file

    folder = _folder(world, "lacking")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    run = _refused(world, zygote, "lack-run", source="folder", name_or_path=str(folder))
    assert "lack model.layers.1.mlp.up_proj.weight" in run.exit["message"]


def test_a_model_of_another_kind(world: World, zygote: Zygote) -> None:
    from transformers import ViTConfig

    folder = _folder(world, "vision")
    ViTConfig(hidden_size=8, num_attention_heads=2).save_pretrained(folder)
    run = _refused(world, zygote, "vision-run", source="folder", name_or_path=str(folder))
    assert run.exit["reason"] == "invalid_spec"
    assert "not a causal language model" in run.exit["message"]


@pytest.mark.parametrize(
    ("field", "names", "hint"),
    [
        ("target_modules", ["nothing_like_this"], "it has "),
        ("target_modules", ["q_proj", "k_prj"], "did you mean 'k_proj'?"),
        ("modules_to_save", ["lm_haed"], "did you mean 'lm_head'?"),
    ],
)
def test_a34_modules_that_do_not_exist(
    world: World, zygote: Zygote, field: str, names: list[str], hint: str
) -> None:
    """PEFT would pass over all of them but the first."""
    adapter = {"type": "lora", field: names}
    run = zygote.run(world.launch(f"modules-{names[-1]}", adapter=adapter))
    assert run.code == 64
    assert f"adapter.{field} names '{names[-1]}'" in run.exit["message"]
    assert hint in run.exit["message"]


def test_an_adapter_on_the_head_is_refused(world: World, zygote: Zygote) -> None:
    adapter = {"type": "lora", "target_modules": ["q_proj", "lm_head"]}
    run = zygote.run(world.launch("lm-head", adapter=adapter))
    assert run.code == 64, run.log
    assert "adapter.target_modules" in run.exit["message"]


def test_a_model_that_needs_an_absent_secret(world: World, zygote: Zygote) -> None:
    model = {"source": "hub", "name_or_path": "org/private", "token": {"secret": "hub"}}
    run = _refused(world, zygote, "no-secret", **model)
    assert "there is no secret 'hub'" in run.exit["message"]


def test_secrets_stay_out_of_what_is_written(world: World, zygote: Zygote) -> None:
    model = {"source": "hub", "name_or_path": "org/private", "token": {"secret": "hub"}}
    run = zygote.run(world.launch("secret", model=model), secrets={"hub": "hf_verySecret123"})
    assert run.code == 64
    written = [path for path in run.work.rglob("*") if path.is_file()]
    assert len(written) >= 3
    assert not any(b"hf_verySecret123" in path.read_bytes() for path in written)


def test_prepared_data_that_is_not_whole(world: World, zygote: Zygote) -> None:
    broken = world.folder / "half-prepared"
    shutil.copytree(world.plain, broken)
    (broken / "manifest.json").unlink()
    launch = world.launch("half")
    launch["paths"]["prepared"] = str(broken)
    run = zygote.run(launch)
    assert run.exit["reason"] == "invalid_data"
    assert "prepare the data again" in run.exit["message"]


def test_an_adapter_on_an_adapter_is_refused(world: World, zygote: Zygote) -> None:
    """The library would load the base that the inner one names, wherever it lies."""
    inner, outer = _folder(world, "inner"), _folder(world, "outer")
    for folder, base in ((inner, "/elsewhere"), (outer, str(inner))):
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        (folder / "adapter_model.safetensors").touch()
    run = _refused(world, zygote, "chain", source="folder", name_or_path=str(outer))
    assert run.exit["reason"] == "invalid_spec"
    assert f"'{inner}' is an adapter, not a whole model" in run.exit["message"]


@pytest.mark.parametrize("content", ["[]", "3", "{", '{"base_model_name_or_path": 3}'])
def test_an_adapters_configuration_that_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(ModelUnavailable, match="adapter"):
        adapter_base(tmp_path)


def test_the_hub_is_not_asked_for_a_local_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org/model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    model = ModelRef(source="hub", name_or_path="org/model")
    with pytest.raises(InvalidSpec, match="is also a local path"):
        locate(model, Paths(work=str(tmp_path)), {})


def test_damaged_headers_tell_no_size(world: World, tmp_path: Path) -> None:
    for number, header in enumerate((b"[]", b'{"a": {}}', b'{"a": 1}')):
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        document = world.launch(f"header-{number}")
        document["paths"]["model"] = str(tmp_path)
        assert local_parameters(Launch.model_validate(document)) is None
        path.unlink()


@pytest.mark.parametrize(
    "config", ["[]", '{"model_type": "llama", "hidden_size": "x"}', '{"model_type": 3}']
)
def test_a_configuration_of_another_shape(world: World, tmp_path: Path, config: str) -> None:
    shutil.copytree(world.model, tmp_path / "model")
    (tmp_path / "model/config.json").write_text(config)
    source = ModelSource(str(tmp_path / "model"), "mine")
    with pytest.raises(ModelUnavailable, match="its files must be whole"):
        skeleton(
            source,
            LoadingWish(ModelKind("AutoModelForCausalLM", "a model", "CAUSAL_LM"), "auto", "auto"),
        )
