//! A wrapper that lacks the optional operations of its saver, and wrappers that declare false capabilities.

use std::collections::BTreeMap;

use checkpoint_core::{
    BaseCheckpointSaver, BoxStream, ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig,
    CheckpointMetadata, CheckpointTuple, DeltaChannelHistory, ListQuery, PutOptions, PutWritesOptions,
    Result, SaverCapabilities, Str, ThreadInfo, ThreadQuery, async_trait,
};

use crate::Saver;

/// Implements `BaseCheckpointSaver` with these methods; required methods are delegated to the saver in field `0`.
macro_rules! delegating {
    ($wrapper:ty, $($methods:tt)*) => {
        #[async_trait]
        impl BaseCheckpointSaver for $wrapper {
        $($methods)*

        fn backend(&self) -> &'static str {
            self.0.backend()
        }

        async fn setup(&self) -> Result<()> {
            self.0.setup().await
        }

        async fn ping(&self) -> Result<()> {
            self.0.ping().await
        }

        async fn check_schema(&self) -> Result<()> {
            self.0.check_schema().await
        }

        async fn get_tuple(&self, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>> {
            self.0.get_tuple(config).await
        }

        fn list(&self, query: ListQuery) -> BoxStream<'static, Result<CheckpointTuple>> {
            self.0.list(query)
        }

        fn list_threads(&self, query: ThreadQuery) -> BoxStream<'static, Result<ThreadInfo>> {
            self.0.list_threads(query)
        }

        fn list_thread_ids(&self, query: ThreadQuery) -> BoxStream<'static, Result<Str>> {
            self.0.list_thread_ids(query)
        }

        async fn put_with(
            &self,
            config: &CheckpointConfig,
            checkpoint: &Checkpoint,
            metadata: &CheckpointMetadata,
            new_versions: &ChannelVersions,
            options: &PutOptions,
        ) -> Result<CheckpointConfig> {
            self.0.put_with(config, checkpoint, metadata, new_versions, options).await
        }

        async fn put_writes_with(
            &self,
            config: &CheckpointConfig,
            writes: &[(Str, ChannelValue)],
            task_id: &str,
            task_path: &str,
            options: &PutWritesOptions,
        ) -> Result<()> {
            self.0.put_writes_with(config, writes, task_id, task_path, options).await
        }

        async fn delete_thread(&self, thread_id: &str) -> Result<()> {
            self.0.delete_thread(thread_id).await
        }

        async fn get_delta_channel_history(
            &self,
            config: &CheckpointConfig,
            channels: &[&str],
        ) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
            self.0.get_delta_channel_history(config, channels).await
        }

        async fn close(&self) -> Result<()> {
            self.0.close().await
        }
        }
    };
}

/// Has only the required methods. The optional ones are the trait's defaults.
#[derive(Debug)]
pub(crate) struct Lacking(pub(crate) Saver);

