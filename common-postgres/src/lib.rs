//! What the Postgres backends share.
