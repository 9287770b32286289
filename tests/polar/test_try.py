"""`polar try`: models that answer in a process of their own."""

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from polar.commands.screen import visible
from polar.tried import fetched, is_job, local_folder
from tests.services import ROOT
from tests.trainer_core.small_tasks import make_tiny_bert
from tests.trainer_core.tiny import make_tiny_model
from trainer_core.answering import kind_of
from trainer_core.errors import ModelUnavailable

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model, an adapter of it, and a classifier of three labels."""
    folder = tmp_path_factory.mktemp("시도")
    make_tiny_model(folder / "chat")
    _adapter(folder / "chat", folder / "run" / "model")
    _classifier(folder / "labels")
    return folder


def _adapter(base: Path, target: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base)
    wanted = LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=2)
    get_peft_model(model, wanted).save_pretrained(target)
    AutoTokenizer.from_pretrained(base).save_pretrained(target)


def _classifier(target: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    base = make_tiny_bert(target.with_name("bert"))
    names = {0: "배송", 1: "환불", 2: "other"}
    model = AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=3, id2label=names, label2id={v: k for k, v in names.items()}
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(base).save_pretrained(target)


def asked(*words: str, text: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "polar", "try", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
        input=text,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_an_adapter_that_learned_nothing_answers_as_its_base(folder: Path):
    """Greedy, by the template: the same words, from an argument and from stdin."""
    code, from_base, complained = asked(
        str(folder / "chat"), "안녕?", "--max-tokens", "8", "--json"
    )
    assert code == 0, complained
    code, said, complained = asked(str(folder / "run"), "--max-tokens", "8", text="안녕?\n")
    assert code == 0, complained
    assert said.strip() == visible(json.loads(from_base)["text"])


def test_a_classifier_names_its_labels_with_scores(folder: Path):
    code, said, complained = asked(str(folder / "labels"), "언제 와요?", "--json")
    assert code == 0, complained
    labels = json.loads(said)["labels"]
    assert {each["label"] for each in labels} == {"배송", "환불", "other"}
    assert sum(each["score"] for each in labels) == pytest.approx(1, abs=1e-5)
    assert labels == sorted(labels, key=lambda each: -each["score"])


def test_what_is_no_model_is_told(tmp_path: Path):
    code, _, complained = asked(str(tmp_path), "hello")
    assert code == 1
    assert "holds no model" in complained
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(ModelUnavailable, match="BertModel: it neither chats"):
        kind_of(tmp_path)
    (tmp_path / "modules.json").write_text("[]")
    assert kind_of(tmp_path) == "embed"


def test_places_are_told_apart(folder: Path):
    assert local_folder(str(folder / "run")) == folder / "run" / "model"
    assert local_folder(str(folder / "labels")) == folder / "labels"
    assert local_folder("shop-sft") is None
    assert is_job("job_01KBEHN0K0R5HZ8Q6JY6Q1V1Z3")
    assert not is_job("job-of-mine:3")


def test_of_two_that_fetch_at_once_one_does(tmp_path: Path):
    """Each has the whole copy; half of one, of a process that was killed, is in nobody's way."""
    (tmp_path / "sha.new").mkdir()
    (tmp_path / "sha.new" / "half").touch()
    both, calls = Barrier(2), []

    def fetch(draft: Path) -> None:
        calls.append(draft)
        content = b"weights"
        (draft / "weights").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        file = {"path": "weights", "size": len(content), "sha256": digest}
        (draft / "manifest.json").write_text(json.dumps({"files": [file]}))

    def run(_: int) -> list[str]:
        both.wait(10)
        return sorted(each.name for each in fetched(tmp_path / "sha", fetch).iterdir())

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [["manifest.json", "weights"]] * 2
    assert calls == [tmp_path / "sha.new"]
    assert not (tmp_path / "sha.new").exists()