delegating! {
    Lacking,

    fn capabilities(&self) -> SaverCapabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.delete_for_runs = false;
        capabilities.copy_thread = false;
        capabilities.prune = false;
        capabilities.retain = false;
        capabilities.usage = false;
        capabilities.leases = false;
        capabilities.rekey = false;
        capabilities
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use checkpoint_core::{Error, FilterSemantics, InMemorySaver, PruneStrategy, RekeyOptions, RekeyReport};

    use super::*;
    use crate::{Facility, OpenOptions, Report, Target, run_cases};

    /// A false declaration of a saver.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Lie {
        /// It declares an operation that returns `Ok` and does nothing.
        PruneDoesNothing,
        CopyDoesNothing,
        DeleteForRunsDoesNothing,
        /// It declares an operation that it does not have.
        PruneIsMissing,
        CopyIsMissing,
        DeleteForRunsIsMissing,
        /// It does not declare an operation that returns `Ok`.
        PruneIsHidden,
        CopyIsHidden,
        DeleteForRunsIsHidden,
        RekeyIsHidden,
        /// It declares that checkpoints outlive the process.
        Durable,
        /// It declares the other filter semantics.
        Filter,
    }

    #[derive(Debug)]
    struct Lying(Saver, Lie);

    delegating! {
        Lying,

        fn capabilities(&self) -> SaverCapabilities {
            let mut capabilities = self.0.capabilities();
            match self.1 {
                Lie::PruneIsHidden => capabilities.prune = false,
                Lie::CopyIsHidden => capabilities.copy_thread = false,
                Lie::DeleteForRunsIsHidden => capabilities.delete_for_runs = false,
                Lie::Durable => capabilities.durable = true,
                Lie::Filter => capabilities.filter = FilterSemantics::Containment,
                _ => {}
            }
            capabilities
        }

        async fn delete_for_runs(&self, run_ids: &[&str]) -> Result<()> {
            match self.1 {
                Lie::DeleteForRunsDoesNothing => Ok(()),
                Lie::DeleteForRunsIsMissing => Err(Error::unsupported(self.backend(), "delete_for_runs")),
                _ => self.0.delete_for_runs(run_ids).await,
            }
        }

        async fn copy_thread(&self, source_thread_id: &str, target_thread_id: &str) -> Result<()> {
            match self.1 {
                Lie::CopyDoesNothing => Ok(()),
                Lie::CopyIsMissing => Err(Error::unsupported(self.backend(), "copy_thread")),
                _ => self.0.copy_thread(source_thread_id, target_thread_id).await,
            }
        }

        async fn prune(&self, thread_ids: &[&str], strategy: PruneStrategy) -> Result<()> {
            match self.1 {
                Lie::PruneDoesNothing => Ok(()),
                Lie::PruneIsMissing => Err(Error::unsupported(self.backend(), "prune")),
                _ => self.0.prune(thread_ids, strategy).await,
            }
        }

        async fn rekey(&self, thread_id: &str, options: RekeyOptions) -> Result<RekeyReport> {
            match self.1 {
                Lie::RekeyIsHidden => Ok(RekeyReport::default()),
                _ => self.0.rekey(thread_id, options).await,
            }
        }
    }

    /// Wraps savers that share one memory; every empty database has its own memory.
    #[derive(Debug)]
    struct Wrapped {
        memory: InMemorySaver,
        wrap: Wrap,
    }

    #[derive(Debug, Clone, Copy)]
    enum Wrap {
        Lacking,
        Lying(Lie),
    }

    impl Wrapped {
        fn new(wrap: Wrap) -> Self {
            Self { memory: InMemorySaver::new(), wrap }
        }
    }

    #[async_trait]
    impl Target for Wrapped {
        fn name(&self) -> &'static str {
            "wrapped"
        }

        async fn open(&self, _options: OpenOptions) -> Result<Saver> {
            // A durable saver would find its data again; this one does not.
            let forgets = matches!(self.wrap, Wrap::Lying(Lie::Durable));
            let saver: Saver = Arc::new(if forgets { InMemorySaver::new() } else { self.memory.clone() });
            Ok(match self.wrap {
                Wrap::Lacking => Arc::new(Lacking(saver)),
                Wrap::Lying(lie) => Arc::new(Lying(saver, lie)),
            })
        }

        fn offers(&self, facility: Facility) -> bool {
            facility == Facility::Fresh
        }

        async fn fresh(&self) -> Result<Arc<dyn Target>> {
            Ok(Arc::new(Self::new(self.wrap)))
        }
    }

    async fn report(wrap: Wrap, groups: &[&str]) -> Report {
        let target = Arc::new(Wrapped::new(wrap));
        run_cases(target, |case| groups.is_empty() || groups.contains(&case.group()), |_, _| {})
            .await
            .unwrap()
    }

    const OPTIONAL: [&str; 5] = ["delete_for_runs", "copy_thread", "prune", "retention", "rekey"];

    #[tokio::test]
    async fn a_saver_that_lacks_the_optional_operations_passes() {
        let report = report(Wrap::Lacking, &[]).await;
        assert_eq!(report.failed, []);
        for group in OPTIONAL {
            let of_group = |name: &str| name.split("::").next() == Some(group);
            let ignored = report.ignored.iter().filter(|(name, _)| of_group(name));
            assert!(ignored.clone().count() >= 5, "{group}");
            for (name, reason) in ignored {
                let method = if group == "retention" { "retain" } else { group };
                assert_eq!(reason, &format!("the saver does not offer {method}"), "{name}");
            }
            assert!(!report.passed.iter().any(|name| of_group(name)), "{group}");
        }
        assert!(report.passed.len() > 150, "{} cases passed", report.passed.len());
    }

    #[tokio::test]
    async fn a_saver_with_false_capabilities_fails() {
        let cases: [(Lie, &str, usize); 12] = [
            (Lie::PruneDoesNothing, "prune", 5),
            (Lie::CopyDoesNothing, "copy_thread", 5),
            (Lie::DeleteForRunsDoesNothing, "delete_for_runs", 3),
            (Lie::PruneIsMissing, "prune", 5),
            (Lie::CopyIsMissing, "copy_thread", 5),
            (Lie::DeleteForRunsIsMissing, "delete_for_runs", 5),
            (Lie::PruneIsHidden, "invalid", 1),
            (Lie::CopyIsHidden, "invalid", 1),
            (Lie::DeleteForRunsIsHidden, "invalid", 1),
            (Lie::RekeyIsHidden, "invalid", 1),
            (Lie::Durable, "setup", 1),
            (Lie::Filter, "filters", 1),
        ];
        for (lie, group, least) in cases {
            let failed = report(Wrap::Lying(lie), &[group]).await.failed;
            assert!(failed.len() >= least, "{lie:?}: only {failed:?}");
        }
    }
}
