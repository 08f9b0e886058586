//! Containers: creates, starts, finds and removes them.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use checkpoint_servers::{Network, SHARED_MEMORY, Server, free_port};

use super::docker::{docker, output, tail};
use super::image::Images;
use super::{certificates, certificates_in};
use crate::run::{Result, succeeds};

/// The label of our containers; its value is the fingerprint of the entry that the container was created from.
const LABEL: &str = "checkpoint.servers";

/// The network in which servers find each other by their container names.
const NETWORK: &str = "checkpoint-servers";

/// The timeout for a server to respond after its start.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// An existing container.
#[derive(Debug)]
pub(super) struct Container {
    server: &'static Server,
    pub(super) running: bool,
    /// Whether it matches its entry.
    current: bool,
    /// The port on this machine.
    port: u16,
}

impl Container {
    /// Finds a server's container.
    pub(super) fn find(server: &'static Server) -> Result<Option<Self>> {
        let format = format!(
            "{{{{.State.Running}}}}\n{{{{.Config.Image}}}}\n{{{{index .Config.Labels \"{LABEL}\"}}}}\n{{{{range .HostConfig.PortBindings}}}}{{{{println (index . 0).HostPort}}}}{{{{end}}}}"
        );
        let inspected = docker(["container", "inspect", "--format", &format, &name(server)])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("docker could not be started: {error}"))?;
        // It must exist, and be ours.
        if !inspected.status.success() {
            return Ok(None);
        }
        parse(server, &String::from_utf8_lossy(&inspected.stdout))
            .map(Some)
            .ok_or_else(|| format!("a container {} exists that is not ours", name(server)).into())
    }

    /// The variables through which tests find this server.
    pub(super) fn variables(&self, folder: &Path) -> Vec<(&'static str, String)> {
        let certificates = self
            .server
            .certificates
            .map(|variable| (variable, certificates_in(folder).display().to_string()));
        std::iter::once((self.server.variable, self.server.url(self.port))).chain(certificates).collect()
    }
}

fn parse(server: &'static Server, inspected: &str) -> Option<Container> {
    let mut lines = inspected.trim().lines();
    let (running, image, fingerprint) = (lines.next()?, lines.next()?, lines.next()?);
    let port = match server.network {
        Network::Host => server.port,
        // The first one of a group.
        _ => lines.map(str::parse).collect::<Result<Vec<_>, _>>().ok()?.into_iter().min()?,
    };
    let has_image = server.official == Some(image) || server.stand_in() == image;
    Some(Container {
        server,
        running: running == "true",
        current: has_image && fingerprint == server.fingerprint(),
        port,
    })
}

/// The name of a server's container.
fn name(server: &Server) -> String {
    format!("checkpoint-{}", server.name)
}

