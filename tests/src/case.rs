//! One case: its name, what it needs, what it does, and how it fails.

use std::borrow::Cow;
use std::fmt::{self, Debug, Display};
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use checkpoint_core::{Cipher, Error, ErrorKind, FilterSemantics, SaverCapabilities, Str, id};
use futures_util::future::BoxFuture;

use crate::{Facility, OpenOptions, Saver, Target};

/// What a case cannot do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Need {
    /// The saver can `delete_for_runs`.
    DeleteForRuns,
    /// The saver can `copy_thread`.
    CopyThread,
    /// The saver can `prune`.
    Prune,
    /// What the saver stores outlives its handle.
    Durable,
    /// The saver filters this way.
    Filter(FilterSemantics),
    /// The target has this facility.
    Target(Facility),
}

impl Need {
    fn is_met(self, target: &dyn Target, capabilities: SaverCapabilities) -> bool {
        match self {
            Self::DeleteForRuns => capabilities.delete_for_runs,
            Self::CopyThread => capabilities.copy_thread,
            Self::Prune => capabilities.prune,
            Self::Durable => capabilities.durable,
            Self::Filter(semantics) => capabilities.filter == semantics,
            Self::Target(facility) => target.offers(facility),
        }
    }
}

impl Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeleteForRuns => f.write_str("the saver does not offer delete_for_runs"),
            Self::CopyThread => f.write_str("the saver does not offer copy_thread"),
            Self::Prune => f.write_str("the saver does not offer prune"),
            Self::Durable => f.write_str("the saver is not durable"),
            Self::Filter(semantics) => write!(f, "the saver does not filter by {semantics:?}"),
            Self::Target(facility) => write!(f, "the target does not offer {facility}"),
        }
    }
}

type Body = fn(Ctx) -> BoxFuture<'static, Result<(), Failure>>;

/// One thing that a saver does.
#[derive(Clone)]
pub struct Case {
    name: Cow<'static, str>,
    needs: Vec<Need>,
    cipher: Option<fn() -> checkpoint_core::Result<Cipher>>,
    body: Body,
}

impl Case {
    pub(crate) fn new(name: &'static str, needs: &[&[Need]], body: Body) -> Self {
        Self { name: name.into(), needs: needs.concat(), cipher: None, body }
    }

    /// The same case on a handle with a cipher.
    pub(crate) fn encrypted(&self, group: &str, cipher: fn() -> checkpoint_core::Result<Cipher>) -> Self {
        let mut case = self.clone();
        case.name = format!("{group}::{}", self.name).into();
        case.needs.push(Need::Target(Facility::Cipher));
        case.cipher = Some(cipher);
        case
    }

    /// The name, such as `put::returns_config`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The group, which is the first part of the name.
    pub fn group(&self) -> &str {
        self.name.split("::").next().unwrap_or_default()
    }

    /// What it needs.
    pub fn needs(&self) -> &[Need] {
        &self.needs
    }

    /// Why it cannot run on a target, if so.
    pub fn ignored(&self, target: &dyn Target, capabilities: SaverCapabilities) -> Option<String> {
        self.needs.iter().find(|need| !need.is_met(target, capabilities)).map(ToString::to_string)
    }

    /// Runs it, and deletes the threads that it used, also when it fails.
    ///
    /// # Errors
    /// Says what the saver did and what it should have done, or that the clean-up failed.
    ///
    /// # Cancellation
    /// A dropped run may leave threads behind, whose ids begin with `conformance-`.
    pub async fn run(&self, target: Arc<dyn Target>, saver: Saver) -> Result<(), Failure> {
        let plain = saver.clone();
        let saver = match self.cipher {
            Some(cipher) => target.open(OpenOptions::with_cipher(cipher()?)).await?,
            None => saver,
        };
        let ctx = Ctx { target, saver, threads: Arc::default() };
        let threads = ctx.threads.clone();
        let body = (self.body)(ctx);
        let result = tokio::spawn(body).await.unwrap_or_else(|error| Err(Failure::new(error.to_string())));
        let used = std::mem::take(&mut *threads.lock().unwrap_or_else(PoisonError::into_inner));
        let mut cleaned = Ok(());
        for thread_id in used {
            match plain.delete_thread(&thread_id).await {
                // An id that cannot be stored needs no clean-up.
                Err(error) if error.kind() != ErrorKind::InvalidArgument => cleaned = Err(error.into()),
                _ => {}
            }
        }
        result.and(cleaned)
    }
}

impl Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("needs", &self.needs).finish_non_exhaustive()
    }
}

/// What a case works with.
#[derive(Debug, Clone)]
pub struct Ctx {
    pub(crate) target: Arc<dyn Target>,
    pub(crate) saver: Saver,
    threads: Arc<Mutex<Vec<Str>>>,
}

impl Ctx {
    /// The saver under test.
    pub fn saver(&self) -> &Saver {
        &self.saver
    }

    /// The database under test.
    pub fn target(&self) -> &Arc<dyn Target> {
        &self.target
    }

    /// Makes up the id of a thread, which is deleted when the case ends.
    pub fn thread(&self) -> Str {
        self.use_thread(&format!("conformance-{}", id::uuid6(-1)))
    }

    /// Has a thread with a given id deleted when the case ends.
    pub fn use_thread(&self, thread_id: &str) -> Str {
        let thread_id = Str::from(thread_id);
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread_id.clone());
        thread_id
    }
}

/// Why a case failed, and where.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure(String);

impl Failure {
    /// Says what is wrong.
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

/// A value in a message, not longer than a person reads.
pub(crate) fn show(value: &(impl Debug + ?Sized)) -> String {
    const MOST: usize = 700;
    let text = format!("{value:?}");
    match text.char_indices().nth(MOST) {
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

/// Fails the case unless what was found equals what was expected.
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

/// Lists the cases of a group: `cases!("put"; returns_config, roundtrip)`. Needs of the whole group stand behind its
/// name, those of one case behind the case, in brackets.
macro_rules! cases {
    ($group:literal; $($names:tt)+) => {
        cases!($group, []; $($names)+);
    };
    ($group:literal, $shared:expr; $($name:ident $([$($need:expr),+])?),+ $(,)?) => {
        pub(super) fn cases() -> Vec<$crate::case::Case> {
            vec![$($crate::case::Case::new(
                concat!($group, "::", stringify!($name)),
                &[&$shared, $(&[$($need),+],)?],
                |ctx| Box::pin($name(ctx)),
            )),+]
        }
    };
}
