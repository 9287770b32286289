"""B34: chat templates of users are programs; none of them gets out, stays for ever or takes all."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.services import ROOT
from tests.trainer_core import chat
from trainer_core.data import leash
from trainer_core.data.jinja import syntax_problem
from trainer_core.data.rows import BadRow
from trainer_core.data.templates import Template
from trainer_core.errors import InvalidSpec
from worker.endings import ending_of
from worker.process import Exit

ASK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
# Doubling a text or a number 99,999 times; the sandbox's own limit is on `range` alone.
DOUBLING = (
    "{%% set ns = namespace(x=%s) %%}{%% for a in range(99999) %%}"
    "{%% set ns.x = ns.x %s ns.x %%}{%% endfor %%}"
)
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def render(text: str) -> str:
    return Template(text, {"bos_token": "<s>"}).render([*ASK])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (ENDLESS, "runs longer than 5 s"),
        (DOUBLING % ("'abcdefgh'", "~"), "needs more than 1024 MiB"),
        ("{{ '%9999999999d' % messages|length }}", "needs more than 1024 MiB"),
        ("{{ '{:>3000000000}'.format(messages|length) }}", "needs more than 1024 MiB"),
        ("{{ 'a'.center(9999999999) }}", "needs more than 1024 MiB"),
        (
            "{% for a in range(99999) %}{{ messages[0].content * 1000 }}{% endfor %}",
            "writes more than 16777216 characters",
        ),
    ],
    ids=["loops", "doubling", "percent", "format", "constant", "output"],
)
def test_b34_a_template_that_does_not_end_or_takes_everything_is_ended(
    text: str, what: str
) -> None:
    began = time.process_time()
    with pytest.raises(InvalidSpec) as refused:
        render(text)
    assert refused.value.field == "task.chat_template"
    assert what in refused.value.message
    assert "task.chat_template" in refused.value.message
    assert time.process_time() - began < 4 * leash.SECONDS
    assert render("{{ bos_token }}") == "<s>"  # the next one runs as if nothing had been


@pytest.mark.parametrize(
    "text",
    ["{{ 9**(9**9) }}", "{{ 2**(messages|length * 99999999) }}", DOUBLING % ("3", "*")],
    ids=["constant", "power", "squares"],
)
def test_b34_numbers_that_no_timer_could_stop_are_refused_before(text: str) -> None:
    with pytest.raises(BadRow, match="a number grows too large"):
        render(text)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.environ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "{{ ''|attr('__class__') }}",
        "{{ messages.append({'role': 'user', 'content': 'x'}) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_b34_a_template_reaches_nothing_but_its_conversation(text: str) -> None:
    before = json.dumps(ASK)
    try:
        said = render(text)
    except (BadRow, InvalidSpec):
        said = ""
    assert said == ""
    assert json.dumps(ASK) == before


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{% for m in messages %}", "is not valid Jinja: line 1"),
        ("\n{{ 1 + }}", "is not valid Jinja: line 2"),
        ("{{ " + "(" * 20_000 + "}}", "is nested too deeply"),
        ("{% if a %}" * 5_000, "is nested too deeply"),
    ],
)
def test_b34_what_is_no_template_is_refused_by_its_syntax(text: str, what: str) -> None:
    assert what in str(syntax_problem(text))
    with pytest.raises(InvalidSpec, match=what):
        render(text)


def test_blocks_nested_more_deeply_than_python_can_are_a_wrong_template() -> None:
    text = "{% for m in messages %}" * 25 + "{% endfor %}" * 25
    with pytest.raises(InvalidSpec, match="nested too deeply"):
        render(text)


def test_only_the_main_thread_can_be_stopped_so_only_it_renders() -> None:
    errors: list[Exception] = []

    def run() -> None:
        try:
            render("{{ bos_token }}")
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in str(errors)


STUCK = """
import trainer_core.data.leash as leash
leash._LAST_SECONDS = 0.2
with leash.held():
    3 ** (3 ** 19)  # one step of the interpreter that takes hours
"""


def test_b34_a_step_that_cannot_be_interrupted_ends_its_process_by_a_signal_with_a_reason() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == -signal.SIGVTALRM
    ending = ending_of(Exit(done.returncode), None, oom_killed=False)
    assert ending is not None
    assert (ending.reason, ending.message.partition(":")[0]) == (
        "invalid_spec",
        "task.chat_template",
    )


@pytest.mark.train
@pytest.mark.parametrize(
    "text",
    [
        *(chat.LLAMA3, chat.QWEN, chat.LLAMA2, chat.THINKING, chat.MARKED, chat.ENDLESS),
        "{{ messages|tojson }}{{ messages|tojson(indent=2) }}{{ {'b': 1, 'a': '<'}|tojson }}",
        "  {% for m in messages %}\n    {% if loop.first %}\n{% continue %}{% endif %}\n"
        "{{ m.role }}{% break %}\n  {% endfor %}\n",
        "{% for m in messages %}{{ m.role }}{% generation %}{{ m.content }}\n"
        "{%- endgeneration %}{% endfor %}{{ tools is none }}{{ strftime_now('%Y') }}",
    ],
)
def test_templates_render_as_transformers_renders_them(text: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    variables: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}
    for prompt in (False, True):
        [theirs], _ = render_jinja_template(
            [ASK], chat_template=text, add_generation_prompt=prompt, **variables
        )
        assert Template(text, variables).render([*ASK], prompt=prompt) == theirs
    if "generation %" in text:
        [theirs], [spans] = render_jinja_template(
            [ASK], chat_template=text, return_assistant_tokens_mask=True, **variables
        )
        assert Template(text, variables).render_marked([*ASK]) == (theirs, spans)


@pytest.mark.train
def test_b34_a_preparation_with_an_endless_template_ends_within_seconds(tmp_path: Path) -> None:
    """As a worker runs it: a process with a launch, which leaves its reason in `exit.json`."""
    model = tmp_path / "모델 model"
    chat.qwen().save_pretrained(model)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"messages": ASK}) + "\n")
    launch = {
        "attempt_id": "a",
        "job_id": "j",
        "job_name": "n",
        "paths": {"work": str(tmp_path)},
        "spec": {
            "task": {"type": "sft", "chat_template": ENDLESS},
            "model": {"source": "folder", "name_or_path": str(model)},
            "data": {"train": [{"source": "folder", "path": str(rows)}]},
        },
    }
    (tmp_path / "launch.json").write_text(json.dumps(launch))
    arguments = ["prepare", str(tmp_path / "launch.json"), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "trainer_core", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 64, done.stderr
    said = json.loads((tmp_path / "exit.json").read_text())
    assert said["reason"] == "invalid_spec"
    assert "task.chat_template" in said["message"]
    assert not (tmp_path / "out").exists()
