//! Encoding and decoding of a conversation of 1,000 messages of about 500 bytes. Throughput is in encoded bytes.

#![expect(clippy::expect_used, reason = "a benchmark without its data cannot run")]

use std::hint::black_box;
use std::time::Duration;

use checkpoint_core::Value;
use checkpoint_core::python::{
    AiMessage, Fields, HumanMessage, Message, ToolCall, ToolMessage, UsageMetadata,
};
use checkpoint_core::serde::{from_msgpack, json, to_msgpack};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Tagged {
    Human { content: String, id: String, name: Option<String> },
    Ai { content: String, id: String, tool_calls: Vec<Call>, usage_metadata: Option<Usage> },
    Tool { content: String, id: String, tool_call_id: String, status: String },
}

/// A message of an application without tagged enums.
#[derive(Debug, Serialize, Deserialize)]
struct Plain {
    role: String,
    content: String,
    id: String,
    #[serde(default)]
    tool_calls: Vec<Call>,
    #[serde(default)]
    usage_metadata: Option<Usage>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Call {
    name: String,
    id: String,
    args: Arguments,
}

#[derive(Debug, Serialize, Deserialize)]
struct Arguments {
    query: String,
    limit: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[expect(clippy::struct_field_names, reason = "the names are the format's")]
struct Usage {
    input_tokens: u32,
    output_tokens: u32,
    total_tokens: u32,
}

fn text(i: usize) -> String {
    let words =
        ["checkpoint", "of", "a", "thread", "is", "what", "the", "agent", "knows", "— naïvely", "so far"];
    (0..70).map(|k| words[(i * 7 + k * k) % words.len()]).collect::<Vec<_>>().join(" ")
}

fn messages() -> Vec<Message> {
    let message = |i: usize| -> Message {
        let id = format!("{i:08x}-5b1c-4d0e-9f33-0a1b2c3d4e5f");
        match i % 4 {
            0 | 2 => HumanMessage::new(text(i)).with_id(id).into(),
            1 => {
                let args = [("query", Value::from("weather in Paris")), ("limit", 5_i64.into())];
                let call = ToolCall {
                    name: "search".into(),
                    args: args.into_iter().map(|(name, value)| (name.into(), value)).collect(),
                    id: Some(format!("call_{i:020}")),
                    extra: Fields::new(),
                };
                let usage = UsageMetadata {
                    input_tokens: 812,
                    output_tokens: 96,
                    total_tokens: 908,
                    ..Default::default()
                };
                AiMessage { tool_calls: vec![call], usage_metadata: Some(usage), ..AiMessage::new(text(i)) }
                    .with_id(id)
                    .into()
            }
            _ => ToolMessage::new(text(i), format!("call_{:020}", i - 2)).with_id(id).into(),
        }
    };
    (0..1_000).map(message).collect()
}

fn plain(messages: &[u8]) -> Vec<Plain> {
    #[derive(Deserialize)]
    struct Source {
        r#type: String,
        content: String,
        id: String,
        #[serde(default)]
        tool_calls: Vec<Call>,
        #[serde(default)]
        usage_metadata: Option<Usage>,
    }
    let source: Vec<Source> = from_msgpack(messages).expect("messages decode");
    let plain = |Source { r#type, content, id, tool_calls, usage_metadata }| Plain {
        role: r#type,
        content,
        id,
        tool_calls,
        usage_metadata,
    };
    source.into_iter().map(plain).collect()
}

fn codec(criterion: &mut Criterion) {
    let messages = messages();
    let python = to_msgpack(&messages).expect("messages encode");
    let plain = plain(&python);
    let structs = to_msgpack(&plain).expect("structs encode");
    let values = Value::from_msgpack(&structs).expect("what was encoded decodes");
    let text = json::to_string(&values, json::Style::Plain).expect("plain maps are JSON");
    let tagged: Vec<Tagged> = from_msgpack(&python).expect("messages fit the enum");
    let tagged_bytes = to_msgpack(&tagged).expect("the enum encodes");

    let mut group = criterion.benchmark_group("encode 1,000 messages");
    group.throughput(Throughput::Bytes(structs.len() as u64));
    group.bench_function("structs", |bench| bench.iter(|| to_msgpack(black_box(&plain))));
    group.bench_function("Value maps", |bench| bench.iter(|| black_box(&values).to_msgpack()));
    group.throughput(Throughput::Bytes(tagged_bytes.len() as u64));
    group.bench_function("tagged enum", |bench| bench.iter(|| to_msgpack(black_box(&tagged))));
    group.throughput(Throughput::Bytes(python.len() as u64));
    group.bench_function("python::Message", |bench| bench.iter(|| to_msgpack(black_box(&messages))));
    group.finish();

    let mut group = criterion.benchmark_group("decode 1,000 messages");
    group.throughput(Throughput::Bytes(structs.len() as u64));
    group.bench_function("structs", |bench| bench.iter(|| from_msgpack::<Vec<Plain>>(black_box(&structs))));
    group.bench_function("Value maps", |bench| bench.iter(|| Value::from_msgpack(black_box(&structs))));
    group.throughput(Throughput::Bytes(python.len() as u64));
    group.bench_function("tagged enum from Python's messages", |bench| {
        bench.iter(|| from_msgpack::<Vec<Tagged>>(black_box(&python)));
    });
    group.bench_function("structs from Python's messages", |bench| {
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only decoded")]
        struct Content {
            content: String,
            id: String,
        }
        bench.iter(|| from_msgpack::<Vec<Content>>(black_box(&python)));
    });
    group.bench_function("python::Message", |bench| {
        bench.iter(|| from_msgpack::<Vec<Message>>(black_box(&python)));
    });
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("JSON into Value", |bench| bench.iter(|| json::parse(black_box(text.as_bytes()))));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .measurement_time(Duration::from_secs(2))
        .warm_up_time(Duration::from_millis(500))
        .sample_size(20);
    targets = codec
}
criterion_main!(benches);
