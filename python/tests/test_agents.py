"""Agents as they are built: tools, approval by a person, summaries."""

from collections.abc import Sequence
from typing import Any, TypedDict

import pytest
from conftest import Flow
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolCall, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from langmem.short_term import RunningSummary, SummarizationNode


class ToolCaller(GenericFakeChatModel):
    """A model that says what it was given to say, and takes tools."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self


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
