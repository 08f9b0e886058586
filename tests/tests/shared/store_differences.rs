//! Where our stores differ from what Python's did, on purpose.

/// Which of our stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    Memory,
    Postgres,
    Both,
}

impl On {
    /// The store by which Python recorded.
    pub(crate) fn recorded(self) -> &'static str {
        if self == Self::Memory { "mem" } else { "pg" }
    }

    pub(crate) fn has(self, store: Self) -> bool {
        self == Self::Both || self == store
    }
}

/// A probe that comes to something else than in Python.
pub(crate) struct Difference {
    pub(crate) probe: &'static str,
    pub(crate) on: On,
    /// What ours comes to, as JSON.
    pub(crate) ours: &'static str,
    pub(crate) why: &'static str,
}

const fn differs(probe: &'static str, on: On, ours: &'static str, why: &'static str) -> Difference {
    Difference { probe, on, ours, why }
}

const VALIDATED: &str = "labels are checked in every operation, as Python does from 4.3 on";
const NEWEST_FIRST: &str = "every store orders by the last put, as Python's does on PostgreSQL";
const NUMBERS: &str = "numbers compare as numbers, not as text";
const MISSING: &str = "an item that does not have the key meets no condition on it";
const NO_INDEX: &str = "a query that cannot be answered is refused, not ignored";
const DISTANCES: &str =
    "memory knows all distances, finds no item without a vector, and of equals the last put first";
const EQUALS: &str = "of equals the last put comes first";

pub(crate) const DIFFERENCES: &[Difference] = &[
    differs("get namespace dot (not validated in 4.2)", On::Both, r#""ERR InvalidArgument""#, VALIDATED),
    differs(
        "get namespace emptylabel (not validated in 4.2)",
        On::Both,
        r#""ERR InvalidArgument""#,
        VALIDATED,
    ),
    differs("ttl on store", On::Memory, "null", "items in memory expire as well"),
    differs(
        "update preserves created_at?",
        On::Memory,
        r#"{"created_preserved": true, "updated_gt": true}"#,
        "an item's creation is when its key was first put, on every store",
    ),
    differs(
        "search ('u','1') all",
        On::Memory,
        r#"[["u.1.deep", "k5", null], ["u.1", "k2", null], ["u.1", "k1", null]]"#,
        NEWEST_FIRST,
    ),
    differs(
        "search () all",
        On::Memory,
        r#"[["u.1.deep", "k5", null], ["u1", "k4", null], ["u.2", "k3", null], ["u.1", "k2", null],
            ["u.1", "k1", null]]"#,
        NEWEST_FIRST,
    ),
    differs(
        "search ('u',) prefix is segment-wise",
        On::Memory,
        r#"[["u.1.deep", "k5", null], ["u.2", "k3", null], ["u.1", "k2", null], ["u.1", "k1", null]]"#,
        NEWEST_FIRST,
    ),
    differs("search limit/offset", On::Memory, r#"[["u1", "k4", null], ["u.2", "k3", null]]"#, NEWEST_FIRST),
    differs("filter {'n': {'$gt': 2}}", On::Postgres, r#"["k3", "k4", "k5"]"#, NUMBERS),
    differs("filter {'n': {'$gte': 2}}", On::Postgres, r#"["k2", "k3", "k4", "k5"]"#, NUMBERS),
    differs("filter {'n': {'$lt': 3}}", On::Postgres, r#"["k1", "k2"]"#, NUMBERS),
    differs("filter {'n': {'$lte': 3}}", On::Postgres, r#"["k1", "k2", "k4"]"#, NUMBERS),
    differs("filter {'n': {'$gt': 1, '$lt': 5}}", On::Postgres, r#"["k2", "k4"]"#, NUMBERS),
    differs("filter {'s': {'$gt': 'x'}}", On::Memory, r#"["k2", "k5"]"#, "texts compare with texts"),
    differs("filter {'z': None}", On::Memory, r#"["k1"]"#, MISSING),
    differs("filter {'missing': None}", On::Memory, "[]", MISSING),
    differs(
        "filter {'o': {'p': 1}}",
        On::Postgres,
        r#"["k1"]"#,
        "an object without operators is a condition on its entries, as Python has it in memory",
    ),
    differs("query without index", On::Both, r#""ERR Unsupported""#, NO_INDEX),
    differs(
        "list_namespaces after deleting last item",
        On::Memory,
        "[]",
        "a namespace without items is not listed",
    ),
    differs(
        "vector search cosine",
        On::Memory,
        r#"[["d", "k1", 1.0], ["d", "k4", 0.0025], ["d", "k2", 0.0025]]"#,
        DISTANCES,
    ),
    differs(
        "vector search cosine",
        On::Postgres,
        r#"[["d", "k1", 1.0], ["d", "k4", 0.0025], ["d", "k2", 0.0025]]"#,
        EQUALS,
    ),
    differs(
        "vector search l2",
        On::Memory,
        r#"[["d", "k1", -3.0], ["d", "k4", -4.1231], ["d", "k2", -4.1231]]"#,
        DISTANCES,
    ),
    differs(
        "vector search l2",
        On::Postgres,
        r#"[["d", "k1", -3.0], ["d", "k4", -4.1231], ["d", "k2", -4.1231]]"#,
        EQUALS,
    ),
    differs(
        "vector search inner_product",
        On::Memory,
        r#"[["d", "k1", 4.0501], ["d", "k4", 0.0101], ["d", "k2", 0.0101]]"#,
        DISTANCES,
    ),
    differs(
        "vector search inner_product",
        On::Postgres,
        r#"[["d", "k1", 4.0501], ["d", "k4", 0.0101], ["d", "k2", 0.0101]]"#,
        EQUALS,
    ),
    differs(
        "stale vectors",
        On::Both,
        r#"{"vectors_after_overwrite_without_field": 0, "after_delete": 0}"#,
        "a put replaces all vectors of its item",
    ),
    differs(
        "ttl rows (default_ttl=10)",
        On::Postgres,
        r#"[{"key": "k", "expires": true, "ttl_minutes": "1"}, {"key": "k2", "expires": true, "ttl_minutes": "10"},
            {"key": "k3", "expires": false, "ttl_minutes": "None"}]"#,
        "a refreshed item lives at least as long as it was put for: the column's whole minutes are rounded up",
    ),
    differs(
        "expired rows visible until sweep",
        On::Both,
        r#"{"expired_visible_get": false, "expired_visible_search": 0, "listed": 0, "swept": 1, "after": false}"#,
        "an expired item is there for nobody, as Python has it with omit_expired",
    ),
];

/// Probes that Rust cannot express, and why.
pub(crate) const WITHOUT_COUNTERPART: &[(&str, &str)] = &[
    ("put namespace nonstr", "labels are text by their type"),
    ("get namespace nonstr (not validated in 4.2)", "labels are text by their type"),
    ("key coerced to str", "keys are text by their type"),
    ("created_at/updated_at types", "both are DateTime<Utc>, so they have a time zone by their type"),
    ("sqlite ignores 'fields' (needs text_fields)", "of Python's store on SQLite alone"),
    ("tokenize_path", "paths are taken apart inside of the crate, where a test has this table"),
];