/// Starts servers and waits until all respond.
pub(super) fn up(servers: &[&'static Server], folder: &Path) -> Result<Vec<Container>> {
    let mut found = Vec::new();
    for server in servers {
        found.push(Container::find(server)?);
    }
    let missing =
        |container: &Option<Container>| !container.as_ref().is_some_and(|container| container.current);
    let to_make: Vec<_> = servers
        .iter()
        .zip(&found)
        .filter(|(_, container)| missing(container))
        .map(|(server, _)| *server)
        .collect();
    let mut images = Images::default().ensure(&to_make, folder)?.into_iter();
    let mut containers = Vec::new();
    for (server, container) in servers.iter().zip(found) {
        let container = match container {
            Some(container) if container.current && container.running => container,
            Some(container) if container.current && started(server) => container,
            there => {
                if there.is_some() {
                    output(&mut docker(["rm", "--force", "--volumes", &name(server)]))?;
                }
                let image = match images.next() {
                    Some(image) if missing(&there) => image,
                    // Its port is taken by now, but its image exists.
                    _ => Images::default().ensure(&[server], folder)?.pop().ok_or("no image")?,
                };
                make(server, &image, folder)?
            }
        };
        containers.push(container);
    }
    for container in &containers {
        wait(container)?;
        if container.server.certificates.is_some() {
            copy_certificates(container.server, folder)?;
        }
    }
    Ok(containers)
}

fn started(server: &Server) -> bool {
    succeeds(docker(["start", &name(server)]).stdin(Stdio::null()))
}

/// Creates a container and starts it, on the entry's preferred port or else on a free one.
fn make(server: &'static Server, image: &str, folder: &Path) -> Result<Container> {
    let name = name(server);
    eprintln!("xtask: starting {name} ({image})");
    if !succeeds(docker(["network", "inspect", NETWORK]).stdin(Stdio::null())) {
        output(&mut docker(["network", "create", "--label", LABEL, NETWORK]))?;
    }
    let mut tries = 0;
    loop {
        let preferred = (tries == 0).then_some(server.host_port);
        let port = match server.network {
            Network::Host => server.port,
            _ => free_port(server, preferred).map_err(|error| format!("no free port: {error}"))?,
        };
        let made = create(server, image, port, folder).and_then(|()| output(&mut docker(["start", &name])));
        match made {
            Ok(_) => return Ok(Container { server, running: true, current: true, port }),
            // Removes the incomplete container.
            Err(error) => {
                succeeds(docker(["rm", "--force", "--volumes", &name]).stdin(Stdio::null()));
                // Another process may have taken the port in the meantime.
                if tries == 3 {
                    return Err(error);
                }
            }
        }
        tries += 1;
    }
}

fn create(server: &'static Server, image: &str, port: u16, folder: &Path) -> Result<()> {
    let name = name(server);
    let mut create = docker(["create", "--name", &name]);
    if server.network == Network::Host {
        create.args(["--network", "host"]);
    } else {
        for (outside, inside) in server.ports(port) {
            create.args(["--publish", &format!("127.0.0.1:{outside}:{inside}")]);
        }
        create.args(["--hostname", &name, "--network", NETWORK]);
    }
    create.args(["--label", &format!("{LABEL}={}", server.fingerprint())]);
    create.args(["--shm-size", &SHARED_MEMORY.to_string(), "--stop-signal", server.stop_signal]);
    for (variable, value) in server.environment(port, server.before.map(self::name).as_deref()) {
        create.args(["--env", &format!("{variable}={value}")]);
    }
    output(create.args(["--entrypoint", "sh", image, "-c", &server.start()]))?;
    if server.certificates.is_none() {
        return Ok(());
    }
    let fresh = folder.join("new-certs");
    std::fs::create_dir_all(&fresh)
        .map_err(|error| format!("{} cannot be made: {error}", fresh.display()))?;
    let copied = certificates::make(&fresh)
        .and_then(|()| output(docker(["cp"]).arg(fresh.join(".")).arg(format!("{name}:/certs"))));
    // The container has a copy, which `copy_certificates` reads.
    std::fs::remove_dir_all(&fresh)
        .map_err(|error| format!("{} cannot be removed: {error}", fresh.display()))?;
    copied.map(|_| ())
}

/// Copies a container's certificates to the folder of the tests: several worktrees may share one server.
fn copy_certificates(server: &Server, folder: &Path) -> Result<()> {
    let certificates = certificates_in(folder);
    std::fs::create_dir_all(&certificates)
        .map_err(|error| format!("{} cannot be made: {error}", certificates.display()))?;
    output(docker(["cp"]).arg(format!("{}:/certs/.", name(server))).arg(certificates))?;
    Ok(())
}

/// Waits until a server responds.
fn wait(container: &Container) -> Result<()> {
    let server = container.server;
    let name = name(server);
    let begun = Instant::now();
    loop {
        if succeeds(docker(["exec", &name, "sh", "-c", server.probe]).stdin(Stdio::null())) {
            return Ok(());
        }
        let running = Container::find(server)?.is_some_and(|container| container.running);
        if !running || begun.elapsed() > START_TIMEOUT {
            let logs = docker(["logs", "--tail", "10", &name]).stdin(Stdio::null()).output();
            let logs = logs.map(|logs| [logs.stdout, logs.stderr].concat()).unwrap_or_default();
            let state = if running { "does not respond" } else { "has exited" };
            return Err(format!(
                "{name} {state}; its log ends:\n{}",
                tail(&String::from_utf8_lossy(&logs), 10)
            )
            .into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Removes the containers that tests created in the network with this name, and the network. A no-op without an engine.
pub(super) fn remove_private(network: &str) {
    let filter = format!("network={network}");
    let found = output(&mut docker(["ps", "--all", "--quiet", "--filter", &filter])).unwrap_or_default();
    let containers: Vec<_> = found.lines().collect();
    if !containers.is_empty() {
        succeeds(docker(["rm", "--force", "--volumes"]).args(&containers));
        succeeds(&mut docker(["network", "rm", network]));
    }
}

/// Removes our containers and their network; others are kept.
pub(super) fn remove_all() -> Result<()> {
    let filter = format!("label={LABEL}");
    let containers = output(&mut docker(["ps", "--all", "--quiet", "--filter", &filter]))?;
    let containers: Vec<_> = containers.lines().collect();
    if !containers.is_empty() {
        output(docker(["rm", "--force", "--volumes"]).args(&containers))?;
    }
    let networks = output(&mut docker(["network", "ls", "--quiet", "--filter", &filter]))?;
    for network in networks.lines() {
        output(&mut docker(["network", "rm", network]))?;
    }
    eprintln!("xtask: removed {} containers", containers.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use checkpoint_servers::{PGBOUNCER, POSTGRES};

    use super::*;

    #[test]
    fn a_container_is_current_if_image_and_fingerprint_match() {
        let is_current = |image: &str, fingerprint: &str| {
            parse(&POSTGRES, &format!("true\n{image}\n{fingerprint}\n55432\n")).unwrap().current
        };
        let fingerprint = POSTGRES.fingerprint();
        assert!(is_current(POSTGRES.official.unwrap(), &fingerprint));
        assert!(is_current(&POSTGRES.stand_in(), &fingerprint));
        assert!(!is_current("pgvector/pgvector:pg16", &fingerprint));
        assert!(!is_current(&POSTGRES.stand_in(), &PGBOUNCER.fingerprint()));
    }

    #[test]
    fn state_and_port_are_read() {
        let container = parse(&PGBOUNCER, "false\nx\ny\n4711\n").unwrap();
        assert_eq!((container.running, container.port), (false, 4711));
        assert_eq!(parse(&PGBOUNCER, "true\nx\ny\n9\n10\n8\n\n").unwrap().port, 8);
        // Not ours: no label, or no published port.
        assert!(parse(&PGBOUNCER, "true\nx\n<no value>\n\n").is_none());
        assert!(parse(&PGBOUNCER, "true\nx\n\n\n").is_none());
    }
}
