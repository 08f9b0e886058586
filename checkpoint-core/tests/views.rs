//! Typed views, in addition to Python's golden values: plain values, other formats, old and new versions.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use checkpoint_core::python::{
    self, AiMessage, Command, Date, DateTime, DeltaSnapshot, HumanMessage, Interrupt, Message, Object, Path,
    Send, Set, TimeDelta, Uuid,
};
use checkpoint_core::serde::{from_msgpack, json, to_msgpack};
use checkpoint_core::{ErrorKind, Value};
use chrono::{FixedOffset, NaiveDate, TimeZone};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

fn object(code: i8, module: &str, name: &str, contents: Value) -> Value {
    let trailing = if code == 5 { vec!["model_validate_json".into()] } else { vec![] };
    Object { code, module: module.into(), name: name.into(), contents, trailing }.to_value().unwrap()
}

fn map(entries: &[(&str, Value)]) -> Value {
    Value::Map(entries.iter().map(|(key, value)| ((*key).into(), value.clone())).collect())
}

fn read<T: DeserializeOwned>(value: &Value) -> checkpoint_core::Result<T> {
    from_msgpack(&value.to_msgpack().unwrap())
}

fn written<T: Serialize>(value: &T) -> Value {
    Value::from_msgpack(&to_msgpack(value).unwrap()).unwrap()
}

#[test]
fn views_read_plain_values() {
    assert_eq!(read::<DateTime>(&"2026-01-02 03:04".into()).unwrap().as_str(), "2026-01-02 03:04");
    assert_eq!(read::<DateTime>(&"soon".into()).unwrap_err().kind(), ErrorKind::Codec);
    assert_eq!(read::<Date>(&"2026-02-28".into()).unwrap().to_string(), "2026-02-28");
    assert_eq!(read::<Set<i64>>(&vec![1_i64].into()).unwrap(), Set(vec![1]));
    assert_eq!(read::<Path>(&"/a//b/./c".into()).unwrap().parts(), ["/", "a", "b", "c"]);
    let dashed = "12345678-1234-5678-1234-567812345678";
    assert_eq!(read::<Uuid>(&dashed.into()).unwrap().to_string(), dashed);
    assert_eq!(read::<DeltaSnapshot<i64>>(&7_i64.into()).unwrap(), DeltaSnapshot(7));
    let message = map(&[("type", "ai".into()), ("content", "yes".into())]);
    assert_eq!(read::<Message>(&message).unwrap(), AiMessage::new("yes").into());
    assert!(read::<HumanMessage>(&message).is_err(), "another type");
    let unknown = map(&[("type", "martian".into())]);
    assert_eq!(read::<Message>(&unknown).unwrap(), Message::Other(unknown));
}

#[test]
fn views_are_plain_values_in_other_formats() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct State {
        when: DateTime,
        id: Uuid,
        messages: Vec<Message>,
        send: Send,
        seen: Set<i64>,
    }
    let state = State {
        when: DateTime::parse("2026-01-02T03:04:05+00:00").unwrap(),
        id: Uuid(uuid::Uuid::from_u128(5)),
        messages: vec![HumanMessage::new("hi").with_id("1").into()],
        send: Send::new("node", 1_i64.into()),
        seen: Set(vec![3]),
    };
    let text = serde_json::to_value(&state).unwrap();
    assert_eq!(
        text,
        json!({
            "when": "2026-01-02T03:04:05+00:00",
            "id": "00000000000000000000000000000005",
            "messages": [{
                "content": "hi", "additional_kwargs": {}, "response_metadata": {}, "type": "human", "name": null,
                "id": "1",
            }],
            "send": ["node", 1],
            "seen": [3],
        })
    );
    assert_eq!(serde_json::from_value::<State>(text).unwrap(), state);
    assert_eq!(from_msgpack::<State>(&to_msgpack(&state).unwrap()).unwrap(), state);
}

#[test]
fn views_work_where_serde_buffers() {
    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(untagged)]
    enum Answer {
        When(DateTime),
        Said(Box<HumanMessage>),
        Text(String),
    }
    let when = DateTime::parse("2026-01-02T03:04:05").unwrap();
    assert_eq!(read::<Answer>(&written(&when)).unwrap(), Answer::When(when));
    assert_eq!(read::<Answer>(&"tomorrow".into()).unwrap(), Answer::Text("tomorrow".into()));
    let said = HumanMessage::new("hi");
    assert_eq!(read::<Answer>(&written(&said)).unwrap(), Answer::Said(said.into()));
}

