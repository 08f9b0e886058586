//! A case: its name, requirements, body and failure.

use std::borrow::Cow;
use std::fmt::{self, Debug, Display};
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use checkpoint_core::{BaseCheckpointSaver, Cipher, Error, ErrorKind, FilterSemantics, Str, id};
use futures_util::future::BoxFuture;

use crate::cases::saver_cases;
use crate::{Facility, OpenOptions, Saver, Target};

/// A suite of cases: [`Savers`] or [`Stores`](crate::Stores). The runner is the same for both.
pub trait Suite: Debug + Clone + 'static {
    /// The database under test.
    type Target: ?Sized + Send + Sync + 'static;
    /// A handle onto it.
    type Handle: Clone + Send + Sync + 'static;
    /// A requirement of a case.
    type Need: Copy + Debug + Display + Send + Sync + 'static;
    /// A variation of a case's handle.
    type Setting: Clone + Default + Send + Sync + 'static;
    /// The context of a case.
    type Ctx: Clone + Send + Sync + 'static;

    /// Every case, in the order of the report.
    fn cases() -> Vec<Case<Self>>;

    /// The name of a target, for the report.
    fn name(target: &Self::Target) -> &str;

    /// Whether the cases of a group are run on a target.
    fn concerns(target: &Self::Target, group: &str) -> bool {
        let _ = (target, group);
        true
    }

    /// Opens a handle and sets the database up.
    ///
    /// # Errors
    /// Any error from the backend.
    ///
    /// # Cancellation
    /// As the backend's `setup`.
    fn connect(target: &Self::Target) -> impl Future<Output = checkpoint_core::Result<Self::Handle>> + Send;

    /// Whether a target and a handle meet a requirement.
    fn is_met(need: Self::Need, target: &Self::Target, handle: &Self::Handle) -> bool;

    /// Prepares the context of a case.
    ///
    /// # Errors
    /// Any error from the backend.
    ///
    /// # Cancellation
    /// A dropped call leaves nothing behind.
    fn begin(
        target: Arc<Self::Target>,
        handle: Self::Handle,
        setting: &Self::Setting,
    ) -> impl Future<Output = checkpoint_core::Result<Self::Ctx>> + Send;

    /// Deletes everything that a case has created.
    ///
    /// # Errors
    /// Any error from the backend.
    ///
    /// # Cancellation
    /// A dropped call may leave some of it behind.
    fn clean(ctx: &Self::Ctx) -> impl Future<Output = checkpoint_core::Result<()>> + Send;
}

/// The suite of checkpoint savers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Savers;

impl Suite for Savers {
    type Target = dyn Target;
    type Handle = Saver;
    type Need = Need;
    /// Makes the cipher of a handle.
    type Setting = Option<fn() -> checkpoint_core::Result<Cipher>>;
    type Ctx = Ctx;

    fn cases() -> Vec<Case<Self>> {
        saver_cases()
    }

    fn name(target: &dyn Target) -> &str {
        target.name()
    }

    async fn connect(target: &dyn Target) -> checkpoint_core::Result<Saver> {
        let saver = target.open(OpenOptions::default()).await?;
        saver.setup().await?;
        Ok(saver)
    }

    fn is_met(need: Need, target: &dyn Target, saver: &Saver) -> bool {
        let capabilities = saver.capabilities();
        match need {
            Need::DeleteForRuns => capabilities.delete_for_runs,
            Need::CopyThread => capabilities.copy_thread,
            Need::Prune => capabilities.prune,
            Need::Retain => capabilities.retain,
            Need::Usage => capabilities.usage,
            Need::Leases => capabilities.leases,
            Need::Rekey => capabilities.rekey,
            Need::Durable => capabilities.durable,
            Need::Filter(semantics) => capabilities.filter == semantics,
            Need::Target(facility) => target.offers(facility),
        }
    }

    async fn begin(
        target: Arc<dyn Target>,
        plain: Saver,
        cipher: &Self::Setting,
    ) -> checkpoint_core::Result<Ctx> {
        let (target, plain) = match target.for_case().await? {
            Some(own) => {
                let plain = Self::connect(&*own).await?;
                (own, plain)
            }
            None => (target, plain),
        };
        let saver = match cipher {
            Some(cipher) => target.open(OpenOptions::with_cipher(cipher()?)).await?,
            None => plain.clone(),
        };
        Ok(Ctx { target, saver, plain, threads: Arc::default() })
    }

