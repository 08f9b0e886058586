//! Tests on the in-memory saver.

use futures_util::TryStreamExt;
use serde::Deserialize;

use super::commit::COUNTERS;
use super::*;
use crate::serde::decode;
use crate::{
    ChannelValue, ChannelValues, Checkpoint, CheckpointMetadata, ErrorKind, InMemorySaver, SaverExt, special,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct State {
    topic: String,
    score: f64,
    notes: Vec<String>,
    answer: Option<String>,
}

fn start() -> State {
    State { topic: "rust".into(), score: f64::NAN, notes: vec![], answer: None }
}

#[tokio::test]
async fn only_changed_channels_get_a_new_version() {
    let thread = InMemorySaver::new().thread("t");
    let first = thread.begin(&start()).await.unwrap();
    assert_eq!((first.step(), first.source(), first.parent_id()), (-1, Some("input"), None));
    let next = State { notes: vec!["a".into()], ..start() };
    let second = thread.commit(&first, &next).await.unwrap();
    let checkpoint = &second.tuple().checkpoint;
    let majors: Vec<_> =
        checkpoint.channel_versions.iter().map(|(name, version)| (&**name, version.major())).collect();
    assert_eq!(majors, [("topic", 1), ("score", 1), ("notes", 2), ("answer", 1)]);
    assert_eq!(checkpoint.updated_channels.as_deref(), Some(&[Str::from("notes")][..]));
    assert_eq!((second.step(), second.source(), second.parent_id()), (0, Some("loop"), Some(first.id())));
    let stored = thread.latest().await.unwrap().unwrap();
    // As text, because NaN is not equal to itself.
    assert_eq!(format!("{stored:?}"), format!("{second:?}"), "commit returns the stored state");
}

#[tokio::test]
async fn views_leave_other_channels_alone() {
    #[derive(Serialize, Deserialize)]
    struct Answer {
        answer: Option<String>,
    }
    let thread = InMemorySaver::new().thread("t").with_metadata("run_id", "r1");
    let first = thread.begin(&start()).await.unwrap();
    let second = thread.update(&first, &Answer { answer: Some("42".into()) }).await.unwrap();
    let state: State = second.values().unwrap();
    assert_eq!((state.topic.as_str(), state.answer.as_deref()), ("rust", Some("42")));
    assert_eq!(second.channel::<Option<String>>("answer").unwrap(), Some(Some("42".into())));
    assert_eq!(second.channel::<String>("nothing").unwrap(), None);
    assert_eq!(second.tuple().metadata.run_id(), Some("r1"));
    assert_eq!(second.tuple().checkpoint.updated_channels, None);
    let wrong = second.channel::<Vec<String>>("topic").unwrap_err();
    assert!(wrong.kind() == ErrorKind::Codec && wrong.to_string().contains("topic"), "{wrong}");
}

#[tokio::test]
async fn finished_tasks_are_found_by_name() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Note {
        note: String,
    }
    let thread = InMemorySaver::new().thread("t").namespace("sub:1");
    let on = thread.begin(&start()).await.unwrap();
    thread.record(&on, "search", &Note { note: "first".into() }).await.unwrap();
    let again = thread.record(&on, "search", &Note { note: "again".into() }).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict);
    thread.record(&on, "log", &()).await.unwrap();
    let failed = [(Str::from(special::ERROR), ChannelValue::from("boom"))];
    let path = format!("{PATH_PREFIX}fail");
    thread.saver().put_writes(on.config(), &failed, "other", &path).await.unwrap();

    let on = thread.at(on.id()).await.unwrap().unwrap();
    assert_eq!(on.done_tasks(), ["log", "search"]);
    assert!(on.is_done("search") && on.is_done("log") && !on.is_done("fail") && !on.is_done("sea"));
    assert_eq!(on.result::<Note>("search").unwrap(), Some(Note { note: "first".into() }));
    assert_eq!(on.result::<Note>("fail").unwrap(), None);
    assert_eq!(on.result::<Note>("log").unwrap_err().kind(), ErrorKind::Codec);
}

