"""B34: nothing is ever unpickled, and no code of a model or a data set is run."""

import ast
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services import ROOT
from tests.trainer_core.conftest import world, zygote
from tests.trainer_core.runs import Outcome, World, Zygote, signal_at
from trainer_core.publish.manifest import MANIFEST, read_manifest, write_manifest

__all__ = ["world", "zygote"]

PACKAGES = ("app", "worker", "trainer_core", "polar", "bench", "migrations")
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CALLS = {"eval", "exec", "read_pickle", "unsafe_load", "full_load", "import_module_from_string"}
# A call must, or must not, have this keyword with this value.
NEEDS = {"torch.load": ("weights_only", True)}
FORBIDS = {"trust_remote_code": True, "allow_pickle": True, "weights_only": False, "shell": True}


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (ROOT / package).rglob("*.py")


def breaches(text: str) -> list[str]:
    """What in a source unpickles, or runs what it was given."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            found += _of_call(node)
            continue
        else:
            continue
        found += [name for name in names if name.partition(".")[0] in MODULES]
    return found


def _of_call(node: ast.Call) -> list[str]:
    name = ast.unparse(node.func)
    given = {
        keyword.arg: keyword.value.value
        for keyword in node.keywords
        if isinstance(keyword.value, ast.Constant)
    }
    found = [name] if name in CALLS or name.rpartition(".")[2] in CALLS - {"eval", "exec"} else []
    found += [f"{k}={v}" for k, v in FORBIDS.items() if given.get(k) is v]
    needed, value = NEEDS.get(name, (None, None))
    return found + ([name] if needed and given.get(needed) is not value else [])


def test_b34_no_source_unpickles_or_trusts_foreign_code() -> None:
    found = {
        str(path.relative_to(ROOT)): wrong
        for path in sources()
        if (wrong := breaches(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from joblib import load",
        "import torch\ntorch.load(path)",
        "torch.load(path, weights_only=False)",
        "numpy.load(path, allow_pickle=True)",
        "pandas.read_pickle(path)",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
        "eval(text)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_the_scan_sees_what_it_looks_for(text: str) -> None:
    assert breaches(text)


def poison(mark: Path) -> bytes:
    """A pickle that makes a file when it is loaded, written by hand: protocol 0."""
    return f"cos\nsystem\n(S'touch {mark}'\ntR.".encode()


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


def refused(run: Outcome, mark: Path) -> str:
    assert run.code == 64, run.log
    assert not mark.exists()
    assert "Traceback" not in run.log
    return str(run.exit["message"])


@pytest.mark.train
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pkl", "tf_model.h5"])
def test_b34_a_model_of_pickles_is_refused(
    world: World, zygote: Zygote, mark: Path, name: str
) -> None:
    folder = world.folder / f"poisoned-{name}"
    shutil.copytree(world.model, folder)
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(poison(mark))
    model = {"source": "folder", "name_or_path": str(folder)}
    run = zygote.run(world.launch(f"model-{name}", model=model))
    assert "safetensors" in refused(run, mark)


@pytest.mark.train
def test_b34_an_adapter_of_pickles_is_refused(world: World, zygote: Zygote, mark: Path) -> None:
    folder = world.folder / "poisoned-adapter"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(world.model / name, folder)
    config = {"peft_type": "LORA", "base_model_name_or_path": str(world.model), "r": 4}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.bin").write_bytes(poison(mark))
    model = {"source": "folder", "name_or_path": str(folder)}
    run = zygote.run(world.launch("adapter-bin", model=model))
    assert "must hold its weights as safetensors" in refused(run, mark)


@pytest.mark.train
def test_b34_a_checkpoint_of_pickles_is_refused(world: World, zygote: Zygote, mark: Path) -> None:
    """Whoever can write to the store can also write a manifest that fits."""
    killed = zygote.run(
        world.launch("poisoned-killed"), signals=[signal_at("metrics", "SIGKILL", step=6)]
    )
    whole = killed.work / "checkpoints" / "step-00000004"
    manifest = read_manifest(whole)
    pickled = [f.path for f in manifest.files if f.path.endswith((".pt", ".pth", ".bin"))]
    assert pickled
    for name in pickled:
        folder = killed.work / f"poisoned-{name}"
        shutil.copytree(whole, folder)
        (folder / name).write_bytes(poison(mark))
        (folder / MANIFEST).unlink()
        write_manifest(folder, "checkpoint", 4, (manifest.spec_hash, manifest.data_hash))
        launch = world.launch(f"from-{name}")
        launch["paths"]["resume_from"] = str(folder)
        said = refused(zygote.run(launch), mark)
        assert "holds pickled objects instead of tensors" in said


@pytest.mark.train
@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_b34_code_that_comes_with_a_model_is_not_run(
    world: World, zygote: Zygote, mark: Path, where: str
) -> None:
    folder = world.folder / f"coded-{where}"
    shutil.copytree(world.model, folder)
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    path = folder / where
    document: dict[str, Any] = json.loads(path.read_text())
    document["auto_map"] = {
        "AutoConfig": "evil.Config",
        "AutoModelForCausalLM": "evil.Model",
        "AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"],
    }
    path.write_text(json.dumps(document))
    model = {"source": "folder", "name_or_path": str(folder)}
    run = zygote.run(world.launch(f"code-{where}", model=model))
    assert not mark.exists()
    assert run.code in (0, 64)  # a known architecture needs no code, and is loaded without it
