//! Retention: which checkpoints a database keeps, and the runs that remove the others.
//!
//! [`Retention`] is the policy, [`BaseCheckpointSaver::retain`](crate::BaseCheckpointSaver::retain) applies it to some
//! threads in one call, [`SaverExt::retain_threads`](crate::SaverExt::retain_threads) to any number of them in small batches,
//! [`SaverExt::retain_all`](crate::SaverExt::retain_all) to all of them, and [`Sweeper`] does that again and again.
//!
//! ```
//! use std::time::Duration;
//!
//! use checkpoint_core::retention::{RetainOptions, RetainSummary, Retention};
//! use checkpoint_core::{InMemorySaver, SaverExt, ThreadQuery};
//! use futures_util::TryStreamExt;
//!
//! const DAY: Duration = Duration::from_secs(24 * 60 * 60);
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> checkpoint_core::Result<()> {
//! # let saver = InMemorySaver::new();
//! let policy = Retention::new().keep_last(20).max_age(30 * DAY).idle_for(90 * DAY);
//! let plan = RetainOptions::default().dry_run(true);
//! let batches = saver.retain_all(policy, plan, ThreadQuery::all());
//! let summary: RetainSummary = batches.try_collect().await?;
//! println!("{} checkpoints would go", summary.report.total().checkpoints);
//! # Ok(())
//! # }
//! ```
//!
//! # What goes
//!
//! Each limit removes on its own: a checkpoint goes if [`keep_last`](Retention::keep_last) *or*
//! [`max_age`](Retention::max_age) says so, and a whole thread goes by [`idle_for`](Retention::idle_for). A checkpoint takes
//! its pending writes with it, and what only it referred to. Pending writes without a checkpoint go as a checkpoint of their
//! id would.
//!
//! # What stays
//!
//! * The newest checkpoint of each namespace, and pending writes that are ahead of it, unless the whole thread goes.
//! * What a checkpoint that stays needs: its values, and the ancestors of its delta channels.
//! * Threads that wait for a person ([`ThreadStatus::Waiting`](crate::ThreadStatus::Waiting)), as they are, unless
//!   [`include_waiting`](Retention::include_waiting) is set.
//! * Threads that are [pinned](Retention::pin), as they are.
//! * [Branch points](Retention::keep_branch_points), if asked for.
//!
//! The children of a checkpoint that went keep their parent's id.
//!
//! # Ages
//!
//! The age of a checkpoint is the time in its id, if that is a version 6 UUID, as all ids of LangGraph are, and otherwise the
//! checkpoint's `ts`. A checkpoint that has neither, or one from the future, is of age zero. The present is this machine's
//! clock, or [`RetainOptions::now`].

mod options;
mod policy;
mod report;
mod run;
mod sweeper;
mod usage;

pub use options::RetainOptions;
pub use policy::{Limits, Retention};
pub use report::{Freed, RetainReport, Rule};
pub use run::{RetainBatch, RetainSummary};
pub use sweeper::{SweepOptions, Sweeper};
pub use usage::{DayUsage, ThreadUsage, Usage, UsageOptions};

pub(crate) use run::{retain_all, retain_threads};