    async fn clean(ctx: &Ctx) -> checkpoint_core::Result<()> {
        let used = std::mem::take(&mut *ctx.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let mut cleaned = Ok(());
        for thread_id in used {
            match ctx.plain.delete_thread(&thread_id).await {
                // An id that the backend rejects needs no clean-up.
                Err(error) if error.kind() != ErrorKind::InvalidArgument => cleaned = Err(error),
                _ => {}
            }
        }
        cleaned
    }
}

/// A requirement of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Need {
    /// The saver can `delete_for_runs`.
    DeleteForRuns,
    /// The saver can `copy_thread`.
    CopyThread,
    /// The saver can `prune`.
    Prune,
    /// The saver can `retain`.
    Retain,
    /// The saver has `usage`.
    Usage,
    /// The saver has leases.
    Leases,
    /// The saver can `rekey`.
    Rekey,
    /// The saver's data outlives its handle.
    Durable,
    /// The saver filters this way.
    Filter(FilterSemantics),
    /// The target has this facility.
    Target(Facility),
}

impl Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeleteForRuns => f.write_str("the saver does not offer delete_for_runs"),
            Self::CopyThread => f.write_str("the saver does not offer copy_thread"),
            Self::Prune => f.write_str("the saver does not offer prune"),
            Self::Usage => f.write_str("the saver does not offer usage"),
            Self::Retain => f.write_str("the saver does not offer retain"),
            Self::Leases => f.write_str("the saver does not offer leases"),
            Self::Rekey => f.write_str("the saver does not offer rekey"),
            Self::Durable => f.write_str("the saver is not durable"),
            Self::Filter(semantics) => write!(f, "the saver does not filter by {semantics:?}"),
            Self::Target(facility) => write!(f, "the target does not offer {facility}"),
        }
    }
}

type Body<S> = fn(<S as Suite>::Ctx) -> BoxFuture<'static, Result<(), Failure>>;

/// A case: one behavior of a saver or a store.
#[derive(Clone)]
pub struct Case<S: Suite = Savers> {
    name: Cow<'static, str>,
    needs: Vec<S::Need>,
    setting: S::Setting,
    body: Body<S>,
}

impl Case {
    /// The same case on a handle with a cipher.
    pub(crate) fn encrypted(&self, group: &str, cipher: fn() -> checkpoint_core::Result<Cipher>) -> Self {
        let mut case = self.clone();
        case.name = format!("{group}::{}", self.name).into();
        case.needs.push(Need::Target(Facility::Cipher));
        case.setting = Some(cipher);
        case
    }
}

impl<S: Suite> Case<S> {
    pub(crate) fn new(name: &'static str, needs: &[&[S::Need]], body: Body<S>) -> Self {
        Self { name: name.into(), needs: needs.concat(), setting: S::Setting::default(), body }
    }

    /// The name, such as `put::returns_config`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The group, which is the first part of the name.
    pub fn group(&self) -> &str {
        self.name.split("::").next().unwrap_or_default()
    }

    /// The reason why it cannot run on a target, or `None`. The handle is one that was opened without options.
    pub(crate) fn ignored(&self, target: &S::Target, handle: &S::Handle) -> Option<String> {
        self.needs.iter().find(|need| !S::is_met(**need, target, handle)).map(ToString::to_string)
    }

    /// Runs the case, and deletes everything it created, even if it fails.
    ///
    /// # Errors
    /// A [`Failure`] with the found and the expected behavior, or if the clean-up failed.
    ///
    /// # Cancellation
    /// A dropped run may leave threads or namespaces behind. Their names begin with `conformance-`.
    pub(crate) async fn run(&self, target: Arc<S::Target>, handle: S::Handle) -> Result<(), Failure> {
        let ctx = S::begin(target, handle, &self.setting).await?;
        let body = (self.body)(ctx.clone());
        let result = tokio::spawn(body).await.unwrap_or_else(|error| Err(Failure::new(error.to_string())));
        let cleaned = S::clean(&ctx).await.map_err(Failure::from);
        result.and(cleaned)
    }
}

