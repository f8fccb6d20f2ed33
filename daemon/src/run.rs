//! The daemon's life: bind, load, serve, drain, end.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use openjet_proto::Health;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::app::{App, Phase};
use crate::config::Config;
use crate::control::Control;
use crate::control::socket::{self, ControlSocket};
use crate::http::keys::Keys;
use crate::http::router::Router;
use crate::http::server::{ConnectionLimits, Server};
use crate::load;
use crate::page::feed::Feed;

/// Longest wait for clients to take the last bytes that they were sent.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// How long a daemon whose engine has failed still answers, so that whoever checks on it hears why.
const FAILED_STAY: Duration = Duration::from_millis(500);

/// Longest wait for conversations to be on disk.
const LAST_WRITES: Duration = Duration::from_secs(30);

/// Connections to the control socket at once.
const CONTROL_CONNECTIONS: usize = 256;

/// Runs the daemon until it is told to stop or can't go on.
///
/// # Errors
/// When an address can't be had, the model can't be loaded, or the engine fails; the message names the fix where there is
/// one.
pub fn run(config: Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("the async runtime could not be started")?;
    let result = runtime.block_on(async {
        let daemon = Daemon::start(config).await?;
        daemon.until_stopped().await
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
    pub address: std::net::SocketAddr,
    stop: watch::Sender<bool>,
    servers: Vec<JoinHandle<()>>,
    loaded: oneshot::Receiver<anyhow::Result<()>>,
    _control: ControlSocket,
}

impl Daemon {
    /// Binds both sockets, starts to serve them, and starts to load the model.
    ///
    /// # Errors
    /// When a socket can't be had.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        let keys = Keys::load(config.api_keys.as_deref())?;
        let listener = listen(&config, !keys.is_empty()).await?;
        let address = listener.local_addr().context("the HTTP API's address")?;
        let path = config.control_socket();
        let (control_listener, control) = socket::bind(&path)?;
        let limits = ConnectionLimits {
            connections: config.connections,
            headers: Duration::from_secs(config.header_timeout_s),
            write: Duration::from_secs(config.write_timeout_s),
        };
        let app = Arc::new(App::new(config, address.to_string(), keys)?);
        let (stop, stopped) = watch::channel(false);
        let http = Server::tcp(listener, limits).run(Router { app: app.clone() }, stopped.clone());
        let control_limits = ConnectionLimits { connections: CONTROL_CONNECTIONS, ..limits };
        let control_server = Server::unix(control_listener, control_limits).run(Control { app: app.clone() }, stopped);
        let servers = vec![tokio::spawn(http), tokio::spawn(control_server)];
        tracing::info!("listening on http://{address}, control socket {}", path.display());
        // It ends with the runtime.
        tokio::spawn(Feed::run(app.clone()));
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

    /// Serves until SIGTERM or SIGINT, then drains.
    ///
    /// # Errors
    /// When the model can't be loaded or the engine fails.
    pub async fn until_stopped(mut self) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM can't be watched")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT can't be watched")?;
        tokio::select! {
            ready = self.until_ready() => ready?,
            _ = terminate.recv() => return self.stop().await,
            _ = interrupt.recv() => return self.stop().await,
        }
        notify(&[NotifyState::Ready, NotifyState::Status("serving")]);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            reason = engine_failed(&self.app) => {
                // The service manager takes the READY back.
                notify(&[NotifyState::Stopping, NotifyState::Status(&reason)]);
                // Running requests hear of it from the engine itself; give them a moment to tell their clients.
                tokio::time::timeout(LAST_BYTES, self.app.wait_until_idle()).await.ok();
                tokio::time::sleep(FAILED_STAY).await;
                bail!("the engine has failed: {reason}");
            }
        }
        // A second signal ends it at once.
        tokio::select! {
            ended = self.stop() => ended,
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
        }
    }

    /// Refuses new requests, lets running ones end within the set time, cuts the others, closes.
    ///
    /// # Errors
    /// None today.
    pub async fn stop(self) -> anyhow::Result<()> {
        let drain = Duration::from_secs(self.app.config.drain_s);
        notify(&[NotifyState::Stopping, NotifyState::Status("waiting for running requests")]);
        if let Phase::Ready(serving) = &*self.app.phase() {
            self.app.set_phase(Phase::Draining(serving.clone()));
            tracing::info!(
                requests = self.app.status().requests,
                "stopping: running requests have {} s",
                drain.as_secs()
            );
            if tokio::time::timeout(drain, self.app.wait_until_idle()).await.is_err() {
                tracing::warn!(requests = self.app.status().requests, "the time is over; cutting what still runs");
                self.app.cut_requests();
                tokio::time::timeout(LAST_BYTES, self.app.wait_until_idle()).await.ok();
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

/// Loads the model on a thread of its own and says when requests are served.
fn start_loading(app: Arc<App>) -> oneshot::Receiver<anyhow::Result<()>> {
    let (done, loaded) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let progress = |detail: String| {
            notify(&[NotifyState::Status(&detail)]);
            app.set_phase(Phase::Loading(detail));
        };
        let result = load::load(&app.config, &progress);
        let result = match result {
            Ok(serving) => {
                app.set_phase(Phase::Ready(Arc::new(serving)));
                Ok(())
            }
            Err(error) => {
                app.set_phase(Phase::Failed(format!("{error:#}")));
                Err(error)
            }
        };
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

async fn listen(config: &Config, keys: bool) -> anyhow::Result<TcpListener> {
    let wanted = &config.listen;
    let addresses: Vec<_> = tokio::net::lookup_host(wanted)
        .await
        .with_context(|| format!("--listen {wanted}: not an address and port, as in 127.0.0.1:18080"))?
        .collect();
    if let Some(open) = addresses.iter().find(|a| !a.ip().is_loopback()).filter(|_| !keys && !config.listen_without_key)
    {
        bail!(
            "--listen {wanted}: other machines reach {open}, and no key is asked for; set api_keys to a file of keys, listen on \
             127.0.0.1 behind a reverse proxy, or set listen_without_key = true (OPENJET_LISTEN_WITHOUT_KEY=true)"
        );
    }
    TcpListener::bind(&addresses[..]).await.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            anyhow::anyhow!("{wanted} is in use already; stop what listens there, or choose another port with --listen")
        }
        _ => anyhow::Error::new(error).context(format!("--listen {wanted} can't be listened on")),
    })
}

fn notify(state: &[NotifyState<'_>]) {
    // Without systemd there is nobody to tell.
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "systemd could not be notified");
    }
}
