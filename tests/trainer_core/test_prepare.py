"""Preparation end to end: real files and tokenizers in; a whole folder, or nothing, out."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.services import wait_until
from tests.trainer_core import chat
from trainer_core.data.report import read_report
from trainer_core.errors import InvalidData, InvalidSpec, ModelUnavailable, TrainerError
from trainer_core.prepare import PreparedReport, content_key, prepare
from trainer_core.publish.manifest import verify
from trainer_core.spec import Launch, Paths, TrainSpec

pytestmark = pytest.mark.train

Rows = list[dict[str, list[int]]]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return chat.qwen()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name has a blank and a Korean letter, as users' folders do."""
    path = tmp_path / "데이터 폴더"
    path.mkdir()
    return path


def turns(question: str, answer: str) -> dict[str, Any]:
    roles = (("user", question), ("assistant", answer))
    return {"messages": [{"role": r, "content": c} for r, c in roles]}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))
    return path


def launch(train: Path | dict[str, Any], **blocks: Any) -> Launch:
    source = train if isinstance(train, dict) else {"source": "folder", "path": str(train)}
    paths = blocks.pop("paths", {})
    document = {
        "task": {"type": "sft"} | blocks.pop("task", {}),
        "model": blocks.pop("model", {"source": "folder", "name_or_path": "/no/model"}),
        "data": {"train": [source]} | blocks.pop("data", {}),
    }
    spec = TrainSpec.model_validate(document | blocks)
    return Launch(
        attempt_id="a", job_id="j", job_name="n", spec=spec, paths=Paths(work="/no/work", **paths)
    )


def read(path: Path) -> Rows:
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        rows: Rows = pa.ipc.open_file(file).read_all().to_pylist()
    return rows


def ledger(out: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]


def refusal(
    tokenizer: Any, given: Launch, folder: Path, error: type[TrainerError] = InvalidData
) -> TrainerError:
    """Why a launch is refused; checks that nothing is left behind."""
    before = sorted(folder.iterdir())
    with pytest.raises(error) as wrong:
        prepare(given, folder / "prepared", tokenizer)
    assert sorted(folder.iterdir()) == before
    return wrong.value


def shop(count: int = 20) -> list[dict[str, Any]]:
    return [turns(f"질문 {i}?", f"답변 {i} 입니다.") for i in range(count)]


def test_folder_is_whole_and_says_what_is_in_it(folder: Path, tokenizer: Any) -> None:
    out = folder / "prepared"
    report = prepare(launch(write(folder / "a.jsonl", shop())), out, tokenizer)
    assert verify(out).kind == "prepared"
    assert {p.name for p in out.iterdir()} == {
        "train.arrow",
        "report.json",
        "ledger.jsonl",
        "manifest.json",
    }
    rows = read(out / "train.arrow")
    assert PreparedReport.model_validate_json((out / "report.json").read_text()) == report
    assert (report.rows_in, report.rows_kept, report.train_rows) == (20, 20, 20)
    assert report.total_tokens == sum(len(r["input_ids"]) for r in rows)
    assert report.trained_tokens == sum(lb != -100 for r in rows for lb in r["labels"])
    assert report.formats == {"train/0": "messages"}
    assert report.example["trained"] == ["답변 0 입니다.<|im_end|>"]
    assert sum(report.histogram.values()) == 20
    assert ledger(out) == []


def test_what_is_there_is_used_again(folder: Path, tokenizer: Any) -> None:
    given = launch(write(folder / "a.jsonl", shop()))
    report = prepare(given, folder / "prepared", tokenizer)
    (folder / "a.jsonl").unlink()
    assert prepare(given, folder / "prepared", tokenizer) == report


def test_half_a_folder_is_made_anew(folder: Path, tokenizer: Any) -> None:
    given = launch(write(folder / "a.jsonl", shop()))
    out = folder / "prepared"
    report = prepare(given, out, tokenizer)
    (out / "manifest.json").unlink()
    assert read_report(out) is None
    (folder / "prepared.tmp-1").mkdir()  # a killed process leaves this behind
    assert prepare(given, out, tokenizer) == report
    assert {p.name for p in folder.iterdir()} == {"a.jsonl", "prepared"}


def test_same_rows_have_the_same_hash(folder: Path, tokenizer: Any) -> None:
    given = launch(write(folder / "a.jsonl", shop()))
    hashes = {prepare(given, folder / f"p{i}", tokenizer).data_hash for i in range(2)}
    other = launch(write(folder / "b.jsonl", shop(19)))
    hashes.add(prepare(other, folder / "other", tokenizer).data_hash)
    assert len(hashes) == 2


