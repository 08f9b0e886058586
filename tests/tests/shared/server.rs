//! The servers of a test binary.
//!
//! [`url`] gives the URL of a server that every test of the binary shares: the one that the server's environment variable
//! names (`cargo xtask servers urls` prints them), else that of a container which is started for this binary, the first
//! time somebody asks. Without a container engine it says what is [`Missing`], which every test reports as its reason to
//! be ignored. `main` runs everything inside [`with_servers`], which removes the containers at the end.
//!
//! A test that stops or kills its server starts a [`Private`] one, so that other tests are not affected.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use checkpoint_conformance::Missing;
use checkpoint_servers::{SHARED_MEMORY, Server, free_port};
use testcontainers::bollard::query_parameters::KillContainerOptions;
use testcontainers::core::client::docker_client_instance;
use testcontainers::core::{ExecCommand, IntoContainerPort as _};
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{ContainerAsync, GenericImage, ImageExt as _};
use tokio::runtime::{Builder, Runtime};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The timeout for a start that has to pull the image first.
const PULL: Duration = Duration::from_secs(600);

/// The timeout for a server to respond, or to exit.
const ANSWER: Duration = Duration::from_secs(120);

/// Containers outlive the runtimes of single tests.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());

/// The containers of this binary, or the reason why one could not be started.
static SHARED: Mutex<Vec<(&'static Server, Result<Container, Missing>)>> = Mutex::new(Vec::new());

/// The URL of a server that all tests of this binary share, or why there is none. Never starts a container while tests
/// are only listed.
pub(crate) fn url(server: &'static Server) -> Result<String, Missing> {
    if let Some(url) = given(server) {
        return Ok(url);
    }
    if std::env::args().any(|argument| argument == "--list") {
        return Err(missing(server, "the tests are only listed"));
    }
    if let Some(upstream) = server.before {
        // Tests may look at both, which have to be the same server then.
        if given(upstream).is_some() {
            return Err(missing(server, &format!("{} is set alone", upstream.variable)));
        }
        url(upstream)?;
    }
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let host_of = |shared: &[(&Server, Result<Container, Missing>)], wanted: &Server| {
        let found = shared.iter().find(|(server, _)| server.name == wanted.name);
        found.and_then(|(_, started)| started.as_ref().ok()).map(|container| container.host.clone())
    };
    let known = shared.iter().position(|(known, _)| known.name == server.name);
    let at = known.unwrap_or_else(|| {
        let upstream = server.before.and_then(|upstream| host_of(&shared, upstream));
        let started = block_on(Container::new(server, upstream));
        shared.push((server, started.map_err(|error| missing(server, &error.to_string()))));
        shared.len() - 1
    });
    shared[at].1.as_ref().map(Container::url).map_err(Clone::clone)
}

/// Runs the tests of a binary, and removes the containers that they started.
pub(crate) fn with_servers(tests: impl FnOnce() -> ExitCode) -> ExitCode {
    let code = tests();
    // What stands before something goes first.
    let mut shared = std::mem::take(&mut *SHARED.lock().unwrap_or_else(PoisonError::into_inner));
    while shared.pop().is_some() {}
    code
}

/// A server of one test's own, in a container that goes with this value. Its URL stays the same when it is stopped and
/// started again, and what it stored is still there.
#[derive(Debug)]
pub(crate) struct Private {
    container: Container,
    /// Its upstream.
    _upstream: Option<Container>,
}

impl Private {
    /// Starts a server and waits until it responds.
    pub(crate) async fn new(server: &'static Server) -> Result<Self, Missing> {
        let start = async move {
            let upstream = match server.before {
                Some(upstream) => Some(Container::new(upstream, None).await?),
                None => None,
            };
            let host = upstream.as_ref().map(|upstream| upstream.host.clone());
            Ok(Self { container: Container::new(server, host).await?, _upstream: upstream })
        };
        let started: Result<_, Failed> = RUNTIME.spawn(start).await.unwrap();
        started.map_err(|error| absent(server, format!("it has to be in a container of its own: {error}")))
    }

    /// Its URL, even while it is stopped.
    pub(crate) fn url(&self) -> String {
        self.container.url()
    }

    /// Its port, or the first one of a group.
    pub(crate) fn port(&self) -> u16 {
        self.container.port
    }

    /// Runs a shell command in the container, and returns its output.
    pub(crate) async fn run(&self, command: &str) -> String {
        let (inner, command) = (self.container.inner(), command.to_owned());
        let ran: Result<_, Failed> = RUNTIME
            .spawn(async move {
                let mut ran = inner.exec(ExecCommand::new(["sh", "-c", &command])).await?;
                let said = ran.stdout_to_vec().await?;
                Ok(String::from_utf8_lossy(&said).into_owned())
            })
            .await
            .unwrap();
        ran.unwrap()
    }

    /// Waits until it responds as its probe expects: a group may have nodes that do not.
    pub(crate) async fn responds(&self) {
        let (server, inner) = (self.container.server, self.container.inner());
        RUNTIME.spawn(async move { answers(server, &inner).await }).await.unwrap().unwrap();
    }

    /// Shuts it down cleanly, without waiting for its clients, and waits until it has exited.
    pub(crate) async fn stop(&self) {
        let signal = format!("kill -s {} 1", self.container.server.stop_signal);
        let inner = self.container.inner();
        self.container
            .end(async move {
                inner.exec(ExecCommand::new(["sh", "-c", &signal])).await?;
                Ok(())
            })
            .await;
    }

    /// Kills it, as in a crash, and waits until it has exited.
    pub(crate) async fn kill(&self) {
        let id = self.container.inner().id().to_owned();
        self.container
            .end(async move {
                let options = KillContainerOptions { signal: "KILL".to_owned() };
                docker_client_instance().await?.kill_container(&id, Some(options)).await?;
                Ok(())
            })
            .await;
    }

    /// Stops or kills it, and starts it again after a short downtime.
    pub(crate) async fn restart(&self, crash: bool) {
        if crash {
            self.kill().await;
        } else {
            self.stop().await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        self.start().await;
    }

    /// Starts it again, and waits until it responds.
    pub(crate) async fn start(&self) {
        let (server, inner) = (self.container.server, self.container.inner());
        let started = RUNTIME.spawn(async move {
            inner.start().await?;
            answers(server, &inner).await
        });
        started.await.unwrap().unwrap();
    }
}

/// A container of ours.
#[derive(Debug)]
struct Container {
    server: &'static Server,
    /// The port of this machine, which stays the same over restarts.
    port: u16,
    /// Its name, by which others of the same network reach it.
    host: String,
    /// Taken when it is dropped.
    inner: Option<Arc<ContainerAsync<GenericImage>>>,
}

impl Container {
    async fn new(server: &'static Server, upstream: Option<String>) -> Result<Self, Failed> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let network = format!("checkpoint-test-{}", std::process::id());
        let host = format!("{network}-{}-{}", COUNT.fetch_add(1, Ordering::Relaxed), server.name);
        let image = image(server).await?;
        let (name, tag) = image.rsplit_once(':').ok_or("an image has a tag")?;
        let port = free_port(server, None)?;
        let mut request = GenericImage::new(name, tag)
            .with_entrypoint("sh")
            .with_cmd(["-c", server.start().as_str()])
            .with_container_name(&host)
            .with_network(&network)
            .with_shm_size(SHARED_MEMORY)
            .with_host_config_modifier(|config| {
                let bindings = config.port_bindings.iter_mut().flat_map(|ports| ports.values_mut());
                for binding in bindings.flatten().flatten() {
                    binding.host_ip = Some("127.0.0.1".to_owned());
                }
            });
        for (outside, inside) in server.ports(port) {
            request = request.with_mapped_port(outside, inside.tcp());
        }
        for (variable, value) in server.environment(port, upstream.as_deref()) {
            request = request.with_env_var(variable, value);
        }
        let inner =
            tokio::time::timeout(PULL, request.start()).await.map_err(|_| "it does not start in time")??;
        let container = Self { server, port, host, inner: Some(Arc::new(inner)) };
        answers(server, &container.inner()).await?;
        Ok(container)
    }

    fn url(&self) -> String {
        self.server.url(self.port)
    }

    fn inner(&self) -> Arc<ContainerAsync<GenericImage>> {
        self.inner.clone().unwrap()
    }

    /// Does what ends the server, and waits until it has.
    async fn end(&self, how: impl Future<Output = Result<(), Failed>> + Send + 'static) {
        let inner = self.inner();
        let ended: Result<(), Failed> = RUNTIME
            .spawn(async move {
                how.await?;
                let begun = Instant::now();
                while inner.is_running().await? {
                    if begun.elapsed() > ANSWER {
                        return Err("the server does not end".into());
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok(())
            })
            .await
            .unwrap();
        ended.unwrap();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let inner = self.inner.take();
        // Its own drop removes it, and wants a runtime for that.
        block_on(async move { drop(inner) });
    }
}

/// The URL that the environment gives.
fn given(server: &Server) -> Option<String> {
    std::env::var(server.variable).ok().filter(|url| !url.is_empty())
}

fn missing(server: &Server, why: &str) -> Missing {
    let variable = server.variable;
    absent(
        server,
        format!("{variable} is not set (cargo xtask test sets it), and no container takes its place: {why}"),
    )
}

fn absent(server: &Server, reason: String) -> Missing {
    Missing::new(server.name, reason, &[server.name, server.family])
}

/// The image that is here already; else the official one, which is pulled.
async fn image(server: &Server) -> Result<String, Failed> {
    let docker = docker_client_instance().await?;
    let local = server.official.map(str::to_owned).into_iter().chain([server.stand_in()]);
    for image in local {
        if docker.inspect_image(&image).await.is_ok() {
            return Ok(image);
        }
    }
    let build = || format!("its image is not here; cargo xtask servers up {} builds it", server.name);
    Ok(server.official.ok_or_else(build)?.to_owned())
}

/// Waits until a server responds.
async fn answers(server: &Server, container: &ContainerAsync<GenericImage>) -> Result<(), Failed> {
    let probe = format!("if {}; then echo answers; fi", server.probe);
    let begun = Instant::now();
    loop {
        if !container.is_running().await? {
            let said = [container.stdout_to_vec().await?, container.stderr_to_vec().await?].concat();
            return Err(format!("it has ended: {}", String::from_utf8_lossy(&said)).into());
        }
        let mut probing = container.exec(ExecCommand::new(["sh", "-c", &probe])).await?;
        if String::from_utf8_lossy(&probing.stdout_to_vec().await?).contains("answers") {
            return Ok(());
        }
        if begun.elapsed() > ANSWER {
            return Err("it does not respond".into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Runs a future in our runtime, on a separate thread, so that it may be called inside of another runtime, too.
fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| scope.spawn(|| RUNTIME.block_on(future)).join().unwrap())
}