#[test]
fn fields_of_other_versions_are_kept() {
    let class = "langchain_core.messages.human";
    let old = object(
        5,
        class,
        "HumanMessage",
        map(&[
            ("content", "hi".into()),
            ("additional_kwargs", map(&[])),
            ("response_metadata", map(&[])),
            ("type", "human".into()),
            ("name", Value::Nil),
            ("id", Value::Nil),
            ("example", false.into()),
        ]),
    );
    let message: HumanMessage = read(&old).unwrap();
    assert_eq!(message.extra["example"], false.into());
    assert_eq!(written(&message), old);
    assert_eq!(written(&read::<Message>(&old).unwrap()), old);

    let odd = object(5, class, "HumanMessage", map(&[("content", "hi".into()), ("id", 5_i64.into())]));
    assert_eq!(
        read::<Message>(&odd).unwrap(),
        Message::Other(odd),
        "a value that does not match is kept unchanged"
    );

    let contents = [("value", 1_i64.into()), ("id", "x".into()), ("response_schema", map(&[]))];
    let interrupt = object(2, "langgraph.types", "Interrupt", map(&contents));
    assert_eq!(written(&read::<Interrupt>(&interrupt).unwrap()), interrupt);
    let contents = [("value", 1_i64.into()), ("resumable", true.into()), ("ns", Value::Nil)];
    let interrupt = object(2, "langgraph.types", "Interrupt", map(&contents));
    assert_eq!(written(&read::<Interrupt<i64>>(&interrupt).unwrap()), interrupt);

    let empty = read::<Command>(&written(&Command::default())).unwrap();
    assert_eq!(empty.goto, Value::Array(vec![]));
    let old_send = object(1, "langgraph.constants", "Send", Value::Array(vec!["n".into(), 1_i64.into()]));
    assert_eq!(read::<Send>(&old_send).unwrap(), Send::new("n", 1_i64.into()));
    for (module, name, parts, text) in [
        ("pathlib._local", "PosixPath", &["/", "a"][..], "/a"),
        ("pathlib", "WindowsPath", &["C:\\", "a", "b"], "C:\\a\\b"),
    ] {
        let parts: Vec<Value> = parts.iter().map(|part| (*part).into()).collect();
        let path = object(1, module, name, parts.into());
        assert_eq!(read::<Path>(&path).unwrap().to_string(), text);
        assert_eq!(python::to_json(&path), text);
    }
}

#[test]
fn times_convert() {
    let zone = FixedOffset::west_opt(3 * 3600 + 30 * 60).unwrap();
    let time = zone.with_ymd_and_hms(2026, 1, 2, 3, 4, 5).unwrap() + chrono::TimeDelta::nanoseconds(6_007);
    let view = DateTime::from(time);
    assert_eq!(view.as_str(), "2026-01-02T03:04:05.000006-03:30");
    assert_eq!(view.to_chrono().unwrap(), time - chrono::TimeDelta::nanoseconds(7));
    let odd_offset = FixedOffset::east_opt(3661).unwrap().with_ymd_and_hms(2026, 1, 2, 3, 4, 5).unwrap();
    assert_eq!(DateTime::from(odd_offset).as_str(), "2026-01-02T03:04:05+01:01:01");
    assert_eq!(DateTime::from(odd_offset).to_chrono(), Some(odd_offset));
    let naive = NaiveDate::from_ymd_opt(999, 1, 2).unwrap().and_hms_opt(0, 0, 0).unwrap();
    assert_eq!(DateTime::from(naive).as_str(), "0999-01-02T00:00:00");
    assert_eq!((DateTime::from(naive).to_chrono(), DateTime::from(naive).to_naive()), (None, Some(naive)));
    for text in [
        "2026-13-01T00:00:00",
        "2026-01-01",
        "2026-01-01T00:00:00+25:00",
        "2026-01-01T0é",
        "é".repeat(9).as_str(),
    ] {
        assert_eq!(DateTime::parse(text).unwrap_err().kind(), ErrorKind::InvalidArgument, "{text}");
    }

    for (span, parts) in [
        (chrono::TimeDelta::microseconds(-1), (-1, 86_399, 999_999)),
        (chrono::TimeDelta::seconds(90_000), (1, 3_600, 0)),
        (chrono::TimeDelta::milliseconds(-86_400_500), (-2, 86_399, 500_000)),
    ] {
        let view = TimeDelta::from(span);
        assert_eq!((view.days, view.seconds, view.microseconds), parts);
        assert_eq!(view.to_chrono(), Some(span));
    }
    let huge = TimeDelta { days: i64::MAX, seconds: i64::MAX, microseconds: i64::MAX };
    assert_eq!(huge.to_chrono(), None);
    let zone = object(1, "datetime", "timezone", vec![written(&huge)].into());
    let time = object(2, "datetime", "time", map(&[("hour", 1_i64.into()), ("tzinfo", zone)]));
    assert_eq!(python::to_json(&time), "01:00:00");
}