def test_folder_of_several_kinds_of_files(folder: Path, tokenizer: Any) -> None:
    data = folder / "shop"
    (data / "more").mkdir(parents=True)
    (data / "a.csv").write_text("question,answer\nhi,there\n")
    write(data / "more" / "b.jsonl", [{"question": "one", "answer": "two"}])
    (data / "README.md").write_text("not data")
    source = {
        "source": "folder",
        "path": str(data),
        "columns": {"prompt": "question", "completion": "answer"},
    }
    report = prepare(launch(source), folder / "prepared", tokenizer)
    assert (report.rows_kept, report.formats) == (2, {"train/0": "prompt_completion"})


def test_num_samples_takes_the_first_rows(folder: Path, tokenizer: Any) -> None:
    path = write(folder / "a.jsonl", shop())
    source = {"source": "folder", "path": str(path), "num_samples": 3}
    assert prepare(launch(source), folder / "prepared", tokenizer).rows_kept == 3


def test_fetched_sources_are_read_where_they_lie(folder: Path, tokenizer: Any) -> None:
    path = write(folder / "a.jsonl", shop())
    source = {"source": "upload", "path": "ds_1"}
    given = launch(source, paths={"data": {"train/0": str(path)}})
    assert prepare(given, folder / "prepared", tokenizer).rows_kept == 20
    problem = refusal(tokenizer, launch(source), folder / "..", InvalidSpec)
    assert problem.field == "data.train[0].source"
    assert "only the service can fetch" in problem.message


# Validation


def test_split_is_the_same_for_a_seed(folder: Path, tokenizer: Any) -> None:
    path = write(folder / "a.jsonl", shop(30))
    held = []
    for number, seed in enumerate((1, 1, 2)):
        given = launch(path, data={"validation": {"split_ratio": 0.2}}, training={"seed": seed})
        out = folder / f"p{number}"
        report = prepare(given, out, tokenizer)
        assert (report.train_samples, report.validation_samples) == (24, 6)
        both = read(out / "train.arrow") + read(out / "validation.arrow")
        assert len({tuple(r["input_ids"]) for r in both}) == 30
        held.append(read(out / "validation.arrow"))
    assert held[0] == held[1] != held[2]


@pytest.mark.parametrize(("ratio", "expected"), [(0.001, (2, 1)), (0.999, (1, 2))])
def test_each_side_of_a_split_has_a_row(
    folder: Path, tokenizer: Any, ratio: float, expected: tuple[int, int]
) -> None:
    path = write(folder / "a.jsonl", shop(3))
    given = launch(path, data={"validation": {"split_ratio": ratio}})
    report = prepare(given, folder / "prepared", tokenizer)
    assert (report.train_samples, report.validation_samples) == expected


def test_one_row_cannot_be_split(folder: Path, tokenizer: Any) -> None:
    path = write(folder / "a.jsonl", shop(1))
    problem = refusal(tokenizer, launch(path, data={"validation": {"split_ratio": 0.5}}), folder)
    assert problem.field == "data.validation.split_ratio"
    assert "at least 2 usable rows" in problem.message


def test_validation_sources_and_max_samples(folder: Path, tokenizer: Any) -> None:
    path = write(folder / "a.jsonl", shop(10))
    source = {"source": "folder", "path": str(write(folder / "v.jsonl", shop(8)))}
    given = launch(path, data={"validation": [source]}, evaluation={"max_samples": 5})
    report = prepare(given, folder / "prepared", tokenizer)
    assert (report.train_rows, report.validation_rows) == (10, 5)
    first = read(folder / "prepared" / "train.arrow")[:5]
    assert read(folder / "prepared" / "validation.arrow") == first


# Length


def long_rows(folder: Path) -> Path:
    rows = [
        turns("짧은 질문", "답 " * 2),
        turns("긴 질문", "길다 " * 40),
        turns("먼 질문", "멀다 " * 60),
    ]
    return write(folder / "a.jsonl", rows)


def test_a15_long_rows_are_an_error_with_count_rows_and_longest(
    folder: Path, tokenizer: Any
) -> None:
    problem = refusal(tokenizer, launch(long_rows(folder), task={"max_length": 64}), folder)
    assert problem.field == "data.over_length"
    assert "2 rows are longer than task.max_length (64)" in problem.message
    assert "a.jsonl line 2 (" in problem.message
    assert "a.jsonl line 3 (" in problem.message
    assert "the longest has" in problem.message
    assert problem.message.endswith(
        "or choose data.over_length: truncate_right, truncate_left or drop"
    )


