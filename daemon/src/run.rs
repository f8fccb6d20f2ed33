//! The daemon's life: bind, load, serve, drain, end.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use openjet_proto::Health;
use sd_notify::NotifyState;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::app::App;
use crate::config::Config;
use crate::config::cli::Cli;
use crate::control::Control;
use crate::control::socket::{self, ControlSocket};
use crate::http::keys::Keys;
use crate::http::router::Router;
use crate::http::server::{ConnectionLimits, Server};
use crate::idle;
use crate::page::feed::Feed;
use crate::phase::{Phase, Reason};
use crate::systemd::{Sockets, notify};
use crate::{reload, watchdog};

/// Longest wait for clients to take the last bytes that they were sent.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// How long a daemon whose engine has failed still answers, so that whoever checks on it hears why.
const FAILED_STAY: Duration = Duration::from_millis(500);

/// Longest wait for conversations to be on disk.
const LAST_WRITES: Duration = Duration::from_secs(30);

/// Time between two looks at how far the load is.
const LOOK: Duration = Duration::from_millis(50);

/// Connections to the control socket at once.
const CONTROL_CONNECTIONS: usize = 256;

/// Runs the daemon until it is told to stop or can't go on.
///
/// # Errors
/// When an address can't be had, the model can't be loaded, or the engine fails; the message names the fix where there is
/// one.
pub fn run(cli: &Cli, config: Config) -> anyhow::Result<()> {
    let sockets = Sockets::take()?;
    let runtime = tokio::runtime::Runtime::new().context("the async runtime could not be started")?;
    let result = runtime.block_on(async {
        let daemon = Daemon::start(config, sockets).await?;
        daemon.until_stopped(cli).await
    });
    // A load that was interrupted must not hold the end up.
    runtime.shutdown_background();
    result
}

/// A daemon that listens and loads, or serves.
#[derive(Debug)]
pub struct Daemon {
    /// Its shared state.
    pub app: Arc<App>,
    /// Address of the HTTP API.
    pub address: SocketAddr,
    stop: watch::Sender<bool>,
    servers: Vec<JoinHandle<()>>,
    loaded: oneshot::Receiver<anyhow::Result<()>>,
    _control: Option<ControlSocket>,
}

impl Daemon {
    /// Binds both sockets, unless `sockets` has them, starts to serve them, and starts to load the model.
    ///
    /// # Errors
    /// When a socket can't be had.
    pub async fn start(config: Config, sockets: Sockets) -> anyhow::Result<Self> {
        let keys = Keys::load(config.api_keys.as_deref())?;
        let activated = sockets.http.is_some();
        let listener = match sockets.http {
            Some(listener) => TcpListener::from_std(listener).context("systemd's socket for the HTTP API")?,
            None => listen(&config).await?,
        };
        let address = listener.local_addr().context("the HTTP API's address")?;
        admit_others(&config, address, !keys.is_empty())?;
        let (control_listener, control) = match sockets.control {
            Some(listener) => (UnixListener::from_std(listener).context("systemd's socket for control")?, None),
            None => socket::bind(&config.control_socket()).map(|(listener, file)| (listener, Some(file)))?,
        };
        let place = control_listener.local_addr().context("the control socket's address")?;
        let place = place.as_pathname().map_or_else(|| "without a path".to_owned(), |path| path.display().to_string());
        let limits = ConnectionLimits {
            connections: config.connections,
            headers: Duration::from_secs(config.header_timeout_s),
            write: Duration::from_secs(config.write_timeout_s),
        };
        let app = Arc::new(App::new(config, address.to_string(), keys)?);
        let (stop, stopped) = watch::channel(false);
        let http = {
            let (server, router, stopped) =
                (Server::tcp(listener, limits), Router { app: app.clone() }, stopped.clone());
            async move {
                // Whoever has started the daemon by its socket waits until it serves.
                while activated && matches!(&*router.app.phase(), Phase::Loading(_)) {
                    tokio::time::sleep(LOOK).await;
                }
                server.run(router, stopped).await;
            }
        };
        let control_limits = ConnectionLimits { connections: CONTROL_CONNECTIONS, ..limits };
        let control_server = Server::unix(control_listener, control_limits).run(Control { app: app.clone() }, stopped);
        let servers = vec![tokio::spawn(http), tokio::spawn(control_server)];
        tracing::info!("listening on http://{address}, control socket {place}");
        // They end with the runtime.
        tokio::spawn(Feed::run(app.clone()));
        tokio::spawn(idle::watch(app.clone()));
        tokio::spawn(watchdog::feed(app.clone()));
        let loaded = start_loading(app.clone());
        Ok(Self { app, address, stop, servers, loaded, _control: control })
    }

    /// Returns once the model is loaded and requests are served.
    ///
    /// # Errors
    /// When it can't be loaded.
    pub async fn until_ready(&mut self) -> anyhow::Result<()> {
        (&mut self.loaded).await.context("the loading thread has ended")?
    }