impl<S: Suite> Debug for Case<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("needs", &self.needs).finish_non_exhaustive()
    }
}

/// The context of a case.
#[derive(Debug, Clone)]
pub struct Ctx {
    pub(crate) target: Arc<dyn Target>,
    pub(crate) saver: Saver,
    /// A saver without a cipher, for the clean-up.
    plain: Saver,
    threads: Arc<Mutex<Vec<Str>>>,
}

impl Ctx {
    /// The saver under test.
    pub(crate) fn saver(&self) -> &Saver {
        &self.saver
    }

    /// The database under test.
    pub(crate) fn target(&self) -> &Arc<dyn Target> {
        &self.target
    }

    /// Whether calls may be pending, so that their futures can be dropped midway.
    pub(crate) fn waits(&self) -> bool {
        self.saver.capabilities().durable
    }

    /// Returns a random thread id. The thread is deleted when the case ends.
    pub(crate) fn thread(&self) -> Str {
        self.use_thread(&format!("conformance-{}", id::uuid6(-1)))
    }

    /// Registers a thread for deletion when the case ends.
    pub(crate) fn use_thread(&self, thread_id: &str) -> Str {
        let thread_id = Str::from(thread_id);
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread_id.clone());
        thread_id
    }
}

/// The reason and the location of a failure.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure(String);

impl Failure {
    /// Makes a failure with a message.
    #[track_caller]
    pub fn new(message: impl Display) -> Self {
        let at = Location::caller();
        Self(format!("{message} ({}:{})", at.file(), at.line()))
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Error> for Failure {
    #[track_caller]
    fn from(error: Error) -> Self {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self::new(text)
    }
}

impl From<tokio::task::JoinError> for Failure {
    #[track_caller]
    fn from(error: tokio::task::JoinError) -> Self {
        Self::new(error)
    }
}

/// A value for a message, truncated to a readable length.
pub(crate) fn show(value: &(impl Debug + ?Sized)) -> String {
    const MAX_BYTES: usize = 700;
    let text = format!("{value:?}");
    match text.char_indices().nth(MAX_BYTES) {
        None => text,
        Some((end, _)) => format!("{}… ({} bytes)", text.get(..end).unwrap_or_default(), text.len()),
    }
}

/// Fails the case unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::case::Failure::new(format!($($message)+)));
        }
    };
}

/// Fails the case unless the found value equals the expected one.
macro_rules! ensure_eq {
    ($found:expr, $expected:expr, $($message:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) => {
                if found != expected {
                    return Err($crate::case::Failure::new(format!(
                        "{}: found {}, expected {}",
                        format_args!($($message)+),
                        $crate::case::show(found),
                        $crate::case::show(expected),
                    )));
                }
            }
        }
    };
}

/// Retries a call that conflicted with another writer, as callers are expected to.
macro_rules! repeat {
    ($call:expr) => {
        loop {
            match $call.await {
                Err(error)
                    if error.kind() == checkpoint_core::ErrorKind::Conflict && error.is_retryable() => {}
                other => break other,
            }
        }
    };
}

/// Lists the cases of a group: `cases!("put"; returns_config, roundtrip)`. Requirements of the whole group follow its
/// name, those of one case follow the case, in brackets. Lists of store cases begin with `stores`.
macro_rules! cases {
    (stores $($group:tt)+) => {
        cases!(@ $crate::Stores, $($group)+);
    };
    ($group:literal $($names:tt)+) => {
        cases!(@ $crate::Savers, $group $($names)+);
    };
    (@ $suite:ty, $group:literal; $($names:tt)+) => {
        cases!(@ $suite, $group, []; $($names)+);
    };
    (@ $suite:ty, $group:literal, $shared:expr; $($name:ident $([$($need:expr),+])?),+ $(,)?) => {
        pub(super) fn cases() -> Vec<$crate::Case<$suite>> {
            vec![$($crate::Case::<$suite>::new(
                concat!($group, "::", stringify!($name)),
                &[&$shared, $(&[$($need),+],)?],
                |ctx| Box::pin($name(ctx)),
            )),+]
        }
    };
}