@pytest.mark.parametrize("policy", ["truncate_right", "truncate_left"])
def test_a15_truncation_is_in_the_ledger(folder: Path, tokenizer: Any, policy: str) -> None:
    path, out = long_rows(folder), folder / "prepared"
    whole = launch(path, task={"max_length": 1024})
    prepare(whole, folder / "whole", tokenizer)
    given = launch(path, task={"max_length": 64}, data={"over_length": policy})
    report = prepare(given, out, tokenizer)
    assert (report.rows_kept, report.rows_cut, report.longest) == (3, 2, 64)
    for row, full in zip(
        read(out / "train.arrow"), read(folder / "whole" / "train.arrow"), strict=True
    ):
        part = full["input_ids"][:64] if policy == "truncate_right" else full["input_ids"][-64:]
        assert row["input_ids"] == part
    places = [(e["place"], e["action"], e["reason"]) for e in ledger(out)]
    assert places == [(f"a.jsonl line {n}", "cut", "over_length") for n in (2, 3)]
    assert [w["code"] for w in report.warnings] == ["rows_changed"]


def test_a15_dropped_rows_are_in_the_ledger(folder: Path, tokenizer: Any) -> None:
    given = launch(long_rows(folder), task={"max_length": 64}, data={"over_length": "drop"})
    report = prepare(given, folder / "prepared", tokenizer)
    assert (report.rows_in, report.rows_kept, report.rows_dropped) == (3, 1, 2)
    assert [e["action"] for e in ledger(folder / "prepared")] == ["dropped", "dropped"]


def test_a15_truncation_that_leaves_nothing_to_train(folder: Path, tokenizer: Any) -> None:
    path = write(folder / "a.jsonl", [turns("아주 긴 질문 " * 60, "답")])
    given = launch(path, task={"max_length": 64}, data={"over_length": "truncate_right"})
    message = refusal(tokenizer, given, folder).message
    assert "a.jsonl line 1: no token would be trained (task.max_length 64" in message


# Bad input


def test_rows_without_trained_tokens_are_listed(folder: Path, tokenizer: Any) -> None:
    rows = shop(9)
    for number in range(8):
        rows[number] = {"messages": rows[number]["messages"][:1]}
    message = refusal(tokenizer, launch(write(folder / "a.jsonl", rows)), folder).message
    for line in range(1, 6):
        assert f"a.jsonl line {line}: no token would be trained" in message
    assert "line 6" not in message
    assert message.endswith("Mend these rows, or set data.on_bad_row to 'drop'")


def test_broken_line_7(folder: Path, tokenizer: Any) -> None:
    path = write(folder / "a.jsonl", shop(9))
    lines = path.read_text().splitlines(keepends=True)
    lines[6] = lines[6][:20] + "\n"
    path.write_text("".join(lines))
    message = refusal(tokenizer, launch(path), folder).message
    assert message.startswith("a.jsonl line 7: it is not valid JSON: ")
    assert "set data.on_bad_row to 'drop'" in message


def test_names_with_half_characters(folder: Path, tokenizer: Any) -> None:
    """No file and no store takes a lone surrogate: it is shown as its escape."""
    (folder / "a.jsonl").write_text('{"\\ud800x": 1}\n')
    wrong = refusal(tokenizer, launch(folder / "a.jsonl"), folder)
    assert "has the columns '\\ud800x'" in wrong.message
    (folder / "a.jsonl").write_text('{"text": "a"}\n' * 20 + '{"txt\\ud800": 1}\n')
    data = {"on_bad_row": "drop"}
    report = prepare(launch(folder / "a.jsonl", data=data), folder / "out", tokenizer)
    assert report.rows_dropped == 1
    assert "\\ud800" in ledger(folder / "out")[0]["message"]


