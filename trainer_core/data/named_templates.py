"""Chat templates by name, for tokenizers that have none, or another one than is wanted.

Each writes contents as they are. `tokens` are control tokens that a tokenizer must have: written as
plain letters they would steer nothing.
"""

from dataclasses import dataclass

# Tools as Hermes and Qwen write them; nothing of it is there in conversations without tools.
_TOOLS = (
    "{%- if tools %}"
    "{{- '<|im_start|>system\\n' }}"
    "{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] + '\\n\\n' }}{%- endif %}"
    "{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n"
    "You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}"
    "{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}"
    "{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and "
    "arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>\' + END + \'\\n\' }}'
    "{%- endif %}"
)
CHATML = (
    _TOOLS + "{%- for message in messages -%}"
    "{%- if message['role'] == 'tool' -%}"
    "{%- if loop.first or messages[loop.index0 - 1]['role'] != 'tool' -%}"
    "{{ '<|im_start|>user' }}{%- endif -%}"
    "{{ '\\n<tool_response>\\n' + message['content'] + '\\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1]['role'] != 'tool' -%}"
    "{{ END + '\\n' }}{%- endif -%}"
    "{%- elif message['tool_calls'] -%}"
    "{{ '<|im_start|>' + message['role'] }}"
    "{%- if message['content'] -%}{{ '\\n' + message['content'] }}{%- endif -%}"
    "{%- for call in message['tool_calls'] -%}"
    "{{ '\\n<tool_call>\\n{\"name\": ' + (call['function']['name'] | tojson) + ', \"arguments\": '"
    " + (call['function']['arguments'] | tojson) + '}\\n</tool_call>' }}"
    "{%- endfor -%}"
    "{{ END + '\\n' }}"
    "{%- elif not (tools and loop.first and message['role'] == 'system') -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + END + '\\n' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
_LLAMA3 = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    " + message['content'] + '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
_GEMMA = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] not in ('user', 'assistant') %}"
    "{{- raise_exception('the template gemma knows user and assistant alone') }}{%- endif %}"
    "{{- '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') + '\\n'"
    " + message['content'] + '<end_of_turn>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"
)
_PHI3 = (
    "{%- for message in messages %}"
    "{{- '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)
_MISTRAL = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{- '[INST] ' + message['content'] + ' [/INST]' }}"
    "{%- elif message['role'] == 'assistant' %}{{- ' ' + message['content'] + eos_token }}"
    "{%- else %}{{- raise_exception('the template mistral knows user and assistant alone') }}"
    "{%- endif %}"
    "{%- endfor %}"
)
_ZEPHYR = (
    "{%- for message in messages %}"
    "{{- '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)
_ALPACA = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}"
    "{{- '### Instruction:\\n' + message['content'] + '\\n\\n' }}"
    "{%- elif message['role'] == 'assistant' %}"
    "{{- '### Response:\\n' + message['content'] + eos_token + '\\n\\n' }}"
    "{%- else %}{{- message['content'] + '\\n\\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '### Response:\\n' }}{%- endif %}"
)
_VICUNA = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{- 'USER: ' + message['content'] + ' ' }}"
    "{%- elif message['role'] == 'assistant' %}"
    "{{- 'ASSISTANT: ' + message['content'] + eos_token }}"
    "{%- else %}{{- message['content'] + ' ' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'ASSISTANT: ' }}{%- endif %}"
)


@dataclass(frozen=True)
class NamedTemplate:
    """A template's text, and the control tokens that it needs."""

    text: str
    tokens: tuple[str, ...] = ()


IM_END = "<|im_end|>"
NAMED: dict[str, NamedTemplate] = {
    "chatml": NamedTemplate(CHATML.replace("END", f"'{IM_END}'"), ("<|im_start|>", IM_END)),
    "llama3": NamedTemplate(_LLAMA3, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    "gemma": NamedTemplate(_GEMMA, ("<start_of_turn>", "<end_of_turn>")),
    "phi3": NamedTemplate(_PHI3, ("<|user|>", "<|assistant|>", "<|end|>")),
    "mistral": NamedTemplate(_MISTRAL),
    "zephyr": NamedTemplate(_ZEPHYR),
    "alpaca": NamedTemplate(_ALPACA),
    "vicuna": NamedTemplate(_VICUNA),
}
WORDS = ("auto", "tokenizer", *NAMED)
"""What `task.chat_template` may be beside a Jinja template."""
