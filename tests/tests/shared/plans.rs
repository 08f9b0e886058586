//! What a plan reads, and how.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use serde_json::Value;

/// A node of a plan that reads a table.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) table: String,
    pub(crate) how: String,
    pub(crate) index: String,
    /// The condition on rows that were read in vain otherwise.
    pub(crate) filter: String,
}

/// What a plan comes to.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) accesses: Vec<Access>,
    /// The kinds of all its nodes.
    pub(crate) kinds: Vec<String>,
}

impl Plan {
    /// Takes what `EXPLAIN (FORMAT JSON)` says.
    pub(crate) fn parse(json: &str) -> Self {
        let mut plan = Self::default();
        plan.gather(&serde_json::from_str::<Value>(json).unwrap()[0]["Plan"], "");
        plan
    }

    /// The heap is that of a bitmap's index scans, which do not name their table.
    fn gather(&mut self, node: &Value, heap: &str) {
        let text = |key: &str| node[key].as_str().unwrap_or_default();
        let (kind, relation) = (text("Node Type"), text("Relation Name"));
        self.kinds.push(kind.to_owned());
        let table = if relation.is_empty() && kind.starts_with("Bitmap") { heap } else { relation };
        if kind.ends_with("Scan") && kind != "Bitmap Heap Scan" && !table.is_empty() {
            let [table, how, index, filter] =
                [table, kind, text("Index Name"), text("Filter")].map(str::to_owned);
            self.accesses.push(Access { table, how, index, filter });
        }
        let heap = if kind.starts_with("Bitmap") { table } else { "" };
        for child in node["Plans"].as_array().into_iter().flatten() {
            self.gather(child, heap);
        }
    }

    /// How many of its nodes are of one of these kinds.
    pub(crate) fn count(&self, kinds: &[&str]) -> usize {
        self.kinds.iter().filter(|kind| kinds.contains(&kind.as_str())).count()
    }
}

/// The statements on a schema's tables, other than those of migrations and locks.
pub(crate) fn on_tables(statements: BTreeMap<String, usize>, schema: &str) -> BTreeSet<String> {
    const OTHERS: [&str; 4] = ["CREATE ", "ALTER ", "DROP ", "LOCK TABLE "];
    let is_one = |sql: &String| {
        sql.contains(schema)
            && !sql.contains("_migrations")
            && !OTHERS.iter().any(|other| sql.starts_with(other))
    };
    statements.into_keys().filter(is_one).collect()
}

/// Fails unless each statement that was seen is among the planned ones, and each call with planned statements sent one.
pub(crate) fn assert_all_planned<C: Ord + Debug>(seen: &BTreeSet<String>, planned: &BTreeMap<String, C>) {
    let unplanned: Vec<_> = seen.iter().filter(|sql| !planned.contains_key(*sql)).collect();
    assert!(unplanned.is_empty(), "plans() lacks: {unplanned:#?}");
    let calls: BTreeSet<_> = planned.values().collect();
    let called: BTreeSet<_> = seen.iter().map(|sql| &planned[sql]).collect();
    assert_eq!(called, calls, "calls whose statements were seen");
}