    /// Serves until SIGTERM or SIGINT, then drains. SIGHUP has the settings of `cli` read again.
    ///
    /// # Errors
    /// When the model can't be loaded or the engine fails.
    pub async fn until_stopped(mut self, cli: &Cli) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM can't be watched")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT can't be watched")?;
        let mut hangup = signal(SignalKind::hangup()).context("SIGHUP can't be watched")?;
        tokio::select! {
            ready = self.until_ready() => ready?,
            _ = terminate.recv() => return self.stop().await,
            _ = interrupt.recv() => return self.stop().await,
        }
        notify(&[NotifyState::Ready]);
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => self.reload(cli).await,
                reason = engine_failed(&self.app) => {
                    // The service manager takes the READY back.
                    notify(&[NotifyState::Stopping, NotifyState::Status(&reason)]);
                    // Running requests hear of it from the engine itself; give them a moment to tell their clients.
                    tokio::time::timeout(LAST_BYTES, self.app.requests.wait_until_none()).await.ok();
                    tokio::time::sleep(FAILED_STAY).await;
                    bail!("the engine has failed: {reason}");
                }
            }
        }
        // A second signal ends it at once.
        tokio::select! {
            ended = self.stop() => ended,
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
        }
    }

    /// Reads the settings again; what is wrong with them is logged and leaves those in force.
    async fn reload(&self, cli: &Cli) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(error) => tracing::debug!(%error, "no monotonic time"),
        }
        let words = match reload::reload(&self.app, cli).await {
            Ok(()) => self.app.phase().words(),
            Err(error) => {
                tracing::error!("the settings stay as they were: {error:#}");
                format!("the settings could not be read again: {error:#}")
            }
        };
        notify(&[NotifyState::Ready, NotifyState::Status(&words)]);
    }

    /// Refuses new requests, lets running ones end within the set time, cuts the others, closes.
    ///
    /// # Errors
    /// None today.
    pub async fn stop(self) -> anyhow::Result<()> {
        let drain = Duration::from_secs(self.app.config().drain_s);
        notify(&[NotifyState::Stopping]);
        if let Some(serving) = self.app.phase().loaded() {
            self.app.set_phase(Phase::Draining(serving.clone(), Reason::Stopping));
            tracing::info!(requests = self.app.requests.now(), "stopping: running requests have {} s", drain.as_secs());
            if tokio::time::timeout(drain, self.app.requests.wait_until_none()).await.is_err() {
                tracing::warn!(requests = self.app.requests.now(), "the time is over; cutting what still runs");
                self.app.cut_requests();
                tokio::time::timeout(LAST_BYTES, self.app.requests.wait_until_none()).await.ok();
            }
            if tokio::time::timeout(LAST_WRITES, serving.engine.keep()).await.is_err() {
                tracing::warn!("the disk is too slow; conversations that were not written yet are lost");
            }
        }
        self.stop.send_replace(true);
        for server in self.servers {
            tokio::time::timeout(LAST_BYTES, server).await.ok();
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// Loads the first model and says when requests are served.
fn start_loading(app: Arc<App>) -> oneshot::Receiver<anyhow::Result<()>> {
    let (done, loaded) = oneshot::channel();
    tokio::spawn(async move {
        let result = app.change.first(&app).await;
        // Nobody listens any more when the daemon was stopped meanwhile.
        let _stopped = done.send(result);
    });
    loaded
}

/// Returns the reason when the engine has failed.
async fn engine_failed(app: &App) -> String {
    loop {
        if let Health::Failed { reason } = app.health() {
            return reason;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Connections that may wait to be accepted; the kernel's own limit may be less.
const BACKLOG: i32 = 4096;

async fn listen(config: &Config) -> anyhow::Result<TcpListener> {
    let wanted = &config.listen;
    let addresses: Vec<_> = tokio::net::lookup_host(wanted)
        .await
        .with_context(|| format!("--listen {wanted}: not an address and port, as in 127.0.0.1:18080"))?
        .collect();
    let listener = TcpListener::bind(&addresses[..]).await.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            anyhow::anyhow!("{wanted} is in use already; stop what listens there, or choose another port with --listen")
        }
        _ => anyhow::Error::new(error).context(format!("--listen {wanted} can't be listened on")),
    })?;
    // Of many clients that come at once, those that find no place in the queue would try again after a second.
    rustix::net::listen(&listener, BACKLOG)
        .with_context(|| format!("--listen {wanted} can't have a queue of {BACKLOG}"))?;
    Ok(listener)
}

/// Refuses an address that other machines reach where no key is asked for, unless that is wanted.
fn admit_others(config: &Config, address: SocketAddr, keys: bool) -> anyhow::Result<()> {
    if address.ip().is_loopback() || keys || config.listen_without_key {
        return Ok(());
    }
    bail!(
        "--listen {}: other machines reach {address}, and no key is asked for; set api_keys to a file of keys, listen on \
         127.0.0.1 behind a reverse proxy, or set listen_without_key = true (OPENJET_LISTEN_WITHOUT_KEY=true)",
        config.listen
    )
}
