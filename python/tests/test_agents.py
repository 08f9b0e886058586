"""Agents as they are built: tools, approval by a person, summaries."""

from collections.abc import Sequence
from typing import Any, TypedDict

import pytest
from conftest import Flow
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentState,
    HumanInTheLoopMiddleware,
    SummarizationMiddleware,
    after_model,
    before_model,
)
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolCall, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.runtime import Runtime
from langgraph.types import Command
from langmem.short_term import RunningSummary, SummarizationNode


class ToolCaller(GenericFakeChatModel):
    """A model that says what it was given to say, and takes tools."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        # A binding, as models have it.
        return self.bind()


def model(*answers: AIMessage | str) -> ToolCaller:
    return ToolCaller(messages=iter(answers))


def calls(name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[ToolCall(name=name, args=arguments, id=f"call-{name}")])


@pytest.fixture
def sent() -> list[str]:
    return []


@pytest.fixture
def tools(sent: list[str]) -> list[Any]:
    @tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    @tool
    def send_mail(to: str) -> str:
        """Sends a mail."""
        sent.append(to)
        return f"sent to {to}"

    return [weather, send_mail]


def test_an_agent_with_tools_remembers(
    saver: Any, flow: Flow, config: dict[str, Any], tools: list[Any]
) -> None:
    said = [calls("weather", city="Rome"), "It is sunny.", "You asked about Rome."]
    agent = create_agent(model(*said), tools, checkpointer=saver)
    flow(agent).invoke({"messages": [HumanMessage("weather in Rome?")]}, config)
    # A new agent object: all that it knows of the thread is in the checkpoints.
    agent = create_agent(model(said[-1]), tools, checkpointer=saver)
    messages = flow(agent).invoke({"messages": [HumanMessage("what did I ask?")]}, config)["messages"]
    assert [type(message).__name__ for message in messages] == [
        "HumanMessage",
        "AIMessage",
        "ToolMessage",
        "AIMessage",
        "HumanMessage",
        "AIMessage",
    ]
    assert messages[1].tool_calls[0]["args"] == {"city": "Rome"}
    assert (messages[2].content, messages[2].tool_call_id) == ("sunny in Rome", "call-weather")
    assert flow(agent).get_state(config).values["messages"] == messages


def approving(saver: Any, tools: list[Any], *answers: Any) -> Any:
    middleware = HumanInTheLoopMiddleware(interrupt_on={"send_mail": True})
    return create_agent(model(*answers), tools, middleware=[middleware], checkpointer=saver)


DECISIONS = {
    "approve": ({"type": "approve"}, ["ann"]),
    "edit": (
        {"type": "edit", "edited_action": {"name": "send_mail", "args": {"to": "bob"}}},
        ["bob"],
    ),
    "reject": ({"type": "reject", "message": "not to ann"}, []),
}


@pytest.mark.parametrize(("decision", "expected"), DECISIONS.values(), ids=list(DECISIONS))
def test_a_person_decides(
    saver: Any,
    flow: Flow,
    config: dict[str, Any],
    tools: list[Any],
    sent: list[str],
    decision: dict[str, Any],
    expected: list[str],
) -> None:
    agent = approving(saver, tools, calls("send_mail", to="ann"))
    flow(agent).invoke({"messages": [HumanMessage("mail ann")]}, config)
    assert sent == []
    # Somebody else comes back to it, with another agent object.
    agent = approving(saver, tools, "done")
    state = flow(agent).get_state(config)
    [asked] = state.interrupts
    [action] = asked.value["action_requests"]
    assert (action["name"], action["args"]) == ("send_mail", {"to": "ann"})
    messages = flow(agent).invoke(Command(resume={"decisions": [decision]}), config)["messages"]
    assert sent == expected
    assert messages[-1].content == "done"
    answered = [message for message in messages if isinstance(message, ToolMessage)]
    assert len(answered) == 1
    assert (f"sent to {expected[0]}" if expected else "not to ann") in answered[0].content
    assert flow(agent).get_state(config).values["messages"] == messages


def test_a_person_decides_on_several_actions_at_once(
    saver: Any, flow: Flow, config: dict[str, Any], tools: list[Any], sent: list[str]
) -> None:
    asked = [ToolCall(name="send_mail", args={"to": name}, id=name) for name in ("ann", "bob", "cleo")]
    agent = approving(saver, tools, AIMessage("", tool_calls=asked))
    flow(agent).invoke({"messages": [HumanMessage("mail all")]}, config)
    agent = approving(saver, tools, "done")
    decisions = [DECISIONS[name][0] for name in ("approve", "edit", "reject")]
    messages = flow(agent).invoke(Command(resume={"decisions": decisions}), config)["messages"]
    assert sorted(sent) == ["ann", "bob"]
    answers = {message.tool_call_id: message.content for message in messages if isinstance(message, ToolMessage)}
    assert answers["ann"] == "sent to ann"
    assert "sent to bob" in answers["bob"]
    assert "not to ann" in answers["cleo"]
    assert flow(agent).get_state(config).values["messages"] == messages


def test_middleware_summarises_old_messages(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    """The summary replaces the messages in the state, so that the next turn reads it from the checkpoint."""

    def turn(said: str, *summaries: str) -> list[AnyMessage]:
        middleware = SummarizationMiddleware(model(*summaries), trigger=("messages", 4), keep=("messages", 2))
        agent = create_agent(model(f"answer to {said}"), middleware=[middleware], checkpointer=saver)
        messages = flow(agent).invoke({"messages": [HumanMessage(said)]}, config)["messages"]
        assert flow(agent).get_state(config).values["messages"] == messages
        return messages

    assert len(turn("one")) == 2
    assert len(turn("two")) == 4
    # Five messages before the model is called: three are summarised.
    messages = turn("three", "ONE, AND TWO")
    assert "ONE, AND TWO" in str(messages[0].content)
    assert [message.content for message in messages[1:]] == ["answer to two", "three", "answer to three"]
    # The summary is a message like any other, and is summarised in its turn.
    messages = turn("four", "ALL OF IT")
    assert "ALL OF IT" in str(messages[0].content)
    assert [message.content for message in messages[1:]] == ["answer to three", "four", "answer to four"]
    # What was is still in the history of the thread.
    history = flow(create_agent(model(), checkpointer=saver)).get_state_history(config)
    seen = {str(message.content) for state in history for message in state.values.get("messages", [])}
    assert {"one", "answer to one", "two"} <= seen


def test_middleware_trims_messages(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    seen: list[list[str]] = []

    @before_model
    def keep_two(state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        messages = state["messages"]
        if len(messages) <= 3:
            return None
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), messages[0], *messages[-2:]]}

    @after_model
    def note(state: AgentState[Any], runtime: Runtime[Any]) -> None:
        seen.append([str(message.content) for message in state["messages"]])

    for turn in range(4):
        agent = create_agent(model(f"answer {turn}"), middleware=[keep_two, note], checkpointer=saver)
        flow(agent).invoke({"messages": [HumanMessage(f"turn {turn}")]}, config)
    assert seen[-1] == ["turn 0", "answer 2", "turn 3", "answer 3"]
    messages = flow(agent).get_state(config).values["messages"]
    assert [message.content for message in messages] == seen[-1]


class Summarized(MessagesState):
    context: dict[str, RunningSummary]


class ModelInput(TypedDict):
    summarized_messages: list[AnyMessage]
    context: dict[str, RunningSummary]


def test_langmem_summarises_across_turns(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    def chat(seen: list[list[AnyMessage]], summaries: list[str], answer: str) -> Any:
        def call_model(state: ModelInput) -> dict[str, Any]:
            seen.append(state["summarized_messages"])
            return {"messages": [AIMessage(answer)]}

        summarise = SummarizationNode(
            model=model(*summaries),
            max_tokens=60,
            max_tokens_before_summary=40,
            max_summary_tokens=20,
            token_counter=lambda messages: sum(len(str(message.content).split()) for message in messages),
        )
        builder = StateGraph(Summarized)
        builder.add_node("summarise", summarise)
        builder.add_node("call_model", call_model)
        builder.add_edge(START, "summarise")
        builder.add_edge("summarise", "call_model")
        return flow(builder.compile(checkpointer=saver))

    seen: list[list[AnyMessage]] = []
    long = "word " * 18
    for turn in range(3):
        graph = chat(seen, ["SUMMARY"], f"answer {turn}")
        graph.invoke({"messages": [HumanMessage(f"{long}{turn}")]}, config)
    state = graph.get_state(config)
    summary = state.values["context"]["running_summary"]
    assert isinstance(summary, RunningSummary)
    assert summary.summary == "SUMMARY"
    # The summary stands for messages of turns before, which were read from the checkpoint.
    identifiers = [message.id for message in state.values["messages"]]
    assert len(identifiers) == 6
    assert summary.summarized_message_ids < set(identifiers)
    assert any("SUMMARY" in str(message.content) for message in seen[-1])
    assert len(seen[-1]) < 5
    # The turn after that one goes on from the stored summary, and asks no model for another.
    graph = chat(seen, [], "short")
    graph.invoke({"messages": [HumanMessage("hi")]}, config)
    assert any("SUMMARY" in str(message.content) for message in seen[-1])


def test_messages_are_removed(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    def trim(state: MessagesState) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=str(message.id)) for message in state["messages"][:-2]]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(f"answer {len(state['messages'])}")]})
    builder.add_node("trim", trim)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "trim")
    graph = flow(builder.compile(checkpointer=saver))
    for turn in range(3):
        graph.invoke({"messages": [HumanMessage(f"turn {turn}")]}, config)
    contents = [message.content for message in graph.get_state(config).values["messages"]]
    assert contents == ["turn 2", "answer 3"]