#[tokio::test]
async fn a_fork_becomes_the_newest_and_keeps_the_history() {
    let thread = InMemorySaver::new().thread("t");
    let first = thread.begin(&start()).await.unwrap();
    let second = thread.commit(&first, &State { topic: "python".into(), ..start() }).await.unwrap();
    let fork = thread.fork(&first).await.unwrap();
    assert_eq!(thread.latest().await.unwrap().unwrap().id(), fork.id());
    assert_eq!(fork.parent_id(), Some(first.id()));
    assert_eq!(fork.values::<State>().unwrap().topic, "rust");
    let ids: Vec<_> =
        thread.history().map_ok(|snapshot| snapshot.id().to_owned()).try_collect().await.unwrap();
    assert_eq!(ids, [fork.id(), second.id(), first.id()]);
    let input = thread.begin(&State { topic: "next".into(), ..start() }).await.unwrap();
    assert_eq!((input.step(), input.parent_id()), (1, Some(fork.id())));
}

#[tokio::test]
async fn commit_keeps_the_fields_that_langgraph_needs() {
    let saver = InMemorySaver::new();
    // As old versions of LangGraph left it: LangGraph renames the channels of checkpoints with `v` 1.
    let old = Checkpoint {
        v: 1,
        extra: [("pending_sends".into(), ChannelValue::encode(&["x"]).unwrap())].into_iter().collect(),
        ..Checkpoint::new(0).with_channel("start:n", 1, "1")
    };
    let counters = Value::Map(vec![("log".into(), Value::Array(vec![3.into(), 4.into()]))]);
    let parents = Value::Map(vec![("".into(), "id".into())]);
    let metadata = CheckpointMetadata::new("loop", 0)
        .with("parents", parents.clone())
        .with(COUNTERS, counters.clone())
        .with("writes", "of that step");
    saver.put(&CheckpointConfig::new("t"), &old, &metadata, &old.channel_versions).await.unwrap();
    let thread = saver.thread("t");
    let at = thread.latest().await.unwrap().unwrap();
    let fork = thread.fork(&at).await.unwrap();
    let checkpoint = &fork.tuple().checkpoint;
    assert_eq!((checkpoint.v, &checkpoint.extra), (1, &old.extra));
    assert!(checkpoint.id > old.id && checkpoint.ts >= old.ts);
    let metadata = &fork.tuple().metadata;
    assert_eq!((metadata.get("parents"), metadata.get(COUNTERS)), (Some(&parents), Some(&counters)));
    assert_eq!((metadata.source(), metadata.get("writes")), (Some("fork"), None));
    let next = thread.commit(&at, &std::collections::BTreeMap::from([("a", 1)])).await.unwrap();
    assert_eq!((next.tuple().checkpoint.v, next.tuple().checkpoint.extra.len()), (1, 0));
}

#[tokio::test]
async fn commit_rejects_a_state_that_could_not_be_decrypted() {
    let thread = InMemorySaver::new().thread("t");
    let first = thread.begin(&start()).await.unwrap();
    let ciphertext = crate::TypedBytes::new("msgpack+aes", &b"..."[..]);
    let mut shut = first.clone();
    shut.tuple.checkpoint = crate::opaque::checkpoint(first.id(), ciphertext);
    for error in [
        thread.fork(&shut).await.unwrap_err(),
        thread.update(&shut, &start()).await.unwrap_err(),
        thread.commit(&shut, &start()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Crypto, "{error}");
    }
    assert_eq!(thread.latest().await.unwrap().unwrap().id(), first.id());
}

#[test]
fn only_the_channels_of_the_view_are_decoded() {
    #[derive(Debug, Deserialize)]
    struct View {
        topic: String,
    }
    #[derive(Debug, Deserialize)]
    struct Both {
        #[serde(rename = "old")]
        _old: Value,
    }
    let pickled = ChannelValue::Blob(crate::TypedBytes::new("pickle", &b"\x80"[..]));
    let values: ChannelValues =
        [("old".into(), pickled), ("topic".into(), "rust".into())].into_iter().collect();
    assert_eq!(decode::from_channels::<View>(&values).unwrap().topic, "rust");
    let error = decode::from_channels::<Both>(&values).unwrap_err();
    assert!(error.to_string().contains("pickle") && error.to_string().contains("old"), "{error}");
}

#[tokio::test]
async fn values_other_than_structs_are_rejected_before_anything_is_stored() {
    let thread = InMemorySaver::new().thread("t");
    for error in [thread.begin("text").await.unwrap_err(), thread.begin(&[1, 2]).await.unwrap_err()] {
        assert!(error.kind() == ErrorKind::Codec && error.to_string().contains("struct"), "{error}");
    }
    assert!(thread.latest().await.unwrap().is_none());
}