#[test]
fn years_that_python_lacks_are_refused() {
    for year in [-1, 0, 10_000] {
        let date = NaiveDate::from_ymd_opt(year, 1, 2).unwrap();
        assert_eq!(to_msgpack(&Date(date)).unwrap_err().kind(), ErrorKind::Codec, "{year}");
        let time = DateTime::from(date.and_hms_opt(0, 0, 0).unwrap());
        assert_eq!(to_msgpack(&time).unwrap_err().kind(), ErrorKind::Codec, "{year}");
    }
}

#[test]
fn extreme_times_do_not_panic() {
    let zone = FixedOffset::east_opt(86_399).unwrap();
    for time in [chrono::DateTime::<chrono::Utc>::MAX_UTC, chrono::DateTime::<chrono::Utc>::MIN_UTC] {
        let text = DateTime::from(time.with_timezone(&zone));
        assert_eq!(to_msgpack(&text).unwrap_err().kind(), ErrorKind::Codec);
    }
    for span in [chrono::TimeDelta::MAX, chrono::TimeDelta::MIN] {
        let view = TimeDelta::from(span);
        assert!((0..86_400).contains(&view.seconds) && (0..1_000_000).contains(&view.microseconds));
        assert!(!view.to_string().is_empty());
    }
}

#[test]
fn errors_do_not_contain_stored_values() {
    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Strict {
        #[serde(rename = "a")]
        _a: u8,
    }
    #[derive(Debug, Deserialize)]
    enum Choice {
        Known,
    }
    let secret = || Value::from("hunter2");
    for error in [
        read::<i64>(&secret()).unwrap_err(),
        read::<bool>(&Value::Bin("hunter2".into())).unwrap_err(),
        read::<Choice>(&secret()).map(|Choice::Known| ()).unwrap_err(),
        read::<Strict>(&map(&[("a", secret())])).unwrap_err(),
        read::<Strict>(&map(&[("hunter2", secret())])).unwrap_err(),
        read::<std::net::IpAddr>(&secret()).unwrap_err(),
        read::<DateTime>(&secret()).unwrap_err(),
        json::parse(b"{\"hunter2\": hunter2}").unwrap_err(),
        json::to_string(&Value::Bin("hunter2".into()), json::Style::Plain).unwrap_err(),
    ] {
        let text = format!("{error} {error:?}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    let number = read::<u8>(&4242_i64.into()).unwrap_err().to_string();
    assert!(!number.contains("4242") && number.contains("an integer") && number.contains("u8"), "{number}");
}

#[test]
fn odd_objects_of_the_json_tag_stay_maps() {
    for text in [
        r#"{"lc": 2}"#,
        r#"{"lc": 2, "type": "constructor"}"#,
        r#"{"lc": 2, "type": "constructor", "id": []}"#,
        r#"{"lc": 2, "type": "constructor", "id": ["set"], "args": []}"#,
        r#"{"lc": 2, "type": "constructor", "id": ["m", 5], "args": []}"#,
        r#"{"lc": 2, "type": "constructor", "id": ["m", "C"], "args": "no list"}"#,
        r#"{"lc": 2, "type": "constructor", "id": ["m", "C"], "kwargs": [1]}"#,
        r#"{"lc": 2, "type": "constructor", "id": ["m", "C"], "args": [1], "kwargs": {"a": 1}}"#,
        r#"{"lc": 2, "type": "constructor", "id": ["m", "C"], "method": "run", "args": [1]}"#,
        r#"{"lc": 2, "type": "constructor", "id": ["builtins", "bytes"], "method": "fromhex", "args": ["0g"]}"#,
        r#"{"lc": 2, "type": "constructor", "id": ["builtins", "bytes"], "method": "fromhex", "args": ["012"]}"#,
        r#"{"lc": 2, "type": "constructor", "id": ["langgraph", "types", "Send"], "args": [1]}"#,
        r#"{"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {}}"#,
        r#"{"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"], "kwargs": {}}"#,
        r#"{"lc": 1, "type": "constructor", "id": ["langchain", "llms", "OpenAI"], "kwargs": {"content": "x"}}"#,
        r#"{"lc": 1, "type": "secret", "id": ["OPENAI_API_KEY"]}"#,
        r#"{"lc": 3, "type": "constructor", "id": ["m", "C"], "args": [1]}"#,
    ] {
        let plain = json::parse(text.as_bytes()).unwrap();
        assert!(matches!(plain, Value::Map(_)));
        assert_eq!(json::revive(plain.clone()), plain, "{text}");
    }
}
