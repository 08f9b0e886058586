//! The interface between the suite and a backend.

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
    /// The cipher, if any.
    pub cipher: Option<Cipher>,
    /// Whether values are another serializer's, which the saver does not decode.
    pub opaque_values: bool,
    /// Decodes that serializer's checkpoints, for a saver that stores whole checkpoints.
    pub reader: Option<Arc<dyn CheckpointReader>>,
    /// How many checkpoints of a namespace `put` leaves behind itself.
    pub keep_last: Option<usize>,
}

impl OpenOptions {
    /// Opens with a cipher.
    pub(crate) fn with_cipher(cipher: Cipher) -> Self {
        Self { cipher: Some(cipher), ..Self::default() }
    }
}

/// An optional facility of a target. Cases that require a missing one are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Facility {
    /// [`Target::open`] supports [`OpenOptions::cipher`].
    Cipher,
    /// [`Target::open`] supports [`OpenOptions::opaque_values`] and [`OpenOptions::reader`].
    OpaqueValues,
    /// The saver stores a checkpoint as one value, and accepts opaque ones.
    WholeCheckpoints,
    /// The saver stores channel values separately, and rejects checkpoints that are one value.
    SeparateValues,
    /// [`Target::open`] supports [`OpenOptions::keep_last`].
    KeepLast,
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
            Self::SeparateValues => "separate channel values",
            Self::KeepLast => "pruning behind each put",
            Self::Fresh => "an empty database",
            Self::Raw => "the raw stored bytes",
            Self::MoveRows => "moving rows past the saver",
            Self::Corrupt => "damaging rows past the saver",
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
    /// A `put` of one new value; the parent with the others was deleted.
    PutOrphaned,
    /// A `put` with [`PutCondition::ParentStored`](checkpoint_core::PutCondition::ParentStored) of one new value; the stored
    /// parent has the others.
    PutOntoParent,
    /// A `put` with another condition, a step key or a lease.
    PutConditional,
    /// A `put` that prunes behind itself: of two checkpoints, the older one goes.
    PutPruning,
    /// A `put_writes`.
    PutWrites,
    /// A `put_writes` with options.
    PutWritesConditional,
    /// An `acquire_lease` of a thread that nobody has leased.
    AcquireLease,
    /// A `renew_lease` or `release_lease`.
    Lease,
    /// A `get_tuple`, with or without a checkpoint id.
    GetTuple,
    /// A `get_tuple` of a thread that is not stored.
    GetNothing,
    /// A listing of a namespace that has this many checkpoints.
    List {
        /// How many.
        checkpoints: usize,
    },
    /// A listing of this many threads, of more.
    ListThreads {
        /// How many.
        threads: usize,
        /// Whether with their state.
        with_state: bool,
    },
    /// The same of thread ids.
    ListThreadIds {
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
        /// The number of values of the thread that a cipher has bound to their row.
        bound_values: usize,
        /// How many writes.
        bound_writes: usize,
    },
    /// A `prune` that keeps the newest checkpoint of each namespace.
    PruneKeepLatest {
        /// How many threads.
        threads: usize,
        /// The number of namespaces of each. The newest checkpoint needs no ancestor.
        namespaces: usize,
    },
    /// A `prune` that deletes threads.
    PruneDelete {
        /// How many.
        threads: usize,
    },
    /// A `delete_for_runs` of one run.
    DeleteForRuns {
        /// The number of threads with the run; a few.
        threads: usize,
    },
    /// A `rekey` of values that another key has sealed.
    Rekey {
        /// How many values.
        values: usize,
        /// How many writes.
        writes: usize,
    },
    /// A `rekey` that finds nothing to seal, or a dry run of one.
    RekeyNothing {
        /// Whether it is a dry run.
        dry_run: bool,
    },
    /// A `setup` of a database that is set up.
    Setup,
    /// A `ping`.
    Ping,
    /// A `check_schema` of a database that is set up.
    CheckSchema,
}

/// A saver whose round trips are counted.
pub type CountedSaver = Counted<Saver, Call>;

/// A database under test.
///
/// Most cases only require [`name`](Self::name) and [`open`](Self::open). Each further method enables the cases of one
/// [`Facility`], which [`offers`](Self::offers) declares: [`fresh`](Self::fresh) those of `setup` and of listings of
/// everything, [`raw`](Self::raw) and [`move_rows`](Self::move_rows) those of encryption, [`corrupt`](Self::corrupt)
/// those of damaged rows, [`counted`](Self::counted) those of round trips. For the last one, a backend on a server also
/// implements [`Protocol`](crate::wire::Protocol), two methods that split the bytes of its wire protocol.
#[async_trait]
pub trait Target: Debug + Send + Sync + 'static {
    /// The backend's name, for the report.
    fn name(&self) -> &str;

    /// Opens another handle to the database, without setup.
    ///
    /// # Errors
    /// Any error from the backend's builder.
    ///
    /// # Cancellation
    /// A dropped call has opened nothing.
    async fn open(&self, options: OpenOptions) -> Result<Saver>;

    /// Whether the target has a facility.
    fn offers(&self, facility: Facility) -> bool {
        let _ = facility;
        false
    }

    /// Creates an empty database without setup. It is removed when the returned target is dropped.
    ///
    /// # Errors
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless the target offers it.
    ///
    /// # Cancellation
    /// A dropped call may leave an empty database.
    async fn fresh(&self) -> Result<Arc<dyn Target>> {
        Err(Error::unsupported("target", "fresh"))
    }

    /// A database for one case alone, or `None` if all cases share this one. It is removed when the returned target is
    /// dropped. For servers whose calls take longer the more others have stored.
    ///
    /// # Errors
    /// Any error of the server.
    ///
    /// # Cancellation
    /// A dropped call may leave an empty database.
    async fn for_case(&self) -> Result<Option<Arc<dyn Target>>> {
        Ok(None)
    }

    /// Reads all bytes that the database has stored.
    ///
    /// # Errors
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless the target offers it.
    ///
    /// # Cancellation
    /// Reads may be dropped at any time.
    async fn raw(&self) -> Result<Vec<u8>> {
        Err(Error::unsupported("target", "raw"))
    }

    /// Moves every stored row of one thread to another, changing only the thread's id.
    ///
    /// # Errors
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless the target offers it.
    ///
    /// # Cancellation
    /// A dropped call may have moved some of the rows.
    async fn move_rows(&self, from_thread_id: &str, to_thread_id: &str) -> Result<()> {
        let _ = (from_thread_id, to_thread_id);
        Err(Error::unsupported("target", "move_rows"))
    }

    /// Truncates the stored checkpoints of a thread, so that they cannot be decoded.
    ///
    /// # Errors
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless the target offers it.
    ///
    /// # Cancellation
    /// A dropped call may have damaged some of the rows.
    async fn corrupt(&self, thread_id: &str) -> Result<()> {
        let _ = thread_id;
        Err(Error::unsupported("target", "corrupt"))
    }

    /// Opens a handle whose driver connects to the server through a counting proxy, with the documented cost of each
    /// call. The database is set up. Concurrent calls may use several connections; sequential calls use the same ones.
    ///
    /// # Errors
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless the target offers it.
    ///
    /// # Cancellation
    /// A dropped call has opened nothing.
    async fn counted(&self, options: OpenOptions) -> Result<CountedSaver> {
        let _ = options;
        Err(Error::unsupported("target", "counted"))
    }
}
