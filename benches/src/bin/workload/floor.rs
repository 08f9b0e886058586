//! The baselines ("floors"): the workload's statements without our saver, sent directly by the same driver (`floor`) or by
//! `pgbench` (`pgbench`), with payloads of the chats' mean size. Nothing is encoded or decoded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint_benches::{ChatThread, Mark, Phase, Recorder, Settings, WINDOW, big_blob, messages};
use checkpoint_core::{ChannelValue, InMemorySaver};
use checkpoint_postgres::tokio_postgres::types::ToSql;
use checkpoint_postgres::tokio_postgres::{Client, Statement};
use serde_json::json;

use crate::groups::{BIG_STEPS, STEPS, Saver, THREADS, check, run_id};
use crate::place::{Database, Place};
use crate::{Result, Run};

/// The number of messages of a chat of 100 steps at its mean step.
pub(crate) const MEAN_MESSAGES: u64 = STEPS / 2 + 1;
/// The number of messages of a windowed thread.
pub(crate) const WINDOW_MESSAGES: u64 = WINDOW as u64;

/// The payloads of a step, as text.
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) messages: String,
    pub(crate) message: String,
    pub(crate) settings: String,
    pub(crate) checkpoint: String,
    pub(crate) metadata: String,
}

impl Payload {
    pub(crate) fn of(count: u64) -> Result<Self> {
        let messages = messages(0, count);
        let version = "00000000000000000000000000000050.00000000000000.5";
        let both = json!({"messages": version, "counter": version});
        let checkpoint = json!({
            "v": 4,
            "ts": "2026-01-01T00:00:00.000000+00:00",
            "id": "1f0c0000-0000-6000-8032-000000000000",
            "channel_values": {"counter": 50, "user_id": "user-000042", "locale": "en-US", "temperature": 0.2},
            "channel_versions": {
                "messages": version, "counter": version, "user_id": version, "locale": version,
                "temperature": version, "settings": version, "tools": version,
            },
            "versions_seen": {
                "__input__": {}, "__start__": {}, "agent": both, "tools": {"messages": version},
            },
            "updated_channels": ["counter", "messages"],
        });
        Ok(Self {
            message: serde_json::to_string(&messages.first())?,
            messages: serde_json::to_string(&messages)?,
            settings: serde_json::to_string(&Settings::of_every_thread())?,
            checkpoint: checkpoint.to_string(),
            metadata: json!({"source": "loop", "step": 49, "parents": {}}).to_string(),
        })
    }
}

/// A row of `checkpoints` and two of `checkpoint_blobs`, in one statement.
const PUT: &str = "
    WITH blobs AS (
        INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
        VALUES ($1, '', 'messages', $2, 'msgpack', $3), ($1, '', 'note', $2, 'msgpack', $4)
        ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO NOTHING)
    INSERT INTO checkpoints
        (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata)
    VALUES ($1, '', $5, $6, $7::text::jsonb, $8::text::jsonb)
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id)
    DO UPDATE SET checkpoint = EXCLUDED.checkpoint, metadata = EXCLUDED.metadata";

/// Rows of `checkpoint_writes`: thread, checkpoint, then the value of each row.
fn writes(count: usize) -> String {
    let row = |index: usize| {
        format!(
            "($1, '', $2, '00000000-0000-4000-9000-000000000000', '~__pregel_pull, agent', {index}, \
             'messages', 'msgpack', ${})",
            index + 3
        )
    };
    let rows: Vec<_> = (0..count).map(row).collect();
    format!(
        "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, \
         type, blob) VALUES {} ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING",
        rows.join(", ")
    )
}

