//! The command line of stores.

use clap::{Args, Subcommand, ValueEnum};

use super::Consent;

/// The model name that selects embeddings without a model.
pub(crate) const NGRAMS: &str = "ngrams";

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Create or upgrade the store's tables. Idempotent, and safe to run from several processes concurrently.
    ///
    /// `--embed-dims` also creates a table of vectors, which needs the extension `vector` (pgvector). Its options cannot be
    /// changed later.
    #[command(after_help = "\
Examples:
  ckpt store setup
  ckpt store setup --embed-dims 1536
  ckpt store setup --embed-dims 3072 --vector-type halfvec --ann flat")]
    Setup {
        #[command(flatten)]
        index: Index,
        /// Also build an index for filters: filters by equality become faster, puts slower.
        #[arg(long)]
        filter_index: bool,
    },
    /// Store an item, or replace it.
    ///
    /// In a store with vectors, queries find the item only if it is put with --embed: without it, the vectors of the old
    /// value are deleted, and ckpt prints a warning.
    #[command(after_help = "\
Examples:
  ckpt store put users.ann prefs '{\"theme\": \"dark\", \"visits\": 12}'
  ckpt store put users.ann session '{\"page\": 3}' --ttl 30m
  echo '{\"text\": \"ann likes tea\"}' | ckpt store put users.ann note - --embed ngrams --embed-dims 256
  ckpt store put users.ann note '{\"text\": \"tea\"}' --embed ngrams --embed-dims 256 --index text")]
    Put {
        /// The namespace: labels separated by dots.
        namespace: String,
        /// The key in the namespace.
        key: String,
        /// The value: a JSON object, or `-` for standard input.
        value: String,
        /// The item's TTL: minutes, or a number with `s`, `m`, `h` or `d`. By default the item does not expire.
        #[arg(long, value_name = "TIME")]
        ttl: Option<String>,
        /// Embed the text at this path, instead of those of --embed-field. May be repeated.
        #[arg(long = "index", value_name = "PATH", conflicts_with = "no_index")]
        paths: Vec<String>,
        /// Exclude the item from semantic search.
        #[arg(long)]
        no_index: bool,
        #[command(flatten)]
        index: Index,
    },
    /// Show an item.
    #[command(after_help = "\
Examples:
  ckpt store get users.ann prefs
  ckpt store get users.ann prefs --json | jq .value.theme")]
    Get {
        /// The namespace: labels separated by dots.
        namespace: String,
        /// The key in the namespace.
        key: String,
        #[command(flatten)]
        refresh: Refresh,
    },
    /// Delete an item, with its vectors.
    #[command(after_help = "Example:\n  ckpt store delete users.ann prefs --yes")]
    Delete {
        /// The namespace: labels separated by dots.
        namespace: String,
        /// The key in the namespace.
        key: String,
        #[command(flatten)]
        consent: Consent,
    },
    /// Find items in a namespace and its descendants: the most recently put first, or with --query the best matches.
    ///
    /// A filter is an object of keys, each with a value, or with operators (`$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`) and
    /// values. Numbers compare with numbers, texts with texts.
    #[command(after_help = "\
Examples:
  ckpt store search
  ckpt store search users.ann --limit 50 --json
  ckpt store search users --filter '{\"theme\": \"dark\", \"visits\": {\"$gte\": 10}}'
  ckpt store search users --query 'what does ann drink?' --embed ngrams --embed-dims 256")]
    Search {
        /// The namespace: labels separated by dots; all namespaces by default.
        #[arg(default_value = "", hide_default_value = true)]
        namespace: String,
        /// Conditions on the values, as JSON.
        #[arg(long, value_name = "JSON")]
        filter: Option<String>,
        /// The query of a semantic search. Needs --embed.
        #[arg(long, value_name = "TEXT")]
        query: Option<String>,
        /// The maximum number of items.
        #[arg(long, value_name = "N", default_value_t = 10)]
        limit: usize,
        /// Skip this many of the first.
        #[arg(long, value_name = "N", default_value_t = 0)]
        offset: usize,
        #[command(flatten)]
        refresh: Refresh,
        #[command(flatten)]
        index: Index,
    },
    /// List the namespaces that have items.
    #[command(after_help = "\
