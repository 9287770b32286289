"""Specs from groups, files and overrides: composed by Hydra, checked by the one JobSpec."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from polar.commands.multirun import difference
from polar.config import Composed, ConfigError, ConfigProblem, Places, compose_spec, compose_sweep
from polar.config.places import PACKAGED
from trainer_core.task import TASKS

SFT = ["task=sft", "model=smollm2", "data=file", "data.train.0.path=rows.jsonl"]
SPEC: dict[str, Any] = {
    "name": "shop",
    "task": {"type": "sft", "max_length": 256},
    "model": {"source": "folder", "name_or_path": "models/x"},
    "data": {"train": [{"source": "folder", "path": "rows.jsonl"}]},
    "adapter": {"type": "ia3", "feedforward_modules": ["down_proj"]},
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def composed(*arguments: str, **places: Any) -> Composed:
    return compose_spec(arguments, Places(**places))


def problems(arguments: Sequence[str], **places: Any) -> list[ConfigProblem]:
    with pytest.raises(ConfigError) as refused:
        compose_spec(arguments, Places(**places))
    assert "Hydra" not in str(refused.value)
    return refused.value.problems


def spec_file(folder: Path, name: str = "spec.json", **changes: Any) -> str:
    path = folder / name
    path.write_text(json.dumps(SPEC | changes, ensure_ascii=False), encoding="utf-8")
    return str(path)


def own(folder: Path, **files: str) -> Path:
    """A user's folder: `task__mine="type: sft"` becomes task/mine.yaml."""
    conf = folder / "내 설정" / "it's"
    for name, text in files.items():
        path = conf / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return conf


def test_options_and_overrides_make_a_spec():
    found = composed(*SFT, "adapter=lora", "adapter.r=8", "training.learning_rate=1e-4")
    assert found.document == {
        "task": {"type": "sft", "loss_on": "assistant"},
        "model": {"source": "hub", "name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"},
        "data": {"train": [{"source": "folder", "path": "rows.jsonl"}]},
        "adapter": {"type": "lora", "r": 8, "lora_alpha": 32},
        "training": {"learning_rate": 0.0001},
    }
    assert found.spec.training.learning_rate == 1e-4
    assert found.spec.training.max_steps is None


@pytest.mark.parametrize(
    ("override", "place", "value"),
    [
        ("training.learning_rate=1e-4", "training.learning_rate", 1e-4),
        ("training.max_steps=3", "training.max_steps", 3),
        ("task.packing=true", "task.packing", True),
        ("training.max_steps=null", "training.max_steps", None),
        ("name=shop", "name", "shop"),
        ("+name=shop", "name", "shop"),
        ("labels.team=검색", "labels.team", "검색"),
        ("labels.team=검색 팀", "labels.team", "검색 팀"),
        ("labels.team='검색, 팀'", "labels.team", "검색, 팀"),
        ("labels={team: 검색, city: Seoul}", "labels", {"team": "검색", "city": "Seoul"}),
        ("labels.url=https://x.y/z?q=1", "labels.url", "https://x.y/z?q=1"),
        ("labels.x='1'", "labels.x", "1"),
        ("data.train[0].path=/자료/a b.csv", "data.train.0.path", "/자료/a b.csv"),
        ("data.train.0.columns={prompt: 질문}", "data.train.0.columns", {"prompt": "질문"}),
        ("data.train=[{source: folder, path: a b.csv}]", "data.train.0.path", "a b.csv"),
        ("compute.max_runtime=8h", "compute.max_runtime", "8h"),
        ("evaluation.metrics=[loss,rouge1]", "evaluation.metrics", ["loss", "rouge1"]),
    ],
)
def test_values_have_the_types_of_the_grammar(override: str, place: str, value: Any):
    here: Any = composed(*SFT, override).document
    for part in place.split("."):
        here = here[int(part)] if part.isdigit() else here[part]
    assert here == value