/// Python's `SELECT_SQL`, but each blob is found by its complete key.
const SELECT: &str = "
    SELECT thread_id, checkpoint, checkpoint_ns, checkpoint_id, parent_checkpoint_id, metadata,
        (SELECT array_agg(ARRAY[blobs.channel::bytea, blobs.type::bytea, blobs.blob])
            FROM jsonb_each_text(checkpoint -> 'channel_versions')
            CROSS JOIN LATERAL (
                SELECT channel, type, blob FROM checkpoint_blobs
                WHERE thread_id = checkpoints.thread_id AND checkpoint_ns = checkpoints.checkpoint_ns
                AND channel = jsonb_each_text.key AND version = jsonb_each_text.value LIMIT 1) blobs
        ) AS channel_values,
        (SELECT array_agg(ARRAY[task_id::bytea, channel::bytea, type::bytea, blob] ORDER BY task_id, idx)
            FROM checkpoint_writes writes
            WHERE writes.thread_id = checkpoints.thread_id AND writes.checkpoint_ns = checkpoints.checkpoint_ns
            AND writes.checkpoint_id = checkpoints.checkpoint_id
        ) AS pending_writes
    FROM checkpoints WHERE thread_id = $1 AND checkpoint_ns = ''";

const DELETE: &str = "
    WITH blobs AS (DELETE FROM checkpoint_blobs WHERE thread_id = $1),
        writes AS (DELETE FROM checkpoint_writes WHERE thread_id = $1)
    DELETE FROM checkpoints WHERE thread_id = $1";

/// Converts parameters of one type.
fn parameters<P: ToSql + Sync>(values: &[P]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// One connection with prepared statements.
#[derive(Debug)]
struct Connection {
    client: Client,
    put: Statement,
    writes_2: Statement,
    writes_10: Statement,
    payload: Arc<Payload>,
}

impl Connection {
    async fn open(database: &Database, payload: Arc<Payload>) -> Result<Self> {
        let client = connect(database).await?;
        Ok(Self {
            put: client.prepare(PUT).await?,
            writes_2: client.prepare(&writes(2)).await?,
            writes_10: client.prepare(&writes(10)).await?,
            client,
            payload,
        })
    }

    async fn put(&self, thread: &str, step: u64, messages: &[u8]) -> Result<()> {
        let Payload { settings, checkpoint, metadata, .. } = &*self.payload;
        let (version, id) = (format!("{step:032}.00000000000000.5"), checkpoint_id(step));
        let parent = checkpoint_id(step - 1);
        let settings = settings.as_bytes();
        let parameters: Parameters<'_> =
            &[&thread, &version, &messages, &settings, &id, &parent, checkpoint, metadata];
        check(self.client.execute(&self.put, parameters).await? == 1, "a row of a checkpoint")
    }

    async fn write_2(&self, thread: &str, step: u64) -> Result<()> {
        let (id, message, counter) = (checkpoint_id(step - 1), self.payload.message.as_bytes(), &b"50"[..]);
        check(
            self.client.execute(&self.writes_2, &[&thread, &id, &message, &counter]).await? == 2,
            "two rows",
        )
    }

    async fn write_10(&self, thread: &str, step: u64) -> Result<()> {
        let (id, message) = (checkpoint_id(step), self.payload.message.as_bytes());
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&thread, &id];
        parameters.extend((0..10).map(|_| &message as &(dyn ToSql + Sync)));
        check(self.client.execute(&self.writes_10, &parameters).await? == 10, "ten rows")
    }
}

fn checkpoint_id(step: u64) -> String {
    format!("{step:036}")
}

pub(crate) async fn connect(database: &Database) -> Result<Client> {
    // Otherwise the server may plan each execution again.
    let options = format!("{} -c plan_cache_mode=force_generic_plan", database.options());
    database.server.connect(&database.name, &options).await
}

/// Times prepared statements.
pub(crate) struct Timed {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
}

impl Timed {
    /// Reads with each of the parameters, and checks the number of rows.
    async fn read(
        &mut self,
        operation: &'static str,
        sql: &str,
        calls: &[Vec<String>],
        rows: usize,
    ) -> Result<()> {
        let statement = self.client.prepare(sql).await?;
        for call in calls.iter().take(10) {
            self.warm_up(&statement, call).await?;
        }
        self.query(operation, &statement, calls.iter().map(|call| (call.as_slice(), rows))).await
    }

