"""The official Python client against a router: python client.py PART."""

import json
import sys
from typing import List, Optional

import openai
from pydantic import BaseModel

MODEL = "dsv4"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"城市": {"enum": ["北京", "Zürich"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
            "required": ["城市", "days"],
        },
    },
}
client = openai.OpenAI()
strict = client.with_options(max_retries=0)


def ask(text):
    return [{"role": "user", "content": text}]


def must(condition, *why):
    if not condition:
        raise AssertionError(why)


def fails(kind, **ask_for):
    try:
        strict.chat.completions.create(**{"model": MODEL, "messages": ask("a"), "max_tokens": 4, **ask_for})
    except kind as e:
        return e
    raise AssertionError((kind, ask_for))


def models():
    must(MODEL in [m.id for m in client.models.list()])
    must(client.models.retrieve(MODEL).id == MODEL)


def plain():
    whole = client.chat.completions.create(model=MODEL, messages=ask("Tell me."), max_tokens=40, temperature=0)
    must(whole.choices[0].message.role == "assistant" and whole.choices[0].message.content)
    must(whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, whole.usage)
    must(whole.usage.prompt_tokens_details.cached_tokens >= 0)
    for usage in (True, False):
        options = {"stream_options": {"include_usage": True}} if usage else {}
        text, finish, usages, ids = "", [], [], set()
        for chunk in client.chat.completions.create(
            model=MODEL, messages=ask("Tell me."), max_tokens=40, temperature=0, stream=True, **options
        ):
            ids.add(chunk.id)
            if chunk.usage:
                must(not chunk.choices)
                usages.append(chunk.usage)
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish += [choice.finish_reason] if choice.finish_reason else []
        must(text == whole.choices[0].message.content, text)
        must(finish == [whole.choices[0].finish_reason] and len(ids) == 1, finish, ids)
        must([u.completion_tokens for u in usages] == ([whole.usage.completion_tokens] if usage else []), usages)
    whole = client.completions.create(model=MODEL, prompt="Once", max_tokens=12, temperature=0)
    pieces = client.completions.create(model=MODEL, prompt="Once", max_tokens=12, temperature=0, stream=True)
    must("".join(p.choices[0].text for p in pieces) == whole.choices[0].text)


def tools():
    request = {"model": MODEL, "messages": ask("Weather?"), "tools": [WEATHER], "tool_choice": "required", "max_tokens": 400}
    whole = client.chat.completions.create(**request).choices[0]
    must(whole.finish_reason == "tool_calls" and whole.message.content is None, whole)
    calls = whole.message.tool_calls
    for call in calls:
        arguments = json.loads(call.function.arguments)
        must(call.function.name == "weather" and arguments["城市"] in ("北京", "Zürich") and 1 <= arguments["days"] <= 7, call)
    with client.chat.completions.stream(**request) as stream:
        final = stream.get_final_completion().choices[0]
    must(final.finish_reason == "tool_calls", final)
    must([c.function.arguments for c in final.message.tool_calls] == [c.function.arguments for c in calls], final)
    one = client.chat.completions.create(**request, parallel_tool_calls=False).choices[0].message.tool_calls
    must(len(one) == 1, one)
    history = request["messages"] + [whole.message.model_dump(exclude_none=True)]
    history += [{"role": "tool", "tool_call_id": c.id, "content": "晴"} for c in calls]
    after = client.chat.completions.create(model=MODEL, messages=history, tools=[WEATHER], tool_choice="none", max_tokens=9)
    must(after.choices[0].message.content and not after.choices[0].message.tool_calls, after)


class Step(BaseModel):
    text: str
    weight: Optional[int]


class Plan(BaseModel):
    title: str
    steps: List[Step]


def bound():
    parsed = client.chat.completions.parse(model=MODEL, messages=ask("Plan."), response_format=Plan, max_tokens=600)
    must(isinstance(parsed.choices[0].message.parsed, Plan), parsed)
    free = client.chat.completions.create(model=MODEL, messages=ask("Any."), response_format={"type": "json_object"}, max_tokens=600)
    must(isinstance(json.loads(free.choices[0].message.content), dict), free)


def errors():
    e = fails(openai.BadRequestError, n=2)
    must((e.param, e.code, e.type) == ("n", "unsupported", "invalid_request_error"), e.body)
    must(e.request_id and "n must be 1" in e.message, e.request_id, e.message)
    e = fails(openai.NotFoundError, model="another")
    must((e.param, e.code) == ("model", "model_not_found"), e.body)
    e = fails(openai.BadRequestError, max_tokens=600000, stream=True)
    must(e.code == "context_length_exceeded", e.body)
    e = fails(openai.BadRequestError, tools=[{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}])
    must(e.param == "tools[0].function.parameters.not", e.body)
    mine = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=ask("a"), max_tokens=1, extra_headers={"X-Request-Id": "mine-1"}
    )
    must(mine.headers["x-request-id"] == "mine-1", mine.headers)


def leaving():
    streams = [client.chat.completions.create(model=MODEL, messages=ask(f"long {i}"), max_tokens=4000, stream=True,
                                              extra_body={"ignore_eos": True}) for i in range(4)]
    for s in streams:
        next(s)
    e = fails(openai.InternalServerError)
    must(e.status_code == 503 and e.response.headers["retry-after"] == "1", e.body)
    for s in streams:
        s.close()
    client.with_options(max_retries=8).chat.completions.create(model=MODEL, messages=ask("next"), max_tokens=4)


def broken():
    finish = None
    try:
        for chunk in strict.chat.completions.create(model=MODEL, messages=ask("long"), max_tokens=4000, stream=True,
                                                    extra_body={"ignore_eos": True}):
            if chunk.choices[0].delta.content and finish is None:
                print("streaming", flush=True)
                finish = ""
            finish = chunk.choices[0].finish_reason or finish
    except openai.APIError as e:
        must(not finish and e.type == "pd_decode_error" and e.code, finish, e.body)
        return
    raise AssertionError("a broken stream ended like a whole one")


PARTS = {"answers": [models, plain, tools, bound, errors, leaving], "broken": [broken]}
for part in PARTS[sys.argv[1]]:
    part()
    print(part.__name__, "ok", flush=True)