def test_a_file_is_a_base_and_what_it_says_stays(tmp_path: Path):
    """Nothing in JSON is a reference, and a block that is chosen anew is not mixed with its own."""
    file = spec_file(tmp_path, labels={"pattern": "\\${HOME} ${x} \\d"})
    found = composed(file, "adapter=lora", "task.max_length=128", "~name")
    assert found.document["labels"]["pattern"] == "\\${HOME} ${x} \\d"
    assert found.document["adapter"] == {"type": "lora", "r": 16, "lora_alpha": 32}
    assert found.document["task"] == {"type": "sft", "max_length": 128}
    assert "name" not in found.document
    assert "adapter" not in composed(file, "adapter=null").document
    assert composed(file).document == SPEC | {"labels": {"pattern": "\\${HOME} ${x} \\d"}}


def test_a_yaml_file_may_choose_options(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [{task: sft}, {model: smollm2}, {data: file}, _self_]\nname: 가게\n")
    assert problems([str(file), "data.train.0.path=x"])[0].origin == "mine.yaml"
    found = composed(str(file), "name=shop", "model=qwen3-4b", "data.train.0.path=x", "adapter=ia3")
    assert found.spec.model.name_or_path == "Qwen/Qwen3-4B"
    assert found.document["name"] == "shop"
    with pytest.raises(ConfigError, match="`model` is missing"):
        composed(str(file), "name=shop", "model=null", "data.train.0.path=x")


def test_the_own_folder_adds_options_and_takes_precedence(tmp_path: Path):
    conf = own(
        tmp_path,
        model__mine="source: folder\nname_or_path: 모델/${oc.env:SIZE,small}\n",
        adapter__lora="type: lora\nr: 4\n",
        shop="defaults: [{task: sft}, {model: mine}, _self_]\nname: own\n",
    )
    arguments = ["data=file", "data.train.0.path=x", "adapter=lora"]
    found = composed(*arguments, config_dir=conf, config_name="shop")
    assert found.document["model"] == {"source": "folder", "name_or_path": "모델/small"}
    assert found.document["adapter"] == {"type": "lora", "r": 4}
    assert found.document["name"] == "own"
    conf.rename(tmp_path / "conf")  # the folder that is looked into where none is named
    assert composed(*SFT, "model=mine").document["model"]["name_or_path"] == "모델/small"


@pytest.mark.parametrize(
    ("arguments", "said", "origin"),
    [
        ([*SFT, "training.lerning_rate=1"], "did you mean `learning_rate`?", None),
        ([*SFT, "learning_rate=1"], "did you mean `training.learning_rate`?", None),
        ([*SFT, "training.max_steps=many"], "must be a whole number", None),
        ([*SFT, "name=7"], "quotes make it one: name='\"…\"'", None),
        (["task=sfft"], "there is no task `sfft`: did you mean `sft`?", None),
        (["task=sft", "data=file"], "`data.train[0].path` is still open", "data/file.yaml"),
        (["task=sft"], "`model` is missing: add it", ""),
        ([*SFT, "training.seed=1,2"], "--multirun tries each", ""),
        ([*SFT, "labels.x=(a"], "is no override", ""),
        ([*SFT, "hydra.run.dir=x"], "leave it out", ""),
        ([*SFT, "~training.seed"], "training.seed", ""),
        (["none.json"], "No such file", ""),
        (["a.json", "b.json"], "one file is composed", ""),
    ],
)
def test_what_is_wrong_is_named_with_its_origin(
    arguments: list[str], said: str, origin: str | None
):
    """`origin`: the end of the file's name; None: the last override as it was given."""
    found = problems(arguments)[0]
    assert said in found.message
    assert found.origin == arguments[-1] if origin is None else found.origin.endswith(origin)


def test_a_wrong_line_of_an_option_names_its_file(tmp_path: Path):
    conf = own(tmp_path, adapter__odd="type: lora\nlora_alfa: 4\n", shop="name: [\n")
    found = problems([*SFT, "adapter=odd"], config_dir=conf)[0]
    assert found.message.endswith("did you mean `lora_alpha`?")
    assert found.pointer == "/adapter/lora_alfa"
    assert found.origin.endswith("adapter/odd.yaml")
    assert "is not YAML" in problems(SFT, config_dir=conf, config_name="shop")[0].message
    assert "no soap.yaml in" in problems(SFT, config_dir=conf, config_name="soap")[0].message
    assert "no folder" in problems(SFT, config_dir=tmp_path / "nowhere")[0].message


def test_files_that_are_no_specs_are_told(tmp_path: Path):
    for content, said in (
        (b'{"task": ', "is not JSON"),
        (b"[]", "must hold an object"),
        (b'{"name": "a", "name": "b"}', "'name' is named twice in one object"),
        (b'{"name": "\xff"}', "is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"labels": ' + b"[" * 200 + b"]" * 200 + b"}", "nested too deeply"),
        (b'{"labels": ' + b"[" * 700 + b"]" * 700 + b"}", "nested too deeply"),
    ):
        (tmp_path / "odd.json").write_bytes(content)
        assert said in problems([str(tmp_path / "odd.json")])[0].message
    (tmp_path / "odd.yaml").write_bytes(b"labels: " + b"[" * 700 + b"]" * 700)
    assert problems([str(tmp_path / "odd.yaml")])[0].message.endswith("is nested too deeply")


def test_a_spec_may_begin_with_a_mark_as_editors_write_it(tmp_path: Path):
    (tmp_path / "marked.json").write_text('{"name": "shop"}', encoding="utf-8-sig")
    found = compose_spec([str(tmp_path / "marked.json"), *SFT], Places())
    assert found.spec.name == "shop"


def test_a_sweep_has_a_spec_for_each_combination():
    found = compose_sweep([*SFT, "adapter=lora", "adapter.r=8,16", "training.seed=1,2"], Places())
    pairs = [(run.document["adapter"]["r"], run.spec.training.seed) for run in found]
    assert pairs == [(8, 1), (8, 2), (16, 1), (16, 2)]
    seeds = compose_sweep([*SFT, "training.seed=range(1,4)"], Places())
    assert [run.spec.training.seed for run in seeds] == [1, 2, 3]
    options = compose_sweep([*SFT, "adapter=lora,ia3"], Places())
    assert [run.document["adapter"]["type"] for run in options] == ["lora", "ia3"]
    words = ["training.max_steps=10,20", "training.warmup_steps=${training.max_steps}"]
    both = [run.spec.training for run in compose_sweep([*SFT, *words], Places())]
    assert [(each.max_steps, each.warmup_steps) for each in both] == [(10, 10), (20, 20)]
    named = compose_sweep([*SFT, 'name="a-1","a-2"'], Places())
    assert [run.document["name"] for run in named] == ["a-1", "a-2"]
    for endless in ("training.seed=range(0,1000000000)", "training.learning_rate=interval(1,2)"):
        with pytest.raises(ConfigError, match=r"fewer values|give each value"):
            compose_sweep([*SFT, endless], Places())
    with pytest.raises(ConfigError, match="several values"):
        compose_sweep(SFT, Places())


def test_every_packaged_option_composes_with_those_that_it_needs():
    """Each is a part of a valid spec, and every task that needs no more than rows has one."""
    groups = Places().groups()
    needs = {"task": "sft", "model": "smollm2", "data": "file"}
    types = set()
    for group, options in groups.items():
        for option in options:
            chosen = needs | {group: option}
            arguments = [f"{name}={value}" for name, value in chosen.items()]
            found = composed(*arguments, "data.train.0.path=x")
            types.add(found.spec.task.type)
    assert types == set(TASKS) - {"grpo", "evaluation"}  # these need rewards, another model
    assert all(path.suffix == ".yaml" for path in PACKAGED.rglob("*") if path.is_file())


def test_composing_leaves_nothing_behind(tmp_path: Path):
    """No folder, no handler of logs, no other working folder; Hydra loads only when it composes."""
    code = (
        "import sys, logging, os\n"
        "from polar.config import Places, compose_spec\n"
        "assert not {'hydra', 'omegaconf', 'torch'} & set(sys.modules)\n"
        "before = os.getcwd(), logging.getLogger().handlers[:]\n"
        "compose_spec(sys.argv[1:], Places())\n"
        "assert before == (os.getcwd(), logging.getLogger().handlers[:])\n"
        "assert 'torch' not in sys.modules\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, *SFT],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_the_patch_between_two_runs_of_a_sweep() -> None:
    """RFC 7396: what is gone is null, what is within an object changes alone."""
    base = {"adapter": {"type": "lora", "r": 8}, "precision": "fp32", "task": {"type": "sft"}}
    other = {"name": "x", "adapter": {"type": "ia3"}, "task": {"type": "sft"}}
    assert difference(base, other) == {"adapter": {"type": "ia3", "r": None}, "precision": None}