Examples:
  ckpt store namespaces
  ckpt store namespaces --prefix users --max-depth 2
  ckpt store namespaces --prefix 'users.*' --json")]
    Namespaces {
        /// Only those that begin with these labels; `*` matches any one label.
        #[arg(long, value_name = "LABELS")]
        prefix: Option<String>,
        /// Only those that end with these labels; `*` matches any one label.
        #[arg(long, value_name = "LABELS")]
        suffix: Option<String>,
        /// Truncate them to this many labels, and remove duplicates.
        #[arg(long, value_name = "N")]
        max_depth: Option<usize>,
        /// The maximum number of namespaces.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Skip this many of the first.
        #[arg(long, value_name = "N", default_value_t = 0)]
        offset: usize,
    },
    /// Remove expired items. They are invisible even before that.
    #[command(after_help = "Example:\n  ckpt store sweep")]
    Sweep,
    /// Put a few notes into an in-memory store, and find them by filter and by question. Needs no database.
    ///
    /// They are embedded by `ngrams`, which compares words, where a model compares meaning.
    #[command(after_help = "Example:\n  ckpt store demo")]
    Demo,
}

/// Whether reads refresh the TTL.
#[derive(Debug, Args)]
pub(crate) struct Refresh {
    /// Refresh the TTL of the items found, as an agent's reads do. Off by default.
    #[arg(long)]
    pub(crate) refresh_ttl: bool,
}

/// The options of semantic search.
#[derive(Debug, Args)]
#[command(next_help_heading = "Vectors")]
pub(crate) struct Index {
    /// The embeddings: the name of a model on a server with OpenAI's API, or `ngrams`, which needs no server and finds
    /// texts with the same words. The API key is read from `OPENAI_API_KEY`.
    #[arg(long, env = "CKPT_EMBED", value_name = "MODEL")]
    pub(crate) embed: Option<String>,
    /// The server, such as `http://localhost:11434/v1`; by default `OPENAI_BASE_URL`, or else OpenAI's. Texts and the API
    /// key are sent there.
    #[arg(long, env = "CKPT_EMBED_URL", value_name = "URL")]
    pub(crate) embed_url: Option<String>,
    /// The number of dimensions of the vectors: that of the model; any number for `ngrams`.
    #[arg(long, env = "CKPT_EMBED_DIMS", value_name = "N")]
    pub(crate) embed_dims: Option<usize>,
    /// Request vectors of --embed-dims dimensions from the model, instead of its default length.
    #[arg(long)]
    pub(crate) embed_shorten: bool,
    /// Embed the text at this path, such as `text`, `meta.title` or `parts[*].text`; the whole value by default. May be
    /// repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) embed_field: Vec<String>,
    /// How the distance of vectors is measured.
    #[arg(long, value_enum, default_value_t = Distance::Cosine)]
    pub(crate) distance: Distance,
    /// How vectors are stored: with 4 bytes per dimension, or 2.
    #[arg(long, value_enum, default_value_t = VectorType::Vector)]
    pub(crate) vector_type: VectorType,
    /// How the nearest vectors are found: by a graph of neighbours, by lists, or exactly by a scan of all.
    #[arg(long, value_enum, default_value_t = Ann::Hnsw)]
    pub(crate) ann: Ann,
    /// The number of lists of `--ann ivfflat`: about one per thousand vectors.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) ann_lists: u32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Distance {
    Cosine,
    L2,
    InnerProduct,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum VectorType {
    Vector,
    Halfvec,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Ann {
    Hnsw,
    Ivfflat,
    Flat,
}