    /// Runs a statement once, untimed.
    pub(crate) async fn warm_up<P: ToSql + Sync>(&self, statement: &Statement, call: &[P]) -> Result<()> {
        self.client.query(statement, &parameters(call)).await?;
        Ok(())
    }

    /// Runs a statement with each of the parameters, and checks the number of rows.
    pub(crate) async fn query<'a, P: ToSql + Sync + 'a>(
        &mut self,
        operation: &'static str,
        statement: &Statement,
        calls: impl Iterator<Item = (&'a [P], usize)>,
    ) -> Result<()> {
        let phase = Phase::begin();
        for (call, rows) in calls {
            let parameters = parameters(call);
            let begun = Mark::now();
            let found = self.client.query(statement, &parameters).await?;
            self.recorder.record(operation, begun);
            check(found.len() == rows, "the rows of a statement")?;
        }
        self.recorder.end(operation, phase);
        Ok(())
    }
}

/// Group chat: writes of mean size, then reads of the saver's rows.
pub(crate) async fn chat(saver: Saver, place: &Place, database: &Database) -> Result<Run> {
    let connection = Connection::open(database, Arc::new(Payload::of(MEAN_MESSAGES)?)).await?;
    let mut recorder = Recorder::default();
    let mut warm = Recorder::default();
    let mut phase = Phase::begin();
    for thread in 0..=THREADS {
        let name = format!("floor-{thread}");
        let recorder = if thread == 0 { &mut warm } else { &mut recorder };
        if thread == 1 {
            phase = Phase::begin();
        }
        // As much work between the calls as with the saver: after idling, a call is slower.
        let mut chat =
            ChatThread::new(Arc::new(InMemorySaver::new()), 0, thread, messages(thread, STEPS + 1));
        chat.next_step();
        for number in 1..=STEPS {
            let step = chat.next_step();
            let checkpoint = step.checkpoint()?;
            let Some(ChannelValue::Blob(blob)) = checkpoint.channel_values.get("messages") else {
                return Err("messages are a blob".into());
            };
            let begun = Mark::now();
            connection.write_2(&name, number).await?;
            recorder.record("put_writes", begun);
            let written = Mark::now();
            connection.put(&name, number, &blob.data).await?;
            recorder.record("put", written);
            recorder.record("step", begun);
        }
    }
    recorder.end("step", phase);
    let phase = Phase::begin();
    for turn in 0..200 {
        let name = format!("floor-{turn}-ten");
        let begun = Mark::now();
        connection.write_10(&name, turn).await?;
        recorder.record("put_writes_10", begun);
    }
    recorder.end("put_writes_10", phase);

    let run = run_id();
    let mut threads = Vec::new();
    for number in 0..THREADS {
        let mut thread = ChatThread::new(Arc::clone(&saver), run, number, messages(number, STEPS + 1));
        thread.start().await?;
        for _ in 0..STEPS {
            thread.step().await?;
        }
        threads.push(thread);
    }
    let disk = place.disk().await?;
    place.analyze().await?;

    let mut reads = Timed { client: connect(database).await?, recorder };
    let calls: Vec<_> =
        threads.iter().cycle().map(|thread| vec![thread.thread_id().to_owned()]).take(200).collect();
    let at_mid = |thread: &ChatThread| {
        let id = thread.at(50).checkpoint_id().map(ToString::to_string);
        vec![thread.thread_id().to_owned(), id.unwrap_or_default()]
    };
    let mid: Vec<_> = threads.iter().cycle().map(at_mid).take(200).collect();
    let newest = format!("{SELECT} ORDER BY checkpoint_id DESC");
    reads.read("get_latest", &format!("{newest} LIMIT 1"), &calls, 1).await?;
    reads.read("get_mid", &format!("{SELECT} AND checkpoint_id = $2"), &mid, 1).await?;
    reads.read("list_10", &format!("{newest} LIMIT 10"), &calls[..50], 10).await?;
    reads.read("list_all", &newest, &calls[..10], 101).await?;
    let Timed { client, mut recorder } = reads;
    let delete = client.prepare(DELETE).await?;
    client.execute(&delete, &[&"nobody"]).await?;
    for thread in &threads {
        let begun = Mark::now();
        let gone = client.execute(&delete, &[&thread.thread_id()]).await?;
        recorder.record("delete_thread", begun);
        check(gone == STEPS + 1, "the rows of a thread")?;
    }
    Ok(Run { ops: recorder.finish(), level: None, disk })
}

/// Group big: a plain table.
pub(crate) async fn big(database: &Database) -> Result<Run> {
    let client = connect(database).await?;
    client.batch_execute("CREATE TABLE floor_big (number int8 PRIMARY KEY, blob bytea)").await?;
    let insert = client.prepare("INSERT INTO floor_big VALUES ($1, $2)").await?;
    let select = client.prepare("SELECT blob FROM floor_big WHERE number = $1").await?;
    let mut recorder = Recorder::default();
    for number in 0..=BIG_STEPS {
        let blob = big_blob(number);
        let number = i64::try_from(number)?;
        let begun = Mark::now();
        client.execute(&insert, &[&number, &&blob[..]]).await?;
        if number > 0 {
            recorder.record("put_1mb", begun);
        }
    }
    for number in 1..=BIG_STEPS {
        let number = i64::try_from(number)?;
        let begun = Mark::now();
        let row = client.query_one(&select, &[&number]).await?;
        recorder.record("get_latest_1mb", begun);
        check(row.len() == 1, "a blob")?;
    }
    Ok(Run { ops: recorder.finish(), level: None, disk: None })
}

/// Group conc: every task has its own connection.
pub(crate) async fn conc(database: &Database, tasks: usize, seconds: f64) -> Result<Run> {
    let payload = Arc::new(Payload::of(WINDOW_MESSAGES)?);
    let mut connections = Vec::new();
    for _ in 0..tasks {
        connections.push(Connection::open(database, Arc::clone(&payload)).await?);
    }
    let seconds = Duration::try_from_secs_f64(seconds)?;
    let (phase, begun) = (Phase::begin(), Mark::now());
    let deadline = Instant::now() + seconds;
    let work = |number: usize, connection: Connection| async move {
        let payload = Arc::clone(&connection.payload);
        let mut walls = Vec::new();
        for step in 1.. {
            let name = format!("floor-{number}-{}", step / 100);
            let begun = Instant::now();
            connection.write_2(&name, step).await?;
            connection.put(&name, step, payload.messages.as_bytes()).await?;
            let end = Instant::now();
            if end > deadline {
                break;
            }
            walls.push(end - begun);
        }
        Result::<_>::Ok(walls)
    };
    let running: Vec<_> = connections
        .into_iter()
        .enumerate()
        .map(|(number, connection)| tokio::spawn(work(number, connection)))
        .collect();
    let mut walls = Vec::new();
    for task in running {
        walls.extend(task.await??);
    }
    Ok(Run::of_steps(walls, seconds, begun, phase, tasks))
}

/// Group scale: reads of a long thread that the saver wrote.
pub(crate) async fn scale(saver: Saver, database: &Database, length: usize) -> Result<Run> {
    let mut thread = ChatThread::new(saver, run_id(), 0, messages(0, STEPS + 1)).windowed();
    thread.start().await?;
    for _ in 0..length {
        thread.step().await?;
    }
    database.run("VACUUM (ANALYZE)").await?;
    let mut reads = Timed { client: connect(database).await?, recorder: Recorder::default() };
    let calls = vec![vec![thread.thread_id().to_owned()]; 200];
    let newest = format!("{SELECT} ORDER BY checkpoint_id DESC LIMIT");
    reads.read("get_latest", &format!("{newest} 1"), &calls, 1).await?;
    reads.read("list_10", &format!("{newest} 10"), &calls[..30], 10.min(length + 1)).await?;
    Ok(Run { ops: reads.recorder.finish(), level: Some(length), disk: None })
}
