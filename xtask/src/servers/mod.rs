//! `cargo xtask servers`: the servers of the tests, in containers that keep running.

mod bare;
mod certificates;
mod container;
mod docker;
mod image;

use std::fs::File;
use std::path::{Path, PathBuf};

use checkpoint_servers::{ALL, Network, Server, find};
use clap::Subcommand;

pub(crate) use self::bare::{BARE_PYTHON, in_bare_python};
use self::container::Container;
use crate::run::Result;
use crate::target;

/// The subcommands of `servers`.
#[derive(Subcommand)]
pub(crate) enum Chore {
    /// Starts servers in containers and waits until they are ready. Running servers are not changed.
    ///
    /// As root on Debian it installs and starts Docker if it is missing. It uses the official images if a registry is
    /// reachable, otherwise images built from Debian's packages.
    Up {
        #[arg(value_name = "NAME", value_parser = server, help = format!("The servers: {}; by default those of the tests", names()))]
        servers: Vec<&'static Server>,
    },
    /// Removes the containers and their data.
    Down,
    /// Prints the variables of the running servers, for a shell: export $(cargo xtask servers urls).
    Urls,
}

fn server(name: &str) -> Result<&'static Server, String> {
    find(name).ok_or_else(|| format!("the servers are {}", names()))
}

fn names() -> String {
    ALL.iter().map(|server| server.name).collect::<Vec<_>>().join(", ")
}

/// Runs a subcommand.
pub(crate) fn run(chore: Chore) -> Result<()> {
    match chore {
        Chore::Up { servers } => {
            // The benchmark servers are started by the benchmarks.
            let of_tests =
                || ALL.iter().copied().filter(|server| server.network == Network::Published).collect();
            let servers = if servers.is_empty() { of_tests() } else { servers };
            for (variable, value) in up(&servers)? {
                println!("{variable}={}", quoted(&value));
            }
            Ok(())
        }
        Chore::Down => {
            if !docker::answers() {
                return Err("Docker's engine does not respond, so no container is running".into());
            }
            container::remove_all()
        }
        Chore::Urls => {
            if !docker::answers() {
                return Err("Docker's engine does not respond; cargo xtask servers up starts it".into());
            }
            let mut variables = Vec::new();
            for server in ALL {
                if let Some(container) = Container::find(server)?.filter(|container| container.running) {
                    variables.extend(container.variables(&folder()?));
                }
            }
            if variables.is_empty() {
                return Err("no server is running; cargo xtask servers up starts them".into());
            }
            for (variable, value) in variables {
                println!("{variable}={}", quoted(&value));
            }
            Ok(())
        }
    }
}

/// Starts servers and their upstreams, and returns their variables.
pub(crate) fn up(servers: &[&'static Server]) -> Result<Vec<(&'static str, String)>> {
    let folder = folder()?;
    // Concurrent runs would interfere with each other's containers.
    let lock = folder.join("lock");
    let lock = File::create(&lock).map_err(|error| format!("{} cannot be made: {error}", lock.display()))?;
    lock.lock().map_err(|error| format!("the servers cannot be locked: {error}"))?;

    docker::ensure(&folder)?;
    let mut variables = Vec::new();
    for container in container::up(&wanted(servers), &folder)? {
        variables.extend(container.variables(&folder));
    }
    Ok(variables)
}

/// Removes the private containers of a test binary that was ended before it could remove them.
pub(crate) fn remove_private_of(process: u32) {
    container::remove_private(&format!("checkpoint-test-{process}"));
}

/// The servers and their upstreams, in the order of the list.
fn wanted(servers: &[&'static Server]) -> Vec<&'static Server> {
    let named = |name: &str| {
        servers
            .iter()
            .any(|server| server.name == name || server.before.is_some_and(|upstream| upstream.name == name))
    };
    ALL.iter().copied().filter(|server| named(server.name)).collect()
}

/// The folder for logs, certificates and builds.
fn folder() -> Result<PathBuf> {
    let folder = target().join("servers");
    std::fs::create_dir_all(&folder)
        .map_err(|error| format!("{} cannot be made: {error}", folder.display()))?;
    Ok(folder)
}

/// The folder with the certificates of clients.
fn certificates_in(folder: &Path) -> PathBuf {
    folder.join("certs")
}

/// A value, quoted for a shell.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/:@._-+,".contains(c);
    if value.chars().all(is_plain) { value.to_owned() } else { format!("'{}'", value.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_includes_its_upstream() {
        let names =
            |name| wanted(&[find(name).unwrap()]).iter().map(|server| server.name).collect::<Vec<_>>();
        assert_eq!(names("pgbouncer"), ["postgres", "pgbouncer"]);
        assert_eq!(names("redis"), ["redis"]);
        assert_eq!(wanted(ALL).len(), ALL.len());
    }

    #[test]
    fn an_unknown_name_fails_with_the_known_names() {
        assert!(server("mysql").unwrap_err().contains("postgres-15"));
    }

    #[test]
    fn values_are_quoted_for_a_shell() {
        assert_eq!(quoted("postgres://a:b@127.0.0.1:1/c"), "postgres://a:b@127.0.0.1:1/c");
        assert_eq!(
            quoted("redis+cluster://127.0.0.1:1,127.0.0.1:2"),
            "redis+cluster://127.0.0.1:1,127.0.0.1:2"
        );
        assert_eq!(quoted("/my folder/it's"), r"'/my folder/it'\''s'");
    }
}
