//! The command line of stores.

use clap::{Args, Subcommand, ValueEnum};

use super::Consent;

/// The name in the place of a model's by which texts are embedded without one.
pub(crate) const NGRAMS: &str = "ngrams";

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Create or upgrade the store's tables. Safe to repeat, and to run from several processes at once.
    ///
    /// With `--embed-dims` there is a table of vectors too, which needs the extension `vector` (pgvector); what it is like
    /// is decided the first time.
    #[command(after_help = "\
Examples:
  ckpt store setup
  ckpt store setup --embed-dims 1536
  ckpt store setup --embed-dims 3072 --vector-type halfvec --ann flat")]
    Setup {
        #[command(flatten)]
        index: Index,
        /// Also make an index for filters: searches for values by equality become faster, puts slower.
        #[arg(long)]
        filter_index: bool,
    },
    /// Store an item. What was under its key is replaced.
    ///
    /// Where the store has vectors, queries find the item only if it is put with --embed: without it, the vectors that
    /// were made of the old value are deleted, and ckpt says so.
    #[command(after_help = "\
Examples:
  ckpt store put users.ann prefs '{\"theme\": \"dark\", \"visits\": 12}'
  ckpt store put users.ann session '{\"page\": 3}' --ttl 30m
  echo '{\"text\": \"ann likes tea\"}' | ckpt store put users.ann note - --embed ngrams --embed-dims 256
  ckpt store put users.ann note '{\"text\": \"tea\"}' --embed ngrams --embed-dims 256 --index text")]
    Put {
        /// The namespace: labels, with dots between them.
        namespace: String,
        /// The key in the namespace.
        key: String,
        /// The value: a JSON object, or `-` for what is on standard input.
        value: String,
        /// How long the item lives: minutes, or a number with `s`, `m`, `h` or `d`. For ever, if not given.
        #[arg(long, value_name = "TIME")]
        ttl: Option<String>,
        /// Embed the text at this path, in place of those of --embed-field. May be repeated.
        #[arg(long = "index", value_name = "PATH", conflicts_with = "no_index")]
        paths: Vec<String>,
        /// Have no query find the item.
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
        /// The namespace: labels, with dots between them.
        namespace: String,
        /// The key in the namespace.
        key: String,
        #[command(flatten)]
        refresh: Refresh,
    },
    /// Delete an item, with its vectors.
    #[command(after_help = "Example:\n  ckpt store delete users.ann prefs --yes")]
    Delete {
        /// The namespace: labels, with dots between them.
        namespace: String,
        /// The key in the namespace.
        key: String,
        #[command(flatten)]
        consent: Consent,
    },
    /// Find items in a namespace and all below it: the last put first, or with --query the nearest in meaning.
    ///
    /// A filter is an object of keys and what stands under them: a value, or `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`
    /// with one. Numbers compare with numbers, texts with texts.
    #[command(after_help = "\
Examples:
  ckpt store search
  ckpt store search users.ann --limit 50 --json
  ckpt store search users --filter '{\"theme\": \"dark\", \"visits\": {\"$gte\": 10}}'
  ckpt store search users --query 'what does ann drink?' --embed ngrams --embed-dims 256")]
    Search {
        /// The namespace: labels, with dots between them; everything, if not given.
        #[arg(default_value = "", hide_default_value = true)]
        namespace: String,
        /// What the values must be like, as JSON.
        #[arg(long, value_name = "JSON")]
        filter: Option<String>,
        /// What they should be near to in meaning. It needs --embed.
        #[arg(long, value_name = "TEXT")]
        query: Option<String>,
        /// At most so many.
        #[arg(long, value_name = "N", default_value_t = 10)]
        limit: usize,
        /// Leave out so many of the first.
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
        /// Those that begin with these labels, of which `*` stands for any one.
        #[arg(long, value_name = "LABELS")]
        prefix: Option<String>,
        /// Those that end with these labels, of which `*` stands for any one.
        #[arg(long, value_name = "LABELS")]
        suffix: Option<String>,
        /// Cut them to so many labels, and list each once that is left.
        #[arg(long, value_name = "N")]
        max_depth: Option<usize>,
        /// At most so many.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Leave out so many of the first.
        #[arg(long, value_name = "N", default_value_t = 0)]
        offset: usize,
    },
    /// Remove the items that have expired. Nobody sees them before either.
    #[command(after_help = "Example:\n  ckpt store sweep")]
    Sweep,
    /// Put a few notes into a store in memory, and find them by filter and by questions. Needs no database.
    ///
    /// What embeds them is `ngrams`: it finds by the words of a question, as a model finds by what it means.
    #[command(after_help = "Example:\n  ckpt store demo")]
    Demo,
}

/// Whether reading counts as use.
#[derive(Debug, Args)]
pub(crate) struct Refresh {
    /// Let the times to live of what is found begin anew, as an agent's reads do. A look from outside does not.
    #[arg(long)]
    pub(crate) refresh_ttl: bool,
}

/// What makes a store search by meaning.
#[derive(Debug, Args)]
#[command(next_help_heading = "Vectors")]
pub(crate) struct Index {
    /// What makes the vectors: the name of a model on a server with OpenAI's API, or `ngrams`, which needs no server and
    /// finds texts with the same words. The key is in `OPENAI_API_KEY`.
    #[arg(long, env = "CKPT_EMBED", value_name = "MODEL")]
    pub(crate) embed: Option<String>,
    /// The server, as in `http://localhost:11434/v1`; `OPENAI_BASE_URL`, or else OpenAI's, if not given. Texts and the key
    /// are sent there.
    #[arg(long, env = "CKPT_EMBED_URL", value_name = "URL")]
    pub(crate) embed_url: Option<String>,
    /// How many dimensions the vectors have: the model's own, for `ngrams` as many as you like.
    #[arg(long, env = "CKPT_EMBED_DIMS", value_name = "N")]
    pub(crate) embed_dims: Option<usize>,
    /// Ask the model for vectors of --embed-dims dimensions in place of its own length.
    #[arg(long)]
    pub(crate) embed_shorten: bool,
    /// Embed the text at this path, such as `text`, `meta.title` or `parts[*].text`; the whole value, if not given. May be
    /// repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) embed_field: Vec<String>,
    /// How nearness is measured.
    #[arg(long, value_enum, default_value_t = Distance::Cosine)]
    pub(crate) distance: Distance,
    /// How vectors are stored: in 4 bytes for each dimension, or 2.
    #[arg(long, value_enum, default_value_t = VectorType::Vector)]
    pub(crate) vector_type: VectorType,
    /// How the nearest are found: by a graph of neighbours, by lists, or exactly by looking at all.
    #[arg(long, value_enum, default_value_t = Ann::Hnsw)]
    pub(crate) ann: Ann,
    /// How many lists `--ann ivfflat` has: about one for every thousand vectors.
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