def test_bad_rows_may_be_dropped(folder: Path, tokenizer: Any) -> None:
    rows = [*shop(30), {"messages": [{"role": "robot", "content": "x"}]}, turns("q", "  ")]
    path = write(folder / "a.jsonl", rows)
    refused = launch(path, data={"on_bad_row": "drop"})
    problem = refusal(tokenizer, refused, folder)
    assert problem.field == "data.max_bad_ratio"
    assert "2 of 32 rows cannot be used, more than data.max_bad_ratio allows (0.05)" in (
        problem.message
    )
    given = launch(path, data={"on_bad_row": "drop", "max_bad_ratio": 0.1})
    report = prepare(given, folder / "prepared", tokenizer)
    assert (report.rows_in, report.rows_kept, report.rows_dropped) == (32, 30, 2)
    robot, empty = ledger(folder / "prepared")
    assert (robot["place"], robot["reason"]) == ("a.jsonl line 31", "bad_row")
    assert "'robot'" in robot["message"]
    assert "the answer in message 2 is empty" in empty["message"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.json"])
def test_empty_data(folder: Path, tokenizer: Any, name: str) -> None:
    content = {"a.jsonl": "", "a.csv": "prompt,completion\n", "a.json": "[]"}[name]
    (folder / name).write_text(content)
    problem = refusal(tokenizer, launch(folder / name), folder)
    assert (problem.field, "has no rows" in problem.message) == ("data.train[0]", True)


def test_missing_column(folder: Path, tokenizer: Any) -> None:
    path = write(folder / "a.jsonl", [{"question": "a", "answer": "b"}])
    source = {"source": "folder", "path": str(path), "columns": {"prompt": "frage"}}
    problem = refusal(tokenizer, launch(source), folder)
    assert problem.field == "data.train[0].columns"
    assert "it has 'question', 'answer'" in problem.message


def test_model_that_does_not_exist(folder: Path) -> None:
    path = write(folder / "a.jsonl", shop())
    model = {"source": "folder", "name_or_path": "/no/such model"}
    problem = refusal(None, launch(path, model=model), folder, ModelUnavailable)
    assert problem.field == "model.name_or_path"
    assert "/no/such model" in problem.message


@pytest.mark.parametrize("name", ["gone.jsonl", "x" * 300, "pipe.jsonl"])
def test_data_that_does_not_exist(folder: Path, tokenizer: Any, name: str) -> None:
    os.mkfifo(folder / "pipe.jsonl")
    problem = refusal(tokenizer, launch(folder / name), folder)
    assert problem.field == "data.train[0].path"
    assert "there is no such file or folder" in problem.message


@pytest.mark.parametrize("path", ["../secret.jsonl", "link.jsonl", "/etc/passwd", "x/../a.jsonl"])
def test_path_that_climbs_out(folder: Path, tokenizer: Any, path: str) -> None:
    allowed = folder / "allowed"
    allowed.mkdir()
    write(folder / "secret.jsonl", shop())
    write(allowed / "a.jsonl", shop())
    (allowed / "link.jsonl").symlink_to(folder / "secret.jsonl")
    given = launch({"source": "folder", "path": path}, paths={"data_folders": [str(allowed)]})
    problem = refusal(tokenizer, given, folder, InvalidSpec)
    assert problem.field == "data.train[0].path"
    assert "not below a folder that may be read" in problem.message


def test_paths_below_an_allowed_folder(folder: Path, tokenizer: Any) -> None:
    write(folder / "a.jsonl", shop())
    paths = {"data_folders": [str(folder)]}
    for number, path in enumerate(("a.jsonl", str(folder / "a.jsonl"))):
        given = launch({"source": "folder", "path": path}, paths=paths)
        assert prepare(given, folder / f"p{number}", tokenizer).rows_kept == 20


def test_link_that_leads_out_of_a_data_folder(folder: Path, tokenizer: Any) -> None:
    data = folder / "data"
    data.mkdir()
    (data / "a.jsonl").symlink_to(write(folder / "secret.jsonl", shop()))
    given = launch({"source": "folder", "path": str(data)}, paths={"data_folders": [str(data)]})
    problem = refusal(tokenizer, given, folder, InvalidSpec)
    assert "a link that leads out of the folder" in problem.message


def test_plain_text_has_no_turns(folder: Path, tokenizer: Any) -> None:
    path = write(folder / "a.jsonl", [{"text": "hello"}])
    given = launch(path, task={"loss_on": "assistant"})
    problem = refusal(tokenizer, given, folder, InvalidSpec)
    assert problem.field == "task.loss_on"


# Packing and lint


def test_packed_rows_hold_whole_samples(folder: Path, tokenizer: Any) -> None:
    path = write(folder / "a.jsonl", [turns("q" * (i % 7), "a" * (1 + i % 11)) for i in range(50)])
    prepare(launch(path), folder / "plain", tokenizer)
    given = launch(path, task={"max_length": 128, "packing": True})
    report = prepare(given, folder / "prepared", tokenizer)
    packed = read(folder / "prepared" / "train.arrow")
    samples = []
    for row in packed:
        assert len(row["input_ids"]) == len(row["labels"]) == len(row["position_ids"]) <= 128
        starts = [i for i, p in enumerate(row["position_ids"]) if p == 0]
        for start, end in zip(starts, [*starts[1:], len(row["input_ids"])], strict=True):
            assert row["position_ids"][start:end] == list(range(end - start))
            # The sample before must not be asked for this one's first token.
            assert row["labels"][start] == -100
            samples.append({k: row[k][start:end] for k in ("input_ids", "labels")})
    plain = read(folder / "plain" / "train.arrow")
    assert sorted(samples, key=str) == sorted(plain, key=str)
    assert (report.train_rows, report.train_samples) == (len(packed), 50)
    # First fit leaves at most one row less than half full.
    assert sum(len(r["input_ids"]) < 64 for r in packed) <= 1


def test_lint_warns_of_duplicates_and_one_answer(folder: Path, tokenizer: Any) -> None:
    rows = [turns(f"q {i // 2}", "always this") for i in range(12)]
    report = prepare(launch(write(folder / "a.jsonl", rows)), folder / "prepared", tokenizer)
    assert [w["code"] for w in report.warnings] == ["duplicate_rows", "identical_answers"]
    assert report.warnings[0]["message"] == "6 of 12 training rows repeat another one"


def test_a34_keys_of_messages_that_nothing_reads_are_told(folder: Path, tokenizer: Any) -> None:
    rows = shop(3)
    rows[1]["messages"][1]["reasoning"] = "because"
    rows[2]["messages"][1]["name"] = None
    report = prepare(launch(write(folder / "a.jsonl", rows)), folder / "prepared", tokenizer)
    assert report.warnings == [
        {
            "code": "ignored_keys",
            "message": "data.train[0]: `reasoning` of its messages are not read",
        }
    ]


# The key


def test_key_changes_with_what_changes_the_result(folder: Path, tokenizer: Any) -> None:
    model = folder / "model"
    tokenizer.save_pretrained(model)
    path = write(folder / "a.jsonl", shop())
    base = content_key(launch(path), model)
    assert content_key(launch(path, training={"learning_rate": 1.0}), model) == base
    assert content_key(launch(path, training={"seed": 7}), model) == base
    split = {"validation": {"split_ratio": 0.5}}
    others = [
        content_key(launch(path, task={"max_length": 64}), model),
        content_key(launch(path, data={"over_length": "drop"}), model),
        content_key(launch({"source": "folder", "path": str(path), "num_samples": 3}), model),
        content_key(launch(path, data=split), model),
        content_key(launch(path, data=split, training={"seed": 7}), model),
    ]
    write(folder / "a.jsonl", shop(21))
    others.append(content_key(launch(path), model))
    write(folder / "a.jsonl", shop())
    (model / "chat_template.jinja").write_text(chat.MARKED)
    others.append(content_key(launch(path), model))
    assert len({base, *others}) == len(others) + 1


# As a process


def spec_file(folder: Path, tokenizer: Any, train: Path) -> Path:
    tokenizer.save_pretrained(folder / "model")
    given = launch(train, model={"source": "folder", "name_or_path": str(folder / "model")})
    path = folder / "spec.json"
    path.write_text(given.spec.model_dump_json())
    return path


def command(spec: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "trainer_core", "prepare", str(spec), "--out", str(out)]


def test_command_prepares_without_torch(folder: Path, tokenizer: Any) -> None:
    spec = spec_file(folder, tokenizer, write(folder / "a.jsonl", shop()))
    code = (
        "import sys, pathlib\n"
        "from trainer_core.prepare import prepare_command\n"
        "assert prepare_command(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    arguments = [sys.executable, "-c", code, str(spec), str(folder / "prepared")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    report = read_report(folder / "prepared")
    assert report is not None
    assert (
        report.data_hash == prepare(launch(folder / "a.jsonl"), folder / "x", tokenizer).data_hash
    )


def test_sigterm_leaves_nothing(folder: Path, tokenizer: Any) -> None:
    spec = spec_file(folder, tokenizer, write(folder / "a.jsonl", shop(40_000)))
    out = folder / "prepared"
    with subprocess.Popen(command(spec, out), stderr=subprocess.PIPE) as process:
        wait_until(lambda: list(folder.glob("prepared.tmp-*/staging/train.arrow")))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 75
    assert {p.name for p in folder.iterdir()} == {"a.jsonl", "model", "spec.json"}


def test_two_processes_prepare_one_folder_once(folder: Path, tokenizer: Any) -> None:
    spec = spec_file(folder, tokenizer, write(folder / "a.jsonl", shop(3_000)))
    out = folder / "prepared"
    processes = [subprocess.Popen(command(spec, out), stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [p.returncode for p in processes] == [0, 0], errors
    assert verify(out)
    assert {p.name for p in folder.iterdir()} == {"a.jsonl", "model", "spec.json", "prepared"}
