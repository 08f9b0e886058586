//! What a backend gives the suite.

use std::fmt::{self, Debug};
use std::sync::Arc;

use checkpoint_core::delta::CheckpointReader;
use checkpoint_core::{BaseCheckpointSaver, Cipher, Error, Result, async_trait};

use crate::wire::Counted;

/// A saver of any kind.
pub type Saver = Arc<dyn BaseCheckpointSaver>;

/// How a handle is opened.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// What seals and opens values, if anything.
    pub cipher: Option<Cipher>,
    /// Whether values are another serializer's, which the saver does not look into.
    pub opaque_values: bool,
    /// What looks into that serializer's checkpoints, for a saver that keeps whole ones.
    pub reader: Option<Arc<dyn CheckpointReader>>,
}

impl OpenOptions {
    /// Opens with a cipher.
    pub(crate) fn with_cipher(cipher: Cipher) -> Self {
        Self { cipher: Some(cipher), ..Self::default() }
    }
}

/// What a target may offer beyond opening handles. Cases that need more than it has are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Facility {
    /// [`Target::open`] heeds [`OpenOptions::cipher`].
    Cipher,
    /// [`Target::open`] heeds [`OpenOptions::opaque_values`] and [`OpenOptions::reader`].
    OpaqueValues,
    /// The saver keeps a checkpoint as one value, and takes opaque ones as that.
    WholeCheckpoints,
    /// The saver keeps the value of each channel, and refuses checkpoints that are one value.
    SeparateValues,
    /// [`Target::fresh`] works.
    Fresh,
    /// [`Target::raw`] works.
    Raw,
    /// [`Target::move_rows`] works.
    MoveRows,
    /// [`Target::corrupt`] works.
    Corrupt,
    /// [`Target::counted`] works.
    RoundTrips,
}

impl fmt::Display for Facility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cipher => "handles with a cipher",
            Self::OpaqueValues => "handles with opaque values",
            Self::WholeCheckpoints => "checkpoints that are one value",
            Self::SeparateValues => "values that are apart from each other",
            Self::Fresh => "an empty database",
            Self::Raw => "the bytes of its medium",
            Self::MoveRows => "rows to be moved behind the saver's back",
            Self::Corrupt => "rows to be damaged behind the saver's back",
            Self::RoundTrips => "a count of round trips",
        })
    }
}

/// A call whose round trips and statements are counted. Threads and checkpoints are small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// A `put` whose values are all new.
    Put,
    /// A `put` of one new value; the stored parent has the others under the same versions.
    PutUnchanged,
    /// A `put` of one new value; the parent that has the others was deleted.
    PutOrphaned,
    /// A `put_writes`.
    PutWrites,
    /// A `get_tuple`, with or without a checkpoint id.
    GetTuple,
    /// A listing of a namespace that has this many checkpoints.
    List {
        /// How many.
        checkpoints: usize,
    },
    /// A listing of this many threads, where there are more.
    ListThreads {
        /// How many.
        threads: usize,
    },
    /// A `delete_thread`.
    DeleteThread,
    /// A `get_delta_channel_history` that walks over this many ancestors to the root.
    DeltaChannelHistory {
        /// How many.
        ancestors: usize,
    },
    /// A `copy_thread`.
    CopyThread {
        /// How many values of the thread a cipher has bound to their place.
        bound_values: usize,
        /// How many writes.
        bound_writes: usize,
    },
    /// A `prune` that keeps the newest checkpoint of each namespace.
    PruneKeepLatest {
        /// How many threads.
        threads: usize,
        /// How many namespaces each of them has. The newest checkpoint needs no ancestor.
        namespaces: usize,
    },
    /// A `prune` that deletes threads.
    PruneDelete {
        /// How many.
        threads: usize,
    },
    /// A `delete_for_runs` of one run.
    DeleteForRuns {
        /// How many threads the run is in; at most a few.
        threads: usize,
    },
    /// A `setup` of a database that is set up.
    Setup,
}

/// A saver whose round trips are counted.
pub type CountedSaver = Counted<Saver, Call>;

/// A database under test.
///
/// [`name`](Self::name) and [`open`](Self::open) are all that most cases need. Each further method brings the cases of
/// one [`Facility`], which [`offers`](Self::offers) announces: [`fresh`](Self::fresh) those of `setup` and of listings
/// of everything, [`raw`](Self::raw) and [`move_rows`](Self::move_rows) those of encryption, [`corrupt`](Self::corrupt)
/// those of damaged rows, [`counted`](Self::counted) those of round trips. For the last one a backend on a server also
/// implements [`Protocol`](crate::wire::Protocol), two methods that split the bytes of its wire protocol.
#[async_trait]
pub trait Target: Debug + Send + Sync + 'static {
    /// The backend's name, for the report.
    fn name(&self) -> &str;

    /// Opens one more handle onto the database. The handle is not set up.
    ///
    /// # Errors
    /// What the backend's builder returns.
    ///
    /// # Cancellation
    /// A dropped call opened nothing.
    async fn open(&self, options: OpenOptions) -> Result<Saver>;

    /// Whether the target has a facility.
    fn offers(&self, facility: Facility) -> bool {
        let _ = facility;
        false
    }

    /// Makes an empty database that was never set up. It goes away with the target that is returned.
    ///
    /// # Errors
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless it is offered.
    ///
    /// # Cancellation
    /// A dropped call may leave an empty database.
    async fn fresh(&self) -> Result<Arc<dyn Target>> {
        Err(Error::unsupported("target", "fresh"))
    }

    /// Reads every byte that the database has put on its medium.
    ///
    /// # Errors
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless it is offered.
    ///
    /// # Cancellation
    /// Reads may be dropped at any time.
    async fn raw(&self) -> Result<Vec<u8>> {
        Err(Error::unsupported("target", "raw"))
    }

    /// Moves every stored row of one thread to another, unchanged but for the thread's id.
    ///
    /// # Errors
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless it is offered.
    ///
    /// # Cancellation
    /// A dropped call may have moved some of the rows.
    async fn move_rows(&self, from_thread_id: &str, to_thread_id: &str) -> Result<()> {
        let _ = (from_thread_id, to_thread_id);
        Err(Error::unsupported("target", "move_rows"))
    }

    /// Cuts the stored checkpoints of a thread in the middle, so that they cannot be decoded.
    ///
    /// # Errors
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless it is offered.
    ///
    /// # Cancellation
    /// A dropped call may have damaged some of the rows.
    async fn corrupt(&self, thread_id: &str) -> Result<()> {
        let _ = thread_id;
        Err(Error::unsupported("target", "corrupt"))
    }

    /// Opens a handle whose driver reaches the server through a counting proxy, and says what each call costs by the
    /// backend's documentation. The database is set up. Concurrent calls may use several connections, calls that follow
    /// each other use the same ones.
    ///
    /// # Errors
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless it is offered.
    ///
    /// # Cancellation
    /// A dropped call opened nothing.
    async fn counted(&self, options: OpenOptions) -> Result<CountedSaver> {
        let _ = options;
        Err(Error::unsupported("target", "counted"))
    }
}
